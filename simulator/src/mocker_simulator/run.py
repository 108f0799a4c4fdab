"""`mocker-simulator run`: from arguments to an outcome."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mocker_protocol.engine_args import EngineArgs, load_engine_args
from mocker_protocol.names import WorkerType
from mocker_simulator.engine_flags import engine_flags, read_text
from mocker_simulator.fleet import Fleet, FleetSpec
from mocker_simulator.kv_routing import KvRouter
from mocker_simulator.manifest import Deployment, load_manifest, read_deployment
from mocker_simulator.routing import Router, RoutingMode, least_loaded, round_robin
from mocker_simulator.synthetic import SyntheticLoad, generate
from mocker_simulator.traces import read_trace
from mocker_simulator.virtual_worker import VirtualWorker
from mocker_simulator.workload import Workload

_ROUTERS: dict[RoutingMode, Callable[[list[VirtualWorker]], Router]] = {
    RoutingMode.ROUND_ROBIN: round_robin,
    RoutingMode.LEAST_LOADED: least_loaded,
}
_PROMPT_FLAGS = ("isl", "osl", "shared_prefix_ratio", "prefix_groups")


class InvalidUsage(ValueError):
    """Flags that contradict each other; the text names them."""


def make_fleet(arguments: argparse.Namespace, *, sampling: bool) -> Fleet:
    """Return the fleet that the flags describe, with its workload.

    Raises:
        InvalidUsage: if flags contradict each other.
        InvalidEngineArgs: if an engine argument is wrong.
        InvalidManifest: if the deployment is.
        InvalidTrace: if the trace is.
        OSError: if a file cannot be read.
    """
    deployment = _deployment(arguments.deployment)
    spec = fleet_spec(arguments, deployment)
    routing = arguments.routing or (deployment.routing if deployment else RoutingMode.ROUND_ROBIN)
    return Fleet(
        spec,
        make_workload(arguments, spec.entry.block_size),
        make_router=_make_router(RoutingMode(routing), arguments.routing_seed),
        concurrency=arguments.concurrency,
        sampling=sampling,
    )


def fleet_spec(arguments: argparse.Namespace, deployment: Deployment | None) -> FleetSpec:
    """Return the engines; flags outweigh the manifest.

    Raises:
        InvalidUsage: if flags contradict each other.
        InvalidEngineArgs: if an engine argument is wrong.
    """
    if arguments.workers is not None and (arguments.prefill or arguments.decode):
        raise InvalidUsage("--workers is for aggregated workers: leave out --prefill and --decode")
    replicas = dict(deployment.replicas) if deployment else {}
    if arguments.workers is not None:
        replicas = {WorkerType.AGGREGATED: arguments.workers}
    elif arguments.prefill is not None or arguments.decode is not None:
        replicas = {
            WorkerType.PREFILL: arguments.prefill or 0,
            WorkerType.DECODE: arguments.decode or 0,
        }
    replicas = replicas or {WorkerType.AGGREGATED: 1}
    if any(count < 1 for count in replicas.values()):
        raise InvalidUsage("a fleet needs at least one worker of each of its roles")
    if set(replicas) == {WorkerType.AGGREGATED}:
        args = _engine(arguments, deployment, WorkerType.AGGREGATED)
        return FleetSpec(args, replicas[WorkerType.AGGREGATED])
    if set(replicas) != {WorkerType.PREFILL, WorkerType.DECODE}:
        raise InvalidUsage("a fleet is aggregated, or has prefill and decode workers")
    prefill, decode = (_engine(arguments, deployment, role) for role in replicas)
    if prefill.block_size != decode.block_size:
        raise InvalidUsage("prefill and decode workers need the same block_size")
    return FleetSpec(prefill, replicas[WorkerType.PREFILL], decode, replicas[WorkerType.DECODE])


def make_workload(arguments: argparse.Namespace, block_size: int) -> Workload:
    """Return the trace or the synthetic load."""
    if arguments.trace is not None:
        if given := [name for name in _PROMPT_FLAGS if getattr(arguments, name) is not None]:
            flags = ", ".join("--" + name.replace("_", "-") for name in given)
            raise InvalidUsage(f"--trace brings its own prompts: leave out {flags}")
        workload = read_trace(
            Path(arguments.trace),
            limit=arguments.limit,
            trace_block_size=arguments.trace_block_size,
        )
        ratio = arguments.arrival_speedup
        return workload if ratio == 1 else workload.sped_up(ratio)
    if arguments.isl is None or arguments.osl is None:
        raise InvalidUsage("give --trace FILE, or --isl and --osl for a synthetic load")
    timed = arguments.concurrency is None
    if timed and arguments.interval_ms is None and arguments.rate is None:
        raise InvalidUsage("give --interval-ms, --rate or --concurrency with a synthetic load")
    requests = arguments.requests if arguments.limit is None else arguments.limit
    interval_ms = 1000 / arguments.rate if arguments.rate else arguments.interval_ms or 0.0
    load = SyntheticLoad(
        arguments.isl,
        arguments.osl,
        requests,
        interval_ms=interval_ms,
        poisson=arguments.rate is not None,
        shared_prefix_ratio=arguments.shared_prefix_ratio or 0.0,
        prefix_groups=arguments.prefix_groups or 1,
        seed=arguments.load_seed,
    )
    return generate(load, block_size)


def _make_router(mode: RoutingMode, seed: int) -> Callable[[list[VirtualWorker]], Router]:
    return partial(KvRouter, seed=seed) if mode is RoutingMode.KV else _ROUTERS[mode]


def _deployment(file: str | None) -> Deployment | None:
    return None if file is None else read_deployment(load_manifest(Path(file)))


def _engine(
    arguments: argparse.Namespace, deployment: Deployment | None, role: WorkerType
) -> EngineArgs:
    given: dict[str, Any] = dict(deployment.engine.get(role, {})) if deployment else {}
    given |= engine_flags(arguments)
    given["worker_type"] = role.value
    file = arguments.extra_engine_args
    args = load_engine_args(read_text(Path(file)) if file else "{}", given)
    return args.model_copy(update={"publish_kv_events": False})
