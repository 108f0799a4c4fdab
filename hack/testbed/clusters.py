"""Clusters: making, finding, loading and deleting them with kind."""

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from testbed import base_image, debian, node_image, tools
from testbed import docker as docker_daemon
from testbed.docker import Docker
from testbed.errors import CommandFailed, TestbedError
from testbed.private_daemon import PrivateDaemon
from testbed.process import output, run, succeeds
from testbed.workshop import REPOSITORY, Workshop, in_lanes

DEFAULT_NAME = "mocker"
_READY = "120s"
_DNS_READY = "90s"
_COMMAND_LINE_TOOLS = ("kind", "kubectl", "helm")


def kubeconfig(name: str) -> Path:
    """Where the cluster's kubeconfig is; never the user's own file."""
    return REPOSITORY / ".run" / f"{name}.kubeconfig"


def up(shop: Workshop, name: str) -> None:
    """Make the cluster, or see that it is well; idempotent."""
    private = docker_daemon.running(shop) is None
    own_image = private and not _chosen_node_image() and not node_image.archive(shop).exists()
    compile_tools = [_tool_task(shop, tool) for tool in _COMMAND_LINE_TOOLS]
    if private:
        PrivateDaemon(shop).require_possible()
    in_lanes(
        [
            *(node_image.tasks(shop) if own_image else ()),
            *([lambda: base_image.ensure(shop)] if own_image else ()),
            *compile_tools,
        ]
    )
    with shop.lock("clusters"):
        started_here = docker_daemon.running(shop) is None
        try:
            docker = docker_daemon.ensure(shop)
            _refuse_foreign(shop, docker, name)
            if name in _names(shop, docker) and not _revive(shop, docker, name):
                shop.console.say(f"cluster {name} does not answer: it is made anew")
                _delete(shop, docker, name)
            if name not in _names(shop, docker):
                _create(shop, docker, name)
        except BaseException:
            if started_here:
                PrivateDaemon(shop).stop()
            raise


def down(shop: Workshop, name: str, *, everything: bool) -> None:
    """Delete the cluster, or all of ours, and the private daemon when it has none left."""
    with shop.lock("clusters"):
        daemon = PrivateDaemon(shop)
        if daemon.left_something() and not daemon.answers():
            daemon.start()  # it died, and its containers may live on
        docker = docker_daemon.running(shop)
        if docker is None:
            # What another daemon holds is still there when it runs again, so its marks stay.
            shop.console.say("no Docker daemon runs, so there is no cluster to delete")
            return
        if not everything:
            _refuse_foreign(shop, docker, name)
        existing = _names(shop, docker)
        doomed = [c for c in existing if (everything or c == name) and _is_ours(shop, docker, c)]
        for cluster in doomed:
            with shop.console.step(f"delete cluster {cluster}"):
                _delete(shop, docker, cluster)
        if not doomed:
            shop.console.say("nothing to delete: no such cluster was made here")
        known = [mark.name for mark in _marks(shop).iterdir()] if everything else []
        if not docker.private:
            for gone in {name, *known} - set(existing):
                _forget(shop, gone)
        if docker.private and set(existing) == set(doomed):
            daemon.stop()


def exists(shop: Workshop, docker: Docker, name: str) -> bool:
    """Whether the daemon has a cluster of this name that was made here."""
    return name in _names(shop, docker) and _is_ours(shop, docker, name)


def load(shop: Workshop, docker: Docker, image: str, *, name: str) -> None:
    """Copy an image from the daemon to the cluster's nodes."""
    if not exists(shop, docker, name):
        raise TestbedError(f"there is no cluster {name}: make it with `hack/cluster.py up`")
    with shop.console.step(f"load {image}"):
        command = [_kind(shop), "load", "docker-image", image, "--name", name]
        run(command, log=shop.log("load image"), env=docker.environment)


def shell_lines(shop: Workshop, name: str, given: str | None) -> list[str]:
    """Lines for a shell's `eval`: the cluster, the daemon, and tools of ours."""
    lines = [f"export KUBECONFIG={shlex.quote(given or str(kubeconfig(name)))}"]
    daemon = PrivateDaemon(shop)
    if daemon.answers():
        lines.append(f"export DOCKER_HOST={shlex.quote(daemon.host)}")
    folders = []
    for tool in _COMMAND_LINE_TOOLS:
        path = tools.have(shop, tool)
        if path and path.is_relative_to(shop.cache) and str(path) != shutil.which(tool):
            folders.append(str(path.parent))
    if folders:
        ours = shlex.quote(os.pathsep.join(folders))
        lines.append(f'export PATH={ours}{os.pathsep}"$PATH"')
    return lines


def _tool_task(shop: Workshop, name: str) -> Callable[[], object]:
    return lambda: tools.ensure(shop, name)


def _create(shop: Workshop, docker: Docker, name: str) -> None:
    image = _node_image(shop, docker)
    log = shop.log(f"create {name}")
    config = kubeconfig(name)
    config.parent.mkdir(exist_ok=True)
    command = [_kind(shop), "create", "cluster", "--name", name, "--image", image]
    _remember(shop, docker, name)
    try:
        with shop.console.step(f"create cluster {name}"):
            run(
                [*command, "--kubeconfig", str(config), "--wait", _READY],
                log=log,
                env=docker.environment,
            )
        _wait_for_dns(shop, config, log=log)
    except BaseException:
        _delete(shop, docker, name)
        raise


def _node_image(shop: Workshop, docker: Docker) -> str:
    """The node image's name, in the daemon by then."""
    if chosen := _chosen_node_image():
        return chosen
    if not docker.private and (stock := docker_daemon.stock_node_image(shop, docker)):
        return stock
    reference = node_image.reference()
    if not docker.has_image(reference):
        if not node_image.archive(shop).exists():
            debian.require_root("Building a node image")
        archive = node_image.ensure(shop)
        with shop.console.step("load node image"):
            docker.load(archive, log=shop.log("load node image"))
    return reference


def _chosen_node_image() -> str | None:
    return os.environ.get("MOCKER_NODE_IMAGE") or None


def _revive(shop: Workshop, docker: Docker, name: str) -> bool:
    """Whether a cluster that exists answers, after starting a node that does not run."""
    with shop.console.step(f"look at cluster {name}"):
        config = kubeconfig(name)
        config.parent.mkdir(exist_ok=True)
        try:
            docker.output("start", f"{name}-control-plane")
            output(
                [_kind(shop), "export", "kubeconfig", "--name", name, "--kubeconfig", str(config)],
                env=docker.environment,
            )
            _wait_for_dns(shop, config, log=shop.log(f"look at {name}"))
        except CommandFailed:
            return False
        return True


def _wait_for_dns(shop: Workshop, config: Path, *, log: Path) -> None:
    """Wait for cluster DNS, which comes some seconds after the node calls itself ready."""
    kubectl = [str(tools.ensure(shop, "kubectl")), f"--kubeconfig={config}"]
    with shop.console.step("wait for cluster DNS"):
        answer = [*kubectl, "get", "--raw=/readyz"]
        for _ in range(30):
            if succeeds(answer, timeout_s=5):
                break
        rollout = ["--namespace=kube-system", "rollout", "status", "deployment/coredns"]
        run([*kubectl, *rollout, f"--timeout={_DNS_READY}"], log=log)


def _delete(shop: Workshop, docker: Docker, name: str) -> None:
    config = kubeconfig(name)
    command = [_kind(shop), "delete", "cluster", "--name", name, "--kubeconfig", str(config)]
    output(command, env=docker.environment, timeout_s=120)
    if docker.private:
        config.unlink(missing_ok=True)
    else:
        _forget(shop, name)


def _names(shop: Workshop, docker: Docker) -> list[str]:
    return output([_kind(shop), "get", "clusters"], env=docker.environment).split()


def _kind(shop: Workshop) -> str:
    return str(tools.ensure(shop, "kind"))


def _marks(shop: Workshop) -> Path:
    """A folder with a file for each cluster that was made here on a daemon that others use too."""
    folder = shop.cache / "clusters"
    folder.mkdir(exist_ok=True)
    return folder


def _remember(shop: Workshop, docker: Docker, name: str) -> None:
    if not docker.private:
        (_marks(shop) / name).touch()


def _forget(shop: Workshop, name: str) -> None:
    (_marks(shop) / name).unlink(missing_ok=True)
    kubeconfig(name).unlink(missing_ok=True)


def _is_ours(shop: Workshop, docker: Docker, name: str) -> bool:
    return docker.private or (_marks(shop) / name).exists()


def _refuse_foreign(shop: Workshop, docker: Docker, name: str) -> None:
    if name in _names(shop, docker) and not _is_ours(shop, docker, name):
        raise TestbedError(
            f"the kind cluster {name} was not made here, so it is left alone: choose another name "
            f"(--name, or CLUSTER= for make), or delete it with `kind delete cluster --name {name}`"
        )
