"""Command line: `mocker-frontend serve`."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from mocker_frontend.config import FrontendConfig
from mocker_frontend.logs import configure
from mocker_frontend.registry import Worker
from mocker_frontend.routing.policies import RoutingMode
from mocker_frontend.serve import serve
from mocker_protocol import __version__
from mocker_protocol.names import WorkerType

_DEFAULT_NATS_URL = "nats://127.0.0.1:4222"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 on success and 1 on failure (argparse exits with 2)."""
    arguments = _parser().parse_args(argv)
    try:
        config = _config(arguments)
    except ValueError as error:
        print(f"mocker-frontend: {error}", file=sys.stderr)
        return 2
    configure(level=arguments.log_level, style=arguments.log_format)
    code = 0
    try:
        uvloop.run(serve(config))
    except* OSError as errors:
        address = f"--host {config.host} --port {config.port}"
        print(f"mocker-frontend: {address}: {errors.exceptions[0]}", file=sys.stderr)
        code = 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mocker-frontend", description="OpenAI-compatible entry to mock workers."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve", help="run the frontend until SIGTERM")
    _add_serving(command)
    _add_workers(command)
    return parser


def _add_serving(command: argparse.ArgumentParser) -> None:
    environ = os.environ
    command.add_argument("--host", default="0.0.0.0")
    command.add_argument("--port", type=_port, default=8000, help="0 takes a free port")
    command.add_argument("--model-name", required=True)
    command.add_argument(
        "--routing", type=RoutingMode, choices=list(RoutingMode), default=RoutingMode.ROUND_ROBIN
    )
    command.add_argument("--drain-timeout-s", type=_seconds, default=60.0)
    _setting(
        command,
        environ,
        "--drain-grace-s",
        type=_seconds,
        default=2.0,
        help="least time to accept after SIGTERM",
    )
    _setting(command, environ, "--connect-timeout-s", type=_seconds, default=2.0)
    _setting(
        command,
        environ,
        "--read-timeout-s",
        type=_seconds,
        default=600.0,
        help="longest silence of a worker",
    )
    _setting(
        command,
        {"MOCKER_API_KEY": environ.get("VLLM_API_KEY", ""), **environ},
        "--api-key",
        type=_names,
        default=(),
        metavar="KEY,...",
        help="keys that /v1 takes as bearer token; better given by variable, or VLLM_API_KEY",
    )
    _setting(command, environ, "--log-level", type=_level, default="INFO")
    _setting(command, environ, "--log-format", choices=("text", "json"), default="text")


def _setting(
    command: argparse.ArgumentParser,
    environ: Mapping[str, str],
    flag: str,
    **options: Any,  # noqa: ANN401 - as add_argument
) -> None:
    """Add a flag that takes its default from the environment, as those of the worker do."""
    variable = "MOCKER_" + flag.removeprefix("--").replace("-", "_").upper()
    if text := environ.get(variable):
        options["default"] = text  # argparse converts it as it does the flag's
    help_text = f"{options.pop('help', '')} [{variable}]".strip()
    command.add_argument(flag, help=help_text, **options)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be 0..65535, not {text[:40]!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be seconds, at least 0, not {text[:40]!r}")
    return seconds


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise argparse.ArgumentTypeError(f"must be debug, info, warning or error, not {text!r}")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _add_workers(command: argparse.ArgumentParser) -> None:
    environ = os.environ
    nats = command.add_mutually_exclusive_group()
    nats.add_argument("--nats-url", default=environ.get("NATS_SERVER", _DEFAULT_NATS_URL))
    nats.add_argument("--no-nats", action="store_true", help="use only the workers named by URL")
    command.add_argument(
        "--namespace", default=environ.get("DYN_NAMESPACE", "dynamo"), help="Dynamo namespace"
    )
    for role in WorkerType:
        command.add_argument(
            f"--{role}-url",
            action="append",
            default=[],
            metavar="URL",
            help=f"a static {role} worker; may be repeated",
        )


def _config(arguments: argparse.Namespace) -> FrontendConfig:
    workers = tuple(
        Worker(f"static.{role}.{number:04d}", role, url.rstrip("/"))
        for role in WorkerType
        for number, url in enumerate(getattr(arguments, f"{role}_url"))
    )
    if arguments.no_nats and not workers:
        raise ValueError("--no-nats: name workers with --decode-url or --aggregated-url")
    for worker in workers:
        if not worker.url.startswith(("http://", "https://")):
            raise ValueError(
                f"--{worker.worker_type}-url: {worker.url!r} must start with http:// or https://"
            )
    return FrontendConfig(
        host=arguments.host,
        port=arguments.port,
        model_name=arguments.model_name,
        namespace=arguments.namespace,
        nats_url=None if arguments.no_nats else arguments.nats_url,
        static_workers=workers,
        routing=arguments.routing,
        api_keys=arguments.api_key,
        drain_timeout_s=arguments.drain_timeout_s,
        drain_grace_s=arguments.drain_grace_s,
        connect_timeout_s=arguments.connect_timeout_s,
        read_timeout_s=arguments.read_timeout_s,
    )
