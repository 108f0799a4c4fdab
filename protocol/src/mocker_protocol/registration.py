"""How workers make themselves known to frontends: one record per worker in a key-value bucket.

A worker puts its record when it can answer and again at every heartbeat, puts it as `draining`
when it must go, and deletes it when it is gone. A record that was not renewed for
`EXPIRY_S` belongs to a worker that died without a word.
"""

from enum import StrEnum

import msgspec

from mocker_protocol.json_nesting import check_nesting
from mocker_protocol.names import GENERATE_ENDPOINT, WorkerType

BUCKET = "mocker-workers"
HEARTBEAT_S = 2.0
EXPIRY_S = 10.0


class WorkerState(StrEnum):
    """Whether new requests may be sent to a worker."""

    READY = "ready"
    DRAINING = "draining"


class WorkerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker is and what it serves."""

    worker_id: int
    namespace: str
    """Dynamo namespace."""
    worker_type: WorkerType
    url: str
    """Base URL of its HTTP server, such as `http://10.244.0.7:8000`."""
    model: str
    """Served model name."""
    block_size: int
    num_gpu_blocks: int
    max_num_seqs: int | None
    dp_size: int = 1
    state: WorkerState = WorkerState.READY
    endpoint: str = GENERATE_ENDPOINT
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens; None in records of workers that do not say."""

    @property
    def key(self) -> str:
        """Key in the bucket: `<namespace>.<component>.<worker id in hex>`."""
        return f"{self.namespace}.{self.worker_type.component}.{self.worker_id:x}"

    def encode(self) -> bytes:
        """Return the record's JSON."""
        return msgspec.json.encode(self)


def watch_filter(namespace: str) -> str:
    """Return the key filter that matches all workers of a Dynamo namespace."""
    return f"{namespace}.>"


def decode_registration(payload: bytes) -> WorkerRegistration:
    """Parse a record.

    Raises:
        ValueError: if it is not one.
    """
    check_nesting(payload)
    return msgspec.json.decode(payload, type=WorkerRegistration)
