"""How busy a worker is, for Dynamo's routers: the two forms that they read on NATS core.

Dynamo 0.7 reads a JSON LoadEvent on `namespace.<ns>.kv_metrics`; Dynamo 1.6 a MessagePack
ActiveLoad on the event plane, topic `kv_metrics`.
"""

import msgspec

from mocker_protocol.json_nesting import check_nesting
from mocker_protocol.msgpack_nesting import check_msgpack_nesting

LOAD_TOPIC = "kv_metrics"
TOTAL_SLOTS = 1024
"""What Dynamo's mocker gives as `request_total_slots`, whatever its `max_num_seqs`."""


class WorkerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one rank."""

    data_parallel_rank: int | None
    request_active_slots: int
    request_total_slots: int = TOTAL_SLOTS
    num_requests_waiting: int


class KvStats(msgspec.Struct, frozen=True, kw_only=True):
    """KV cache of one rank."""

    kv_active_blocks: int
    kv_total_blocks: int
    gpu_cache_usage_perc: float
    """0..1, despite its name."""
    gpu_prefix_cache_hit_rate: float
    """0..1."""


class LoadMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What 0.7 calls ForwardPassMetrics; it has nothing to do with those of 1.x."""

    worker_stats: WorkerStats
    kv_stats: KvStats
    spec_decode_stats: None = None


class LoadEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one worker and rank, Dynamo 0.7."""

    worker_id: int
    data: LoadMetrics


class ActiveLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one worker and rank, Dynamo 1.6.

    Routers fill in the other two fields for what they have sent themselves; a worker says only how
    many blocks are held.
    """

    worker_id: int
    dp_rank: int
    active_decode_blocks: int | None = None
    active_prefill_tokens: int | None = None
    kv_used_blocks: int | None


_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
_load_events = msgspec.json.Decoder(LoadEvent)
_active_loads = msgspec.msgpack.Decoder(ActiveLoad)


def encode_load_event(event: LoadEvent) -> bytes:
    """Return the message of Dynamo 0.7."""
    return _json.encode(event)


def decode_load_event(message: bytes) -> LoadEvent:
    """Parse the message of Dynamo 0.7.

    Raises:
        ValueError: if it is none.
    """
    check_nesting(message)
    return _load_events.decode(message)


def encode_active_load(load: ActiveLoad) -> bytes:
    """Return the payload of Dynamo 1.6, to be put into an envelope."""
    return _msgpack.encode(load)


def decode_active_load(payload: bytes) -> ActiveLoad:
    """Parse the payload of Dynamo 1.6.

    Raises:
        ValueError: if it is none.
    """
    check_msgpack_nesting(payload)
    return _active_loads.decode(payload)
