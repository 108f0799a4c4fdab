"""Command line: `mocker-simulator run` and `mocker-simulator calibrate`.

Exit code 0: done; 1: the simulation could not be run; 2: wrong usage.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mocker_protocol import __version__
from mocker_protocol.engine_args import InvalidEngineArgs
from mocker_simulator.engine_flags import add_engine_flags
from mocker_simulator.manifest import InvalidManifest
from mocker_simulator.progress import progress_bar
from mocker_simulator.results import table, write_requests
from mocker_simulator.routing import RoutingMode
from mocker_simulator.run import InvalidUsage, make_fleet
from mocker_simulator.summary import summarize
from mocker_simulator.traces import InvalidTrace


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (argparse exits with 2)."""
    arguments = _parser().parse_args(argv)
    try:
        return _COMMANDS[arguments.command](arguments)
    except (InvalidUsage, InvalidEngineArgs, InvalidManifest) as error:
        return _fail(error, 2)
    except (InvalidTrace, OSError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 1


def _fail(error: Exception, code: int) -> int:
    print(f"mocker-simulator: {error}", file=sys.stderr)
    return code


def _run(arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    gc.disable()  # requests and blocks die by reference count; a collector would only look for them
    fleet = make_fleet(arguments, sampling=arguments.report is not None)
    outcome = fleet.run(progress_bar(fleet.num_requests))
    summary = summarize(outcome)
    figures = summary.to_json()
    figures["wall_time_ms"] = round((time.perf_counter() - began) * 1000, 1)
    if arguments.per_request:
        with Path(arguments.per_request).open("w") as file:
            write_requests(outcome.records, file)
    if arguments.report:
        from mocker_simulator.report import page

        Path(arguments.report).write_text(page(outcome, summary, title=_title(arguments)))
    print(json.dumps(figures) if arguments.json else table(figures))
    return 0


def _title(arguments: argparse.Namespace) -> str:
    load = arguments.trace or f"{arguments.isl} in, {arguments.osl} out"
    return Path(str(load)).name


def _calibrate(arguments: argparse.Namespace) -> int:
    from mocker_simulator import calibrate  # not needed by `run`, which starts fast

    gc.disable()
    print(calibrate.run(arguments))
    return 0


_COMMANDS = {"run": _run, "calibrate": _calibrate}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mocker-simulator", description="Run mock engines in virtual time."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="simulate a fleet under a load")
    _add_load(run)
    _add_fleet(run)
    _add_output(run)
    add_engine_flags(run)
    fit = commands.add_parser("calibrate", help="fit a timing model to measured requests")
    _add_calibration(fit)
    add_engine_flags(fit)
    return parser


def _add_calibration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", metavar="FILE", required=True, help="measured requests")
    parser.add_argument("--timeseries", metavar="FILE", help="CSV of t, running, waiting")
    parser.add_argument("--rounds", type=_positive, default=25, metavar="N")
    parser.add_argument("--output", metavar="FILE", help="engine arguments with the timing model")
    parser.add_argument("--plot", metavar="FILE", help="an HTML page with the curves")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument("--trace", metavar="FILE", help="Mooncake JSON lines, or Azure's .csv")
    load.add_argument("--limit", type=_positive, metavar="N", help="only the first N requests")
    load.add_argument(
        "--trace-block-size", type=_positive, metavar="TOKENS", help="of one hash id (512)"
    )
    load.add_argument("--arrival-speedup", type=_ratio, default=1.0, metavar="X")
    load.add_argument("--isl", type=_positive, metavar="TOKENS", help="prompt length")
    load.add_argument("--osl", type=_positive, metavar="TOKENS", help="answer length")
    load.add_argument("--requests", type=_positive, default=1000, metavar="N")
    pace = load.add_mutually_exclusive_group()
    pace.add_argument("--interval-ms", type=_ratio, metavar="MS", help="one request every MS")
    pace.add_argument("--rate", type=_ratio, metavar="RPS", help="at random, RPS a second")
    pace.add_argument(
        "--concurrency", type=_positive, metavar="N", help="N clients that wait for their answers"
    )
    load.add_argument("--shared-prefix-ratio", type=_share, metavar="0..1", help="(0)")
    load.add_argument("--prefix-groups", type=_positive, metavar="N", help="(1)")
    load.add_argument("--load-seed", type=int, default=0, metavar="N")


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument("--deployment", metavar="FILE", help="a MockerDeployment manifest")
    fleet.add_argument("--workers", type=_positive, metavar="N", help="aggregated workers (1)")
    fleet.add_argument("--prefill", type=_positive, metavar="N")
    fleet.add_argument("--decode", type=_positive, metavar="N")
    fleet.add_argument("--routing", choices=[mode.value for mode in RoutingMode])
    fleet.add_argument(
        "--routing-seed", type=int, default=0, metavar="N", help="of kv routing's lots (0)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument("--per-request", metavar="FILE", help="JSON lines, a row per request")
    output.add_argument("--report", metavar="FILE", help="an HTML page with plots")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return value
