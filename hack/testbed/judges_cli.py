"""The command line of hack/judges.py."""

import argparse
from collections.abc import Sequence

from testbed import judges
from testbed.cli import Command, carry_out
from testbed.errors import TestbedError
from testbed.workshop import Workshop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit codes are those of hack/cluster.py."""
    chosen = _parser().parse_args(arguments)
    return carry_out("judges.py", _COMMANDS[chosen.command], chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="judges.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    install = commands.add_parser(
        "install", help="install judges that are missing; print where they are"
    )
    install.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(judges.NAMES)} (default: all); or, to measure against, "
        f"{', '.join(judges.RIVALS)}",
    )
    commands.add_parser("env", help="install all, and print a line for a shell's eval")
    return parser


def _install(shop: Workshop, chosen: argparse.Namespace) -> None:
    known = (*judges.NAMES, *judges.RIVALS)
    if unknown := set(chosen.names) - set(known):
        raise TestbedError(f"no judge is called {', '.join(sorted(unknown))}: {', '.join(known)}")
    if chosen.names:
        print(*judges.install(shop, chosen.names), sep="\n")
    else:
        print(judges.install_all(shop))


def _env(shop: Workshop, _chosen: argparse.Namespace) -> None:
    print(f"export MOCKER_JUDGES={judges.install_all(shop)}")


_COMMANDS: dict[str, Command] = {"install": _install, "env": _env}
