"""`spec.kvEvents`: on which wires the workers publish the changes of their KV caches.

Decode workers publish on none, and workers without prefix caching have nothing to say.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from mocker_operator.api.fields import Struct
from mocker_protocol.engine_args import word


class KvTransport(StrEnum):
    """A wire that KV events take."""

    NATS = "nats"
    ZMQ = "zmq"


class NatsFormat(StrEnum):
    """How KV events are written on NATS."""

    DYNAMO_JETSTREAM = "dynamo-jetstream"
    DYNAMO_EVENT_PLANE = "dynamo-event-plane"


class ZmqFormat(StrEnum):
    """How KV events are written on ZMQ."""

    MAP = "map"
    ARRAY = "array"


def _each_once(items: list[KvTransport]) -> list[KvTransport]:
    if len(set(items)) < len(items):
        raise ValueError("Duplicate value; name each transport once")
    return items


class KvEventsSpec(Struct):
    """Where and how the workers publish KV events."""

    transports: Annotated[
        list[Annotated[KvTransport, word(KvTransport)]], AfterValidator(_each_once)
    ] = Field(
        default_factory=lambda: [KvTransport.NATS],
        max_length=len(KvTransport),
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    """Wires that carry every event, [nats] if absent; none of them means no events."""
    nats_format: Annotated[NatsFormat, word(NatsFormat)] = NatsFormat.DYNAMO_JETSTREAM
    """On NATS: JSON in JetStream as in Dynamo 0.7, or the event plane of Dynamo 1.x."""
    zmq_format: Annotated[ZmqFormat, word(ZmqFormat)] = ZmqFormat.MAP
    """On ZMQ: events as maps (vLLM since 2026) or as positional arrays (before)."""
