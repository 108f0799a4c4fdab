"""Forward-pass metrics, version 1: one message of the event plane per forward pass.

Never one per token (Dynamo 1.1+, topic `forward-pass-metrics`, MessagePack maps). Token counts are
tokens, variances are population variances in tokens squared.
"""

import msgspec

from mocker_protocol.msgpack_nesting import check_msgpack_nesting

TOPIC = "forward-pass-metrics"


class ScheduledRequests(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass computed. A request with prompt tokens in the pass counts as prefill only."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    """Prompt tokens newly computed in this pass."""
    var_prefill_length: float = 0.0
    """Variance of the whole prompt lengths."""
    sum_prefill_kv_tokens: int = 0
    """Tokens read from the cache, not computed."""
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class QueuedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """What waits after the pass was scheduled. `num_decode_requests` counts preempted requests."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class ForwardPassMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One forward pass of one worker and data-parallel rank."""

    version: int = 1
    worker_id: str
    """Decimal worker id."""
    dp_rank: int = 0
    counter_id: int
    """From 1, one more for each message of this rank."""
    wall_time: float
    """Seconds that the pass took; 0 in a heartbeat."""
    scheduled_requests: ScheduledRequests
    queued_requests: QueuedRequests


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ForwardPassMetrics)


def encode_forward_pass(metrics: ForwardPassMetrics) -> bytes:
    """Return the payload of an event-plane message."""
    return _encoder.encode(metrics)


def decode_forward_pass(payload: bytes) -> ForwardPassMetrics:
    """Parse the payload of an event-plane message.

    Raises:
        ValueError: if it is not what it should be.
    """
    check_msgpack_nesting(payload)
    return _decoder.decode(payload)
