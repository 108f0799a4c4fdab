"""The node image of kind for a machine that can reach no image registry.

Made of a Debian root file system, the files in hack/node/rootfs, Kubernetes' programs, and the
control plane's images laid into the node's containerd store, so that a node never pulls.
"""

import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testbed import debian, versions
from testbed.errors import TestbedError
from testbed.golang import (
    COREDNS,
    CRICTL,
    ETCD,
    KUBERNETES,
    GoProgram,
    architecture,
    built,
    ensure_pause,
    ensure_programs,
)
from testbed.image_archive import ImageArchive, ImageSettings, write_compressed
from testbed.process import background, output, run
from testbed.workshop import NODE_FILES, Workshop, in_lanes, recipe_hash

_NODE_PACKAGES = (
    "systemd systemd-sysv dbus containerd runc containernetworking-plugins iptables conntrack "
    "iproute2 ethtool socat mount kmod procps ca-certificates"
).split()
_PROXY_PACKAGES = ("iptables", "conntrack")
_UNITS = ("containerd", "kubelet", "pod-network", "pod-dns")
# A node has no logins, and what these would set or mount belongs to the machine below it.
_MASKED_UNITS = (
    "getty.target console-getty.service systemd-logind.service systemd-remount-fs.service "
    "systemd-sysctl.service systemd-binfmt.service systemd-modules-load.service "
    "systemd-pstore.service dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount "
    "sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount"
).split()
_XTABLES = [f"ip{six}tables{verb}" for six in ("", "6") for verb in ("", "-save", "-restore")]
_CONTAINERD_START_S = 20.0


def reference() -> str:
    """The image's name, which changes with everything that it is made of."""
    return f"localhost/mocker-node:{versions.KUBERNETES}-{_key()}"


def archive(shop: Workshop) -> Path:
    """Where the image file is, or will be."""
    return shop.artefact(f"node-{versions.KUBERNETES}-{architecture()}-{_key()}.tar.zst")


def tasks(shop: Workshop) -> list[Callable[[], object]]:
    """What must be there before the image can be put together, the longest first."""
    return [
        lambda: ensure_programs(shop, "compile Kubernetes", KUBERNETES),
        lambda: _node_system(shop),
        lambda: _proxy_system(shop),
        lambda: ensure_programs(shop, "compile coredns", [COREDNS]),
        lambda: ensure_programs(shop, "compile crictl", [CRICTL]),
        lambda: ensure_programs(shop, "compile etcd", [ETCD]),
        lambda: ensure_pause(shop),
    ]


def ensure(shop: Workshop) -> Path:
    """Return the image file, building it and all its parts where they are missing."""
    if not archive(shop).exists():
        in_lanes(tasks(shop))
    return shop.ensure(archive(shop), "build node image", lambda t, log: _build(shop, t, log))


@functools.cache
def _key() -> str:
    programs = [p.folder for p in (*KUBERNETES, ETCD, COREDNS, CRICTL)]
    return recipe_hash(programs, versions.DEBIAN, NODE_FILES, Path(__file__))


def _node_system(shop: Workshop) -> Path:
    return _system(shop, "node", _NODE_PACKAGES, variant="essential")


def _proxy_system(shop: Workshop) -> Path:
    return _system(shop, "proxy", _PROXY_PACKAGES, variant="extract")


def _system(shop: Workshop, name: str, packages: Sequence[str], *, variant: str) -> Path:
    key = recipe_hash(versions.DEBIAN, list(packages), variant)
    target = shop.artefact(f"rootfs-{name}-{architecture()}-{key}.tar")
    debian.require_programs(shop, ["mmdebstrap"], needed_for="building the node image")
    return shop.ensure(
        target,
        f"Debian files for the {name}",
        lambda t, log: debian.root_file_system(t, packages, variant=variant, log=log),
    )


def _build(shop: Workshop, target: Path, log: Path) -> None:
    scratch = target.parent
    references = _image_references(shop)
    images = scratch / "images.tar"
    _write_control_plane(shop, images, references=references, log=log)
    tree = scratch / "tree"
    _assemble(shop, tree, pause_image=references["pause"], log=log)
    _preload(tree, images, log=log)
    layer = scratch / "node.tar"
    run(["tar", "-C", str(tree), "-cf", str(layer), "."], log=log)
    shutil.rmtree(tree)
    settings = ImageSettings(
        architecture(),
        entrypoint=["/usr/local/sbin/node-entry"],
        environment={"container": "docker"},
    )
    write_compressed(target, {reference(): (layer, settings)})


def _image_references(shop: Workshop) -> dict[str, str]:
    """The names that kubeadm gives the control plane's images, by their last word."""
    kubeadm = str(built(shop, KUBERNETES[0]))
    listed = output(
        [kubeadm, "config", "images", "list", f"--kubernetes-version={versions.KUBERNETES}"]
    )
    references = {line.rpartition("/")[2].partition(":")[0]: line for line in listed.split()}
    for name, version in (("etcd", versions.ETCD), ("coredns", versions.COREDNS)):
        tag = references[name].rpartition(":")[2].lstrip("v").partition("-")[0]
        if tag != version.lstrip("v"):
            raise TestbedError(
                f"kubeadm {versions.KUBERNETES} asks for {name} {tag}, versions.py pins {version}"
            )
    return references


def _write_control_plane(
    shop: Workshop, target: Path, *, references: Mapping[str, str], log: Path
) -> None:
    """Write one image file of all images, each with one static program."""
    programs: dict[str, Path] = {
        p.name: built(shop, p) for p in (*KUBERNETES, ETCD, COREDNS) if p.name in references
    }
    programs["pause"] = ensure_pause(shop)
    with target.open("wb") as file:
        images = ImageArchive(file)
        for name, image_reference in references.items():
            tree = target.parent / f"image-{name}"
            if name == "kube-proxy":
                _proxy_tree(tree, _proxy_system(shop), log=log)
            (tree / "tmp").mkdir(parents=True, exist_ok=True)
            home = tree / "usr/local/bin"
            home.mkdir(parents=True, exist_ok=True)
            shutil.copy(programs[name], home / name)
            layer = tree.with_suffix(".tar")
            run(["tar", "-C", str(tree), "--owner=0", "--group=0", "-cf", str(layer), "."], log=log)
            settings = ImageSettings(architecture(), entrypoint=[f"/usr/local/bin/{name}"])
            images.add(image_reference, layer, settings)
            shutil.rmtree(tree)
            layer.unlink()
        images.close()


def _proxy_tree(tree: Path, system: Path, *, log: Path) -> None:
    """Unpack iptables and its libraries; no maintainer script has run, so the links are missing."""
    tree.mkdir()
    run(["tar", "-C", str(tree), "-xf", str(system)], log=log)
    for unneeded in (tree / "usr/share", tree / "var", *tree.glob("usr/lib/*/perl*")):
        shutil.rmtree(unneeded, ignore_errors=True)
    for name in _XTABLES:
        link = tree / "usr/sbin" / name
        link.unlink(missing_ok=True)
        link.symlink_to("xtables-nft-multi")


def _assemble(shop: Workshop, tree: Path, *, pause_image: str, log: Path) -> None:
    tree.mkdir()
    run(["tar", "-C", str(tree), "-xf", str(_node_system(shop)), "--exclude=./dev/*"], log=log)
    run(["cp", "-r", "--preserve=mode", f"{NODE_FILES}/rootfs/.", str(tree)], log=log)
    on_node: list[GoProgram] = [
        p for p in KUBERNETES if p.name in ("kubeadm", "kubectl", "kubelet")
    ]
    for program in (*on_node, CRICTL):
        shutil.copy(built(shop, program), tree / "usr/bin" / program.name)
    runtime = tree / "etc/containerd/config.toml"
    runtime.write_text(runtime.read_text().replace("@PAUSE_IMAGE@", pause_image))
    (tree / "kind/version").write_text(f"{versions.KUBERNETES}\n")
    (tree / "etc/machine-id").write_text("")
    for kept, pattern in (("var/log", "*"), ("var/cache/apt", "*"), ("var/lib/apt/lists", "*")):
        _empty(tree / kept, pattern)
    _configure_systemd(tree)


def _empty(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _configure_systemd(tree: Path) -> None:
    units = tree / "etc/systemd/system"
    for name in _MASKED_UNITS:
        _link(units / name, "/dev/null")
    _link(units / "default.target", "/lib/systemd/system/multi-user.target")
    for name in _UNITS:
        _link(units / f"multi-user.target.wants/{name}.service", f"../{name}.service")
    for folder in (units, tree / "lib/systemd/system"):
        _empty(folder / "timers.target.wants", "*")


def _link(link: Path, target: str) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _preload(tree: Path, images: Path, *, log: Path) -> None:
    """Import images into the tree's containerd store, by the tree's own containerd.

    Not by this machine's: a newer one may write a store that the node cannot read.
    """
    inside = tree / "preload"
    inside.mkdir()
    images.rename(inside / "images.tar")
    (inside / "config.toml").write_text(
        'version = 2\nroot = "/var/lib/containerd"\nstate = "/preload/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        '[grpc]\naddress = "/preload/containerd.sock"\n'
    )
    enter = ["chroot", str(tree)]
    client = [*enter, "ctr", "--address=/preload/containerd.sock", "--namespace=k8s.io"]
    with background([*enter, "containerd", "--config=/preload/config.toml"], log=log) as server:
        deadline = time.monotonic() + _CONTAINERD_START_S
        while not (inside / "containerd.sock").is_socket():
            if server.poll() is not None or time.monotonic() > deadline:
                raise TestbedError(f"the node's containerd did not start here; see {log}")
            time.sleep(0.05)
        run([*client, "images", "import", "--no-unpack", "/preload/images.tar"], log=log)
    shutil.rmtree(inside)
