"""Command line: `mocker-planner decide` and `mocker-planner status`.

Exit code 0: done; 1: timed out or failed; 2: wrong usage.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

import nats.errors

from mocker_planner import report
from mocker_planner.client import DEFAULT_NAMESPACE, DEFAULT_NATS_URL, PlannerClient
from mocker_planner.errors import InvalidTarget, PlannerError
from mocker_planner.status import Status
from mocker_protocol import __version__
from mocker_protocol.decisions import DeploymentKey


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (argparse exits with 2)."""
    arguments = _parser().parse_args(argv)
    try:
        asyncio.run(_run(arguments))
    except InvalidTarget as error:
        return _fail(error, 2)
    except (PlannerError, nats.errors.Error, TimeoutError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 1
    return 0


def _fail(error: Exception, code: int) -> int:
    print(f"mocker-planner: {str(error) or type(error).__name__}", file=sys.stderr)
    return code


async def _run(arguments: argparse.Namespace) -> None:
    key = DeploymentKey(arguments.namespace, arguments.name)
    async with PlannerClient(arguments.nats_url) as planner:
        if arguments.command == "decide":
            await _decide(planner, key, arguments)
        else:
            status = await planner.status(key.name, key.namespace)
            as_json = arguments.output == "json"
            print(report.as_json(key, status) if as_json else report.status_text(key, status))


async def _decide(
    planner: PlannerClient, key: DeploymentKey, arguments: argparse.Namespace
) -> None:
    text = arguments.output == "text"
    decision = await planner.decide(
        key.name,
        key.namespace,
        prefill=arguments.prefill,
        decode=arguments.decode,
        decision_id=arguments.decision_id,
    )
    if text:
        print(report.decided(key, decision), flush=True)
    after_s = None
    if arguments.wait:
        after_s = await planner.wait(
            key.name, decision.decision_id, key.namespace, timeout_s=arguments.timeout_s
        )
        if text:
            print(report.scaled(key, decision, after_s))
    if not text:
        acknowledged = decision.decision_id if arguments.wait else None
        print(report.as_json(key, Status(decision, acknowledged), scaled_after_s=after_s))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mocker-planner", description="Scale a MockerDeployment as a planner does."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    decide = commands.add_parser("decide", help="write a scaling decision")
    _add_target(decide)
    decide.add_argument("--prefill", type=int, help="ready prefill workers; absent: leave alone")
    decide.add_argument("--decode", type=int, help="ready decode workers; absent: leave alone")
    decide.add_argument("--wait", action="store_true", help="until the decision is carried out")
    decide.add_argument("--timeout-s", type=float, default=300.0, help="of --wait (300)")
    decide.add_argument("--decision-id", type=int, help="absent: the next free id")
    _add_target(commands.add_parser("status", help="show the latest decision"))
    return parser


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", help="name of the MockerDeployment")
    command.add_argument("-n", "--namespace", default=DEFAULT_NAMESPACE)
    command.add_argument("--nats-url", default=os.environ.get("NATS_SERVER", DEFAULT_NATS_URL))
    command.add_argument("--output", choices=("text", "json"), default="text")
