"""Command line: `mocker-operator run | crd | render | validate`.

Only `run` loads Kopf and the Kubernetes client. Exit codes: 0 done, 1 refused or failed, 2 wrong
usage.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mocker_operator import constants
from mocker_operator.config import (
    DEFAULT_NATS_URL,
    OperatorConfig,
    default_from_environment,
    namespaces_from_environment,
)
from mocker_operator.errors import InvalidConfig, OperatorError

PULL_POLICIES = ("IfNotPresent", "Always", "Never")
DEFAULT_IMAGE = "mocker:dev"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        arguments = _parser(os.environ).parse_args(argv)
        code: int = arguments.command(arguments)
    except (OperatorError, OSError, yaml.YAMLError) as error:
        print(f"mocker-operator: {error}", file=sys.stderr)
        return 1
    return code


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mocker-operator", description="The Kubernetes operator.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the operator")
    run.set_defaults(command=_run)
    _add_scope(run, environ)
    _add_rendering(run, environ)
    _add_process(run, environ)
    crd = commands.add_parser("crd", help="print the CustomResourceDefinition as YAML")
    crd.set_defaults(command=_crd)
    render = commands.add_parser("render", help="print the manifests that a file leads to")
    render.add_argument("file", type=Path, metavar="FILE")
    render.set_defaults(command=_render)
    _add_rendering(render, environ)
    validate = commands.add_parser("validate", help="judge files as the operator would")
    validate.add_argument("files", type=Path, nargs="+", metavar="FILE")
    validate.set_defaults(command=_validate)
    return parser


def _add_scope(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--namespace",
        "-n",
        action="append",
        dest="namespaces",
        metavar="NAME",
        help="watch this namespace; repeatable (MOCKER_NAMESPACES, comma-separated)",
    )
    scope.add_argument(
        "--all-namespaces",
        "-A",
        action="store_true",
        help="watch the whole cluster, which is the default",
    )
    parser.set_defaults(environ_namespaces=namespaces_from_environment(environ))


def _add_rendering(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    def add(flag: str, name: str, default: str | None, text: str, **options: Any) -> None:  # noqa: ANN401
        value = default_from_environment(environ, name, default, options.get("choices"))
        parser.add_argument(flag, default=value, help=f"{text} (MOCKER_{name})", **options)

    add("--nats-url", "NATS_URL", DEFAULT_NATS_URL, "NATS as the operator reaches it")
    add("--worker-nats-url", "WORKER_NATS_URL", None, "NATS as pods reach it, if other")
    add("--worker-image", "WORKER_IMAGE", DEFAULT_IMAGE, "image of workers and frontends")
    add(
        "--image-pull-policy",
        "IMAGE_PULL_POLICY",
        PULL_POLICIES[0],
        "pull policy of that image",
        choices=PULL_POLICIES,
    )


def _add_process(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    def add(flag: str, name: str, default: str | None, text: str, **options: Any) -> None:  # noqa: ANN401
        value = default_from_environment(environ, name, default, options.get("choices"))
        parser.add_argument(flag, default=value, help=f"{text} (MOCKER_{name})", **options)

    add("--liveness-port", "LIVENESS_PORT", None, "serve /healthz here", type=int)
    add("--metrics-port", "METRICS_PORT", None, "serve /metrics here", type=int)
    levels = ("debug", "info", "warning", "error")
    add("--log-level", "LOG_LEVEL", "info", "least level", type=str.lower, choices=levels)
    add("--log-format", "LOG_FORMAT", "text", "form of log lines", choices=("text", "json"))


def _run(arguments: argparse.Namespace) -> int:
    from mocker_operator.program import run
    from mocker_operator.telemetry import configure_logging

    namespaces = () if arguments.all_namespaces else arguments.namespaces
    if namespaces is None:
        namespaces = arguments.environ_namespaces
    config = OperatorConfig(
        worker_image=arguments.worker_image,
        nats_url=arguments.nats_url,
        worker_nats_url=arguments.worker_nats_url or arguments.nats_url,
        image_pull_policy=arguments.image_pull_policy,
        namespaces=tuple(dict.fromkeys(namespaces)),
        liveness_port=arguments.liveness_port,
        metrics_port=arguments.metrics_port,
    )
    configure_logging(arguments.log_level, arguments.log_format)
    asyncio.run(run(config))
    return 0


def _crd(_: argparse.Namespace) -> int:
    from mocker_operator.api import crd_yaml

    print(crd_yaml(), end="")
    return 0


def _render(arguments: argparse.Namespace) -> int:
    from mocker_operator.api import parse_spec
    from mocker_operator.reconcile.model import Key
    from mocker_operator.render import RenderSettings, render

    settings = RenderSettings(
        image=arguments.worker_image,
        image_pull_policy=arguments.image_pull_policy,
        nats_url=arguments.worker_nats_url or arguments.nats_url,
    )
    for resource in _resources(arguments.file):
        try:
            spec = parse_spec(resource, unknown="forbid")
        except ValueError as error:
            print(f"{arguments.file}: {error}", file=sys.stderr)
            return 1
        metadata = resource["metadata"]
        key = Key(metadata.get("namespace") or "default", metadata["name"])
        manifests = render(key, "", spec, {}, settings)
        print(yaml.safe_dump_all(manifests, explicit_start=True, sort_keys=False), end="")
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    from mocker_operator.api import parse_spec

    complaints = 0
    for path in arguments.files:
        for resource in _resources(path):
            try:
                parse_spec(resource, unknown="forbid")
            except ValueError as error:
                complaints += 1
                print(f"{path}: {error}", file=sys.stderr)
    return 1 if complaints else 0


def _resources(path: Path) -> list[dict[str, Any]]:
    """Return the MockerDeployments of a YAML file; `-` is standard input."""
    text = sys.stdin.read() if str(path) == "-" else path.read_text()
    documents = [item for item in yaml.safe_load_all(text) if isinstance(item, dict)]
    found = [item for item in documents if item.get("kind") == constants.KIND]
    if not found:
        raise InvalidConfig(f"{path}: holds no {constants.KIND}")
    return found
