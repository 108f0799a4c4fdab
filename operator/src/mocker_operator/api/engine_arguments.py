"""What the engine of one role runs with: the model, `spec.engine` and the role's overrides merged.

The merged arguments are judged by the engine's own model, so the resource and the command line
accept the same combinations. Errors name the field of the resource that is at fault.
"""

from typing import Any

from mocker_operator.api.engine import EngineSpec, field_of_argument, named_arguments
from mocker_operator.api.errors import InvalidSpec
from mocker_operator.api.kv_events import KvTransport
from mocker_operator.api.spec import MockerDeploymentSpec, WorkerRole
from mocker_protocol.engine_args import EngineArgs, InvalidEngineArgs, parse_engine_args

_ROLE_ARGUMENTS = ("worker_type", "is_prefill", "is_decode")
_ZMQ_ARGUMENTS = ("zmq_kv_events_port", "zmq_replay_port")


def engine_arguments(spec: MockerDeploymentSpec, role: WorkerRole) -> EngineArgs:
    """Return the engine arguments of a role that the spec has.

    Raises:
        InvalidSpec: if they contradict each other or the role, or the engine refuses them.
    """
    sources = {"spec.engine": spec.engine, f"spec.{role}.engine": spec.roles[role].engine}
    named: dict[str, Any] = {}
    if spec.model.max_model_len is not None:
        named["max_model_len"] = spec.model.max_model_len
    for engine in sources.values():
        named |= named_arguments(engine)
    extra: dict[str, Any] = {}
    for path, engine in sources.items():
        _refuse_contradictions(path, engine, role, named)
        _refuse_second_ports(path, engine, spec)
        extra |= engine.extra_engine_args
    without_role = {name: value for name, value in extra.items() if name not in _ROLE_ARGUMENTS}
    try:
        return parse_engine_args({**without_role, **named, "worker_type": role})
    except InvalidEngineArgs as error:
        raise _located(error, sources, role) from error


def engine_file(arguments: EngineArgs) -> dict[str, Any]:
    """Return the content of `engine.json`: what was given, without the role (a flag says that)."""
    return arguments.model_dump(mode="json", exclude_unset=True, exclude={"worker_type"})


def _refuse_contradictions(
    path: str, engine: EngineSpec, role: WorkerRole, named: dict[str, Any]
) -> None:
    for name, value in engine.extra_engine_args.items():
        at = f"{path}.extraEngineArgs.{name}"
        if name in named and not _same(value, named[name]):
            raise InvalidSpec(
                at, f"{value!r} contradicts {_field(name)} {named[name]!r}; remove one"
            )
        if reason := _against_role(name, value, role):
            raise InvalidSpec(at, reason)


def _refuse_second_ports(path: str, engine: EngineSpec, spec: MockerDeploymentSpec) -> None:
    if KvTransport.ZMQ not in spec.kv_events.transports:
        return
    for name in _ZMQ_ARGUMENTS:
        if engine.extra_engine_args.get(name) is not None:
            raise InvalidSpec(
                f"{path}.extraEngineArgs.{name}",
                "spec.kvEvents.transports has zmq, which sets the ports; remove one",
            )


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _field(argument: str) -> str:
    return field_of_argument(argument) or "spec.model.maxModelLen"


def _against_role(name: str, value: object, role: WorkerRole) -> str | None:
    """Return why an argument cannot hold for a role; None if it can."""
    if name == "worker_type" and value != role:
        return f"{value!r} contradicts the role {role}; remove it, the role says it"
    if name in ("is_prefill", "is_decode") and value is not (name == f"is_{role}"):
        return f"{value!r} contradicts the role {role}; remove it, the role says it"
    if name == "publish_kv_events" and value is True and role == "decode":
        return "decode workers never publish KV events; set it under spec.prefill.engine"
    return None


def _located(
    error: InvalidEngineArgs, sources: dict[str, EngineSpec], role: WorkerRole
) -> InvalidSpec:
    """Name the field of the resource that the engine's first complaint is about."""
    where, _, reason = str(error).splitlines()[0].partition(": ")
    argument = where.split(",")[0].split(".")[0]
    for path, engine in reversed(sources.items()):
        if argument in engine.extra_engine_args:
            return InvalidSpec(f"{path}.extraEngineArgs.{argument}", reason)
        if argument in named_arguments(engine):
            return InvalidSpec(f"{path}.{field_of_argument(argument)}", reason)
    field = field_of_argument(argument)
    if field is None:
        return InvalidSpec(f"spec.{role}.engine", str(error).splitlines()[0])
    return InvalidSpec(f"spec.{role}.engine.{field}", reason)
