"""Flags of `serve` for the HTTP server, and the options that they make."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from mocker_worker.config import FingerprintMode, Mode, ServerOptions
from mocker_worker.jitter import MAX_SHARE
from mocker_worker.server.faults import FaultKind, fault_kinds
from mocker_worker.settings import boolean, limit, names, number, one_of, setting

_QUEUE_FULL_STATUSES = (503, 429)
_METRICS_DIALECTS = ("vllm", "vllm-legacy", "sglang")
_API_KEY_VARIABLE = "VLLM_API_KEY"


def add_server_flags(parser: argparse._ActionsContainer, environment: Mapping[str, str]) -> None:
    """Add the flags."""
    setting(
        parser,
        environment,
        "--mode",
        one_of(Mode),
        default=Mode.RANDOM,
        metavar="random|echo",
        help="what answers consist of: random words, or the prompt (default: random)",
    )
    _add_limits(parser, environment)
    setting(
        parser,
        environment,
        "--tokenizer",
        _tokenizer_path,
        metavar="PATH",
        help="Hugging Face tokenizer.json or its directory (default: built in)",
    )
    _add_access(parser, environment)
    _add_fingerprint(parser, environment)
    _add_disturbances(parser, environment)
    setting(
        parser,
        environment,
        "--metrics-dialects",
        _dialects,
        default=frozenset({"vllm"}),
        metavar="NAME,...",
        help="names of metrics: vllm, vllm-legacy, sglang (default: vllm)",
    )


def _add_limits(parser: argparse._ActionsContainer, environment: Mapping[str, str]) -> None:
    for flag, what in (("reqs", "requests"), ("tokens", "their prompt tokens")):
        setting(
            parser,
            environment,
            f"--max-num-queued-{flag}",
            limit,
            metavar="N",
            help=f"{what} that may wait in the queue (default: any number)",
        )
    setting(
        parser,
        environment,
        "--queue-full-status",
        one_of(_QUEUE_FULL_STATUSES),
        default=_QUEUE_FULL_STATUSES[0],
        metavar="503|429",
        help="HTTP status when the queue is full (default: 503)",
    )


def _add_access(parser: argparse._ActionsContainer, environment: Mapping[str, str]) -> None:
    inherited = {"MOCKER_API_KEY": environment.get(_API_KEY_VARIABLE, "")}
    setting(
        parser,
        {**inherited, **environment},
        "--api-key",
        names,
        default=(),
        metavar="KEY,...",
        help=f"bearer tokens that /v1 takes; also {_API_KEY_VARIABLE}, safer than a flag",
    )
    setting(
        parser,
        environment,
        "--enable-request-id-headers",
        boolean,
        default=False,
        action=argparse.BooleanOptionalAction,
        help="answer with X-Request-Id",
    )


def _add_fingerprint(parser: argparse._ActionsContainer, environment: Mapping[str, str]) -> None:
    setting(
        parser,
        environment,
        "--fingerprint-mode",
        one_of(FingerprintMode),
        default=FingerprintMode.FULL,
        metavar="|".join(FingerprintMode),
        help="what the system_fingerprint of answers is (default: full)",
    )
    setting(
        parser,
        environment,
        "--fingerprint-value",
        metavar="TEXT",
        help="that of mode custom",
    )


def _add_disturbances(parser: argparse._ActionsContainer, environment: Mapping[str, str]) -> None:
    setting(
        parser,
        environment,
        "--failure-injection-rate",
        number(0, 100),
        default=0.0,
        metavar="PERCENT",
        help="share of the requests for tokens that fail (default: 0)",
    )
    setting(
        parser,
        environment,
        "--failure-types",
        lambda text: tuple(map(str, fault_kinds(names(text)))),
        default=(),
        metavar="KIND,...",
        help=f"how they fail: {', '.join(FaultKind)} (default: all but the last two)",
    )
    setting(
        parser,
        environment,
        "--latency-jitter",
        number(0, MAX_SHARE),
        default=0.0,
        metavar="SHARE",
        help="standard deviation of pass times, 0 to 1 of each (default: 0)",
    )


def server_options(arguments: argparse.Namespace) -> ServerOptions:
    """Return the options that the flags ask for."""
    return ServerOptions(
        mode=arguments.mode,
        max_num_queued_reqs=arguments.max_num_queued_reqs,
        max_num_queued_tokens=arguments.max_num_queued_tokens,
        queue_full_status=arguments.queue_full_status,
        api_keys=arguments.api_key,
        request_id_headers=arguments.enable_request_id_headers,
        fingerprint_mode=arguments.fingerprint_mode,
        fingerprint_value=arguments.fingerprint_value,
        metrics_dialects=arguments.metrics_dialects,
        tokenizer_path=arguments.tokenizer,
        failure_rate_percent=arguments.failure_injection_rate,
        failure_types=arguments.failure_types,
        latency_jitter=arguments.latency_jitter,
    )


def _tokenizer_path(text: str) -> Path:
    path = Path(text)
    if not path.is_file() and not (path / "tokenizer.json").is_file():
        raise ValueError(f"no tokenizer at {text!r}; name a tokenizer.json or its directory")
    return path


def _dialects(text: str) -> frozenset[str]:
    return frozenset(map(one_of(_METRICS_DIALECTS), names(text))) or frozenset({"vllm"})
