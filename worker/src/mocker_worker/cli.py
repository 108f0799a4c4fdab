"""Command line of the worker: `serve` runs one, `events` shows what workers publish.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import asyncio
import logging
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from mocker_protocol import __version__
from mocker_protocol.engine_args import (
    EngineArgs,
    InvalidEngineArgs,
    KvTransferTiming,
    PreemptionMode,
    PrefixCachingHashAlgo,
    SchedulingPolicy,
    load_engine_args,
)
from mocker_protocol.names import Component, WorkerType
from mocker_protocol.timing_profile import profile_from_json, profile_from_npz
from mocker_worker import log
from mocker_worker.config import EventOptions, NatsFormat, WorkerConfig
from mocker_worker.events.zmq_options import parse_zmq_options, zmq_options
from mocker_worker.server.flags import add_server_flags, server_options
from mocker_worker.settings import (
    checked,
    count,
    model_name,
    namespace,
    nats_url,
    one_of,
    port,
    seconds,
    setting,
    stray_variables,
    urls,
)
from mocker_worker.startup import cheap_imports

DEFAULT_NATS_URL = "nats://localhost:4222"
DEFAULT_NAMESPACE = "dynamo"
_LOG_VARIABLES = ("MOCKER_LOG_LEVEL", "MOCKER_LOG_FORMAT")

_ENGINE_FLAGS: Mapping[str, str] = {
    "num_gpu_blocks_override": "num_gpu_blocks",
    "block_size": "block_size",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "preemption_mode": "preemption_mode",
    "speedup_ratio": "speedup_ratio",
    "decode_speedup_ratio": "decode_speedup_ratio",
    "data_parallel_size": "dp_size",
    "startup_time": "startup_time",
    "worker_type": "worker_type",
    "seed": "seed",
    "scheduling_policy": "scheduling_policy",
    "prefix_caching_hash_algo": "prefix_caching_hash_algo",
}
"""Flag (as argparse stores it) to engine argument; a flag that is not given is None."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = _parser(os.environ).parse_args(argv)
    try:
        log.configure(os.environ)
        code: int = arguments.run(arguments)
    except (ValueError, OSError) as error:
        print(f"mocker-worker: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        return 1
    return code


def engine_args(arguments: argparse.Namespace) -> EngineArgs:
    """Merge the flags that were given with the file of `--extra-engine-args`.

    Raises:
        InvalidEngineArgs: naming what is wrong, or both sides of a contradiction.
    """
    given = {
        name: value
        for flag, name in _ENGINE_FLAGS.items()
        if (value := getattr(arguments, flag)) is not None
    }
    if arguments.planner_profile_data is not None:
        given["timing_model"] = _read_profile(arguments.planner_profile_data)
    path: Path | None = arguments.extra_engine_args
    try:
        text = path.read_text(encoding="utf-8") if path is not None else "{}"
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidEngineArgs(f"--extra-engine-args {path}: cannot be read: {error}") from error
    args = load_engine_args(text, given)
    if (
        args.kv_transfer_ms_per_token
        and args.kv_transfer_timing_mode is KvTransferTiming.DESTINATION_MISSING
    ):
        raise InvalidEngineArgs(
            "kv_transfer_timing_mode: destination_missing is for the simulator alone, as a prefill "
            "worker does not know what the decode worker has; use full_prompt"
        )
    return args


def _read_profile(path: Path) -> dict[str, object]:
    """Read an NPZ file, or a directory with the profiler's raw JSON files."""
    try:
        if path.is_dir():
            files = path / "prefill_raw_data.json", path / "decode_raw_data.json"
            return profile_from_json(*(file.read_text(encoding="utf-8") for file in files))
        return profile_from_npz(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidEngineArgs(
            f"--planner-profile-data {path}: cannot be read: {error}"
        ) from error


def worker_config(arguments: argparse.Namespace, environment: Mapping[str, str]) -> WorkerConfig:
    """Complete the flags of `serve` from the environment."""
    args = engine_args(arguments)
    return WorkerConfig(
        args=args,
        model_name=arguments.model_name,
        host=arguments.host,
        port=arguments.port,
        advertised_host=environment.get("POD_IP") or "127.0.0.1",
        nats_url=None if arguments.no_nats else arguments.nats_url,
        namespace=arguments.namespace,
        worker_uid=arguments.worker_uid or environment.get("POD_UID") or str(uuid.uuid4()),
        pod_name=environment.get("POD_NAME") or None,
        pod_namespace=environment.get("POD_NAMESPACE") or None,
        drain_timeout_s=arguments.drain_timeout_s,
        drain_grace_s=arguments.drain_grace_s,
        server=server_options(arguments),
        events=EventOptions(
            nats_format=arguments.kv_events_nats_format,
            zmq=zmq_options(arguments.kv_events_config, args),
            etcd_endpoints=arguments.etcd_endpoints,
            recovery_port=arguments.kv_recovery_port,
        ),
    )


def _serve(arguments: argparse.Namespace) -> int:
    config = worker_config(arguments, os.environ)
    known = (*_LOG_VARIABLES, *arguments.variables)
    for line in stray_variables(os.environ, variables=known, flags=vars(arguments)):
        logging.getLogger(__name__).warning(line)
    if arguments.print_engine_args:
        print(config.args.model_dump_json(indent=2))
        return 0
    with cheap_imports():
        import uvloop

        from mocker_worker.serve import serve

        if config.nats_url is not None:
            import mocker_worker.events.nats_link
        if config.events.zmq is not None:
            import mocker_worker.events.zmq_publisher  # noqa: F401 - the worker will need them

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config))
    return 0


def _events(arguments: argparse.Namespace) -> int:
    return asyncio.run(_print_events(arguments))


async def _print_events(arguments: argparse.Namespace) -> int:
    from mocker_worker.events.tail import EventReader, Seen, as_json, as_text

    names = [arguments.component] if arguments.component else ["prefill", "backend"]
    as_line = as_json if arguments.output == "json" else as_text
    shown = 0

    def show(seen: Seen) -> bool:
        nonlocal shown
        shown += 1
        if arguments.count is None or shown <= arguments.count:
            print(as_line(seen), flush=True)
        return arguments.count is None or shown < arguments.count

    reader = EventReader(
        show,
        nats_format=arguments.format,
        from_start=arguments.from_start,
        follow=arguments.follow,
    )
    await reader.run(arguments.nats_url, [Component(arguments.namespace, name) for name in names])
    return 0


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mocker-worker", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run a worker"), environment)
    _add_events(commands.add_parser("events", help="print KV events"), environment)
    return parser


def _add_nats(parser: argparse._ActionsContainer, environment: Mapping[str, str]) -> None:
    setting(
        parser,
        environment,
        "--nats-url",
        nats_url,
        default=DEFAULT_NATS_URL,
        variable="NATS_SERVER",
        metavar="URL",
        help=f"NATS server (default: {DEFAULT_NATS_URL})",
    )


def _add_namespace(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    setting(
        parser,
        environment,
        "--namespace",
        namespace,
        default=DEFAULT_NAMESPACE,
        variable="DYN_NAMESPACE",
        help=f"Dynamo namespace (default: {DEFAULT_NAMESPACE})",
    )


def _add_serve(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    parser.set_defaults(run=_serve)
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=checked(port), default=8000, help="0 takes any free port")
    parser.add_argument(
        "--model-name",
        type=checked(model_name),
        default="mock",
        metavar="NAME",
        help="served model",
    )
    nats = parser.add_mutually_exclusive_group()
    _add_nats(nats, environment)
    nats.add_argument("--no-nats", action="store_true", help="no events, no registration")
    _add_namespace(parser, environment)
    parser.add_argument("--worker-uid", metavar="UID", help="default: POD_UID, else random")
    parser.add_argument(
        "--drain-timeout-s",
        type=checked(seconds),
        default=120.0,
        metavar="S",
        help="longest time after SIGTERM for requests to end (default: 120)",
    )
    parser.add_argument(
        "--drain-grace-s",
        type=checked(seconds),
        default=2.0,
        metavar="S",
        help="least time to accept after SIGTERM (default: 2)",
    )
    add_server_flags(parser.add_argument_group("HTTP server"), environment)
    _add_kv_events(parser.add_argument_group("KV events"), environment)
    engine = parser.add_argument_group("engine", "flags that are not given keep defaults")
    _add_engine(engine)
    _add_engine_word(engine, environment, "--scheduling-policy", SchedulingPolicy)
    _add_engine_word(engine, environment, "--prefix-caching-hash-algo", PrefixCachingHashAlgo)


def _add_engine_word(
    parser: argparse._ArgumentGroup,
    environment: Mapping[str, str],
    flag: str,
    words: type[StrEnum],
) -> None:
    known = [str(word) for word in words]
    setting(
        parser,
        environment,
        flag,
        one_of(known),
        metavar="|".join(known),
        help=f"(default: {known[0]})",
    )


def _add_kv_events(parser: argparse._ArgumentGroup, environment: Mapping[str, str]) -> None:
    setting(
        parser,
        environment,
        "--kv-events-nats-format",
        one_of(NatsFormat),
        default=NatsFormat.JETSTREAM,
        metavar="FORMAT",
        help=f"{', '.join(NatsFormat)} (default: {NatsFormat.JETSTREAM})",
    )
    setting(
        parser,
        environment,
        "--etcd-endpoints",
        urls,
        default=(),
        variable="ETCD_ENDPOINTS",
        metavar="URLS",
        help="etcd by which Dynamo discovers workers, separated by commas (default: none)",
    )
    setting(
        parser,
        environment,
        "--kv-recovery-port",
        port,
        default=0,
        metavar="PORT",
        help="where Dynamo's KV routers ask for older blocks (default: any free port)",
    )
    setting(
        parser,
        environment,
        "--kv-events-config",
        parse_zmq_options,
        metavar="JSON",
        help="KV events on ZMQ, in vLLM's words, such as "
        '\'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}\'',
    )


def _add_engine(parser: argparse._ArgumentGroup) -> None:
    role = parser.add_mutually_exclusive_group()
    for word in (WorkerType.PREFILL, WorkerType.DECODE):
        role.add_argument(
            f"--is-{word}-worker", dest="worker_type", action="store_const", const=word
        )
    parser.add_argument("--extra-engine-args", type=Path, metavar="FILE", help="JSON file")
    parser.add_argument(
        "--print-engine-args", action="store_true", help="print the merged arguments and exit"
    )
    parser.add_argument("--speedup-ratio", type=float, help="0: no simulated delay at all")
    parser.add_argument("--decode-speedup-ratio", type=float)
    parser.add_argument("--num-gpu-blocks-override", type=int, metavar="N")
    parser.add_argument("--block-size", type=int, metavar="TOKENS")
    parser.add_argument("--max-model-len", type=int, metavar="TOKENS")
    parser.add_argument("--max-num-seqs", type=int, metavar="N")
    parser.add_argument("--max-num-batched-tokens", type=int, metavar="TOKENS")
    boolean = argparse.BooleanOptionalAction
    parser.add_argument("--enable-prefix-caching", action=boolean, default=None)
    parser.add_argument("--enable-chunked-prefill", action=boolean, default=None)
    parser.add_argument("--preemption-mode", choices=[str(mode) for mode in PreemptionMode])
    parser.add_argument("--data-parallel-size", type=int, metavar="N")
    parser.add_argument("--startup-time", type=float, metavar="S")
    parser.add_argument(
        "--planner-profile-data",
        type=Path,
        metavar="PATH",
        help="pass times: an NPZ file, or a directory with the profiler's raw JSON",
    )
    parser.add_argument("--seed", type=int)


def _add_events(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    parser.set_defaults(run=_events)
    _add_nats(parser, environment)
    _add_namespace(parser, environment)
    parser.add_argument("--component", choices=["prefill", "backend"], help="default: both")
    parser.add_argument("--count", type=checked(count), metavar="N", help="exit after N events")
    parser.add_argument("--from-start", action="store_true", help="begin with the oldest event")
    parser.add_argument(
        "--no-follow",
        dest="follow",
        action="store_false",
        help="exit when everything stored was printed",
    )
    formats = [NatsFormat.JETSTREAM, NatsFormat.EVENT_PLANE]
    parser.add_argument("--format", type=NatsFormat, choices=formats, default=formats[0])
    parser.add_argument("--output", choices=["text", "json"], default="text")


if __name__ == "__main__":
    sys.exit(main())
