"""The command line of hack/cluster.py."""

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeAlias

from testbed import clusters, debian, docker, images, tools
from testbed.console import Console
from testbed.errors import TestbedError, Unavailable
from testbed.workshop import Workshop, cache_folder

Command: TypeAlias = Callable[[Workshop, argparse.Namespace], None]
_FAILED = 1
_UNAVAILABLE = 3
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 2 for wrong usage, else what `carry_out` returns."""
    chosen = _parser().parse_args(arguments)
    return carry_out("cluster.py", _COMMANDS[chosen.command], chosen)


def carry_out(program: str, command: Command, chosen: argparse.Namespace) -> int:
    """Run a command of one of the programs in hack/, with its cache and its console.

    Returns:
        0 when it did its work, 1 when it failed, 3 when this machine cannot have what was asked
        for, 130 when interrupted.
    """
    os.environ["PATH"] = with_system_folders(os.environ.get("PATH", os.defpath))
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        command(Workshop.at(cache_folder(dict(os.environ)), console), chosen)
    except TestbedError as error:
        console.say(f"{program} {chosen.command}: {error}")
        if chosen.command != "env" and not sys.stdout.isatty():
            print(error)  # whoever reads the answer gets the reason; a shell would run `env`'s
        return _UNAVAILABLE if isinstance(error, Unavailable) else _FAILED
    except KeyboardInterrupt:
        console.say("interrupted; what was begun has been undone")
        return _INTERRUPTED
    return 0


def with_system_folders(path: str) -> str:
    """PATH with the folders of iptables and dockerd, which a plain `su` leaves out."""
    folders = path.split(os.pathsep)
    missing = [folder for folder in ("/usr/sbin", "/sbin") if folder not in folders]
    return os.pathsep.join([*folders, *missing])


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=clusters.DEFAULT_NAME, help="cluster (%(default)s)")

    commands.add_parser("up", parents=[named], help="make a cluster, or see that it is well")
    down = commands.add_parser("down", parents=[named], help="delete it and what it needed")
    down.add_argument("--all", action="store_true", help="all clusters that were made here")
    commands.add_parser("assets", help="print a folder with kube-apiserver, etcd and kubectl")
    load = commands.add_parser("load", parents=[named], help="copy an image to the nodes")
    load.add_argument("image")
    build = commands.add_parser(
        "build-image", parents=[named], help="build the project's image and print its name"
    )
    build.add_argument("--tag", default=images.DEFAULT_TAG, help="its name (%(default)s)")
    build.add_argument("--base", help="base image instead of Python's public one or one made here")
    nats = "make localhost/nats-server, load it if the cluster is there, and print its name"
    commands.add_parser("nats-image", parents=[named], help=nats)
    commands.add_parser("env", parents=[named], help="print lines for a shell's eval")
    return parser


def _given_cluster() -> str | None:
    return os.environ.get("MOCKER_KUBECONFIG") or None


def _image_for_given() -> str:
    """IMAGE, without which nothing can be run on the user's cluster."""
    if image := os.environ.get("IMAGE"):
        return image
    raise TestbedError(
        "MOCKER_KUBECONFIG is set, so IMAGE must name an image that the cluster can pull: nothing "
        "is built or loaded for it."
    )


def _unless_given(command: Command, left_undone: str) -> Command:
    """Do nothing but say so when the user brought a cluster."""

    def run(shop: Workshop, chosen: argparse.Namespace) -> None:
        if given := _given_cluster():
            shop.console.say(f"MOCKER_KUBECONFIG is set ({given}): {left_undone}")
        else:
            command(shop, chosen)

    return run


def _up(shop: Workshop, chosen: argparse.Namespace) -> None:
    if given := _given_cluster():
        _image_for_given()
        shop.console.say(f"MOCKER_KUBECONFIG is set ({given}): that cluster is used as it is")
        for name in ("kubectl", "helm"):
            tools.ensure(shop, name)
        return
    began = time.monotonic()
    clusters.up(shop, chosen.name)
    took_s = time.monotonic() - began
    shop.console.say(
        f"cluster {chosen.name} is ready after {took_s:.1f} s; for kubectl, kind and helm:\n"
        f'  eval "$(python3 hack/cluster.py env --name {chosen.name})"'
    )


def _down(shop: Workshop, chosen: argparse.Namespace) -> None:
    clusters.down(shop, chosen.name, everything=chosen.all)


def _assets(shop: Workshop, _chosen: argparse.Namespace) -> None:
    debian.require_programs(shop, ["openssl"], needed_for="the tests' own API server")
    print(tools.assets(shop, os.environ.get("KUBEBUILDER_ASSETS")))


def _load(shop: Workshop, chosen: argparse.Namespace) -> None:
    with docker.session(shop) as daemon:
        clusters.load(shop, daemon, chosen.image, name=chosen.name)


def _build_image(shop: Workshop, chosen: argparse.Namespace) -> None:
    if _given_cluster():
        print(_image_for_given())
        return
    with docker.session(shop) as daemon:
        print(images.build_project(shop, daemon, chosen.tag, base=chosen.base))


def _nats_image(shop: Workshop, chosen: argparse.Namespace) -> None:
    if platform.system() != "Linux":  # the server that pip has installed here is no Linux program
        shop.console.say(
            "this machine has no NATS server for Linux: the chart's public one is used"
        )
        return
    with docker.session(shop) as daemon:
        image = images.nats_image(shop, daemon)
        if clusters.exists(shop, daemon, chosen.name):
            clusters.load(shop, daemon, image, name=chosen.name)
        print(image)


def _env(shop: Workshop, chosen: argparse.Namespace) -> None:
    print("\n".join(clusters.shell_lines(shop, chosen.name, _given_cluster())))


_COMMANDS: dict[str, Command] = {
    "up": _up,
    "down": _unless_given(_down, "that cluster is left alone"),
    "assets": _assets,
    "load": _unless_given(_load, "nothing is loaded"),
    "build-image": _build_image,
    "nats-image": _unless_given(_nats_image, "the chart's public NATS image is used"),
    "env": _env,
}
