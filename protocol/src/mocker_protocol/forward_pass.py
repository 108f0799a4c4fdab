"""Forward-pass metrics, version 1, and the event-plane envelope that carries them.

One message per forward pass, never per token (Dynamo 1.1+, topic `forward-pass-metrics`,
MessagePack maps). Token counts are tokens, variances are population variances in tokens squared.
"""

import msgspec

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


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """Event-plane envelope of Dynamo 1.x; `payload` holds MessagePack of the event itself."""

    publisher_id: int
    sequence: int
    """From 0 per publisher."""
    published_at: int
    """Unix time in milliseconds."""
    topic: str
    payload: bytes


_encoder = msgspec.msgpack.Encoder()


def encode_forward_pass(
    metrics: ForwardPassMetrics, *, publisher_id: int, sequence: int, published_at_ms: int
) -> bytes:
    """Return the enveloped message as it is published on NATS."""
    return _encoder.encode(
        Envelope(
            publisher_id=publisher_id,
            sequence=sequence,
            published_at=published_at_ms,
            topic=TOPIC,
            payload=_encoder.encode(metrics),
        )
    )


def decode_forward_pass(message: bytes) -> ForwardPassMetrics:
    """Open the envelope and parse the metrics.

    Raises:
        msgspec.DecodeError: if either part is not what it should be (a ValueError).
    """
    envelope = msgspec.msgpack.decode(message, type=Envelope)
    return msgspec.msgpack.decode(envelope.payload, type=ForwardPassMetrics)
