"""Where KV events go on ZMQ: vLLM's `--kv-events-config`, and Dynamo's engine arguments for it."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.zmq_events import EventFormat
from mocker_worker.events.zmq_address import MAX_PORT, Address

FLAG = "--kv-events-config"
DEFAULT_ENDPOINT = "tcp://*:5557"
PLACEHOLDERS = ("pod_ip", "pod_name", "port", "model")
"""What a topic may hold in braces; `port` is that of the worker's HTTP server."""
_MAX_COUNT = 10_000_000
_EXAMPLE = '{"enable_kv_cache_events": true}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqOptions:
    """One worker's KV events on ZMQ; names and defaults are vLLM's, `format` is ours."""

    endpoint: str = DEFAULT_ENDPOINT
    replay_endpoint: str | None = None
    """None: no replay."""
    buffer_steps: int = 10_000
    """Messages of each rank that can be replayed."""
    hwm: int = 100_000
    """Messages that wait for a slow subscriber before it loses some."""
    max_queue_size: int = 100_000
    """Understood, but has no effect: events are sent at once and never queue before the socket."""
    topic: str = ""
    format: EventFormat = EventFormat.MAP

    def check_ranks(self, dp_size: int) -> None:
        """See that every rank has ports of its own.

        Raises:
            ValueError: naming the endpoint that does not fit.
        """
        taken: dict[int, str] = {}
        for name in ("endpoint", "replay_endpoint"):
            text = getattr(self, name)
            if text is None or (address := Address.parse(text)).port == 0:
                continue
            if address.port + dp_size - 1 > MAX_PORT:
                raise ValueError(
                    f"{name}: {dp_size} ranks end beyond port {MAX_PORT}; use a lower port"
                )
            if name == "endpoint" and not address.is_bound:
                continue
            for port in range(address.port, address.port + dp_size):
                if port in taken:
                    raise ValueError(
                        f"{name}: a rank needs port {port}, which endpoint has taken; "
                        f"move it {dp_size} or more ports away from that of endpoint"
                    )
                taken[port] = name


def parse_zmq_options(text: str) -> ZmqOptions | None:
    """Read the JSON of `--kv-events-config`; None if it turns events off.

    Raises:
        ValueError: naming the field that is wrong, and the remedy.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON such as {_EXAMPLE}: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"must be a JSON object such as {_EXAMPLE}")
    enabled = _flag(data.pop("enable_kv_cache_events", False))
    publisher = data.pop("publisher", None)
    if publisher not in (None, "null", "zmq"):
        raise ValueError(f'publisher: must be "zmq" or "null", not {publisher!r}')
    if unknown := sorted(data.keys() - _READERS.keys()):
        known = ", ".join(("enable_kv_cache_events", "publisher", *_READERS))
        raise ValueError(f"{', '.join(unknown)}: unknown; known are {known}")
    options = ZmqOptions(**{name: _READERS[name](name, value) for name, value in data.items()})
    return options if enabled and publisher != "null" else None


def zmq_options(by_flag: ZmqOptions | None, args: EngineArgs) -> ZmqOptions | None:
    """Return what the flag says, or else Dynamo's engine arguments; None if neither was given.

    Raises:
        ValueError: if they contradict each other, or the ranks do not fit the ports; it names the
            flag or the arguments.
    """
    by_ports = _options_of_ports(args.zmq_kv_events_port, args.zmq_replay_port)
    if by_flag is not None and by_ports is not None:
        raise ValueError(
            f"zmq_kv_events_port: contradicts {FLAG}, which says where KV events go; remove one"
        )
    options = by_flag or by_ports
    if options is not None:
        try:
            options.check_ranks(args.dp_size)
        except ValueError as error:
            source = FLAG if by_flag else "zmq_kv_events_port, zmq_replay_port"
            raise ValueError(f"{source}: {error}") from error
    return options


def _options_of_ports(events_port: int | None, replay_port: int | None) -> ZmqOptions | None:
    if events_port is None:
        if replay_port is not None:
            raise ValueError("zmq_replay_port: needs zmq_kv_events_port; add it or remove both")
        return None
    return ZmqOptions(
        endpoint=f"tcp://0.0.0.0:{events_port}",
        replay_endpoint=None if replay_port is None else f"tcp://0.0.0.0:{replay_port}",
    )


def topic_of(template: str, values: dict[str, str | None]) -> str:
    """Fill the placeholders of a topic in.

    Raises:
        ValueError: if one of them is not known here.
    """

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None:
            raise ValueError(
                f"{FLAG}: topic: {{{match[1]}}} is not known here; set the variable POD_NAME, or "
                "remove it from the topic"
            )
        return value

    return re.sub(r"\{([^{}]*)\}", fill, template)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"enable_kv_cache_events: must be true or false, not {value!r}")
    return value


def _endpoint(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be a string, not {value!r}")
    try:
        Address.parse(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return value


def _replay_endpoint(name: str, value: object) -> str | None:
    if value is None or value == "":
        return None
    return _endpoint(name, value)


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{name}: must be an integer of 0..{_MAX_COUNT}, not {value!r}")
    return value


def _topic(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be a string, not {value!r}")
    for placeholder in re.findall(r"\{([^{}]*)\}", value):
        if placeholder not in PLACEHOLDERS:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"{name}: {{{placeholder}}} is unknown; known are {known}")
    return value


def _format(name: str, value: object) -> EventFormat:
    try:
        return EventFormat(str(value))
    except ValueError:
        raise ValueError(f'{name}: must be "map" or "array", not {value!r}') from None


_READERS: dict[str, Callable[[str, object], Any]] = {
    "endpoint": _endpoint,
    "replay_endpoint": _replay_endpoint,
    "buffer_steps": _count,
    "hwm": _count,
    "max_queue_size": _count,
    "topic": _topic,
    "format": _format,
}
