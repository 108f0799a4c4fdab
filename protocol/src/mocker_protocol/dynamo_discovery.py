"""The records by which Dynamo 1.6 finds a worker in etcd, as keys and JSON values.

Its KV router counts blocks of a worker that has all three: an instance, a model card, and for each
rank the source of its KV events. A source may name an instance of a second endpoint, which tells a
router that starts late what is cached (`request_plane`). The transport of the worker's own instance
is where its HTTP server is; nothing there speaks Dynamo's request plane, and the card names no
tokenizer, so that Dynamo's own frontend offers no model because of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.event_plane import KV_EVENTS_TOPIC
from mocker_protocol.json_nesting import check_nesting
from mocker_protocol.names import (
    GENERATE_ENDPOINT,
    KV_QUERY_ENDPOINT_PREFIX,
    Component,
    WorkerType,
)

LEASE_TTL_S = 10
"""How long the records outlive a worker that died without a word."""

_MODEL_TYPES = {
    WorkerType.AGGREGATED: "Chat | Completions",
    WorkerType.PREFILL: "",
    WorkerType.DECODE: "Chat | Completions",
}
_NEEDS: dict[WorkerType, list[list[str]]] = {
    WorkerType.AGGREGATED: [],
    WorkerType.PREFILL: [["decode"]],
    WorkerType.DECODE: [["prefill"]],
}


class _SourceWorker(msgspec.Struct, frozen=True):
    worker_id: int


class _SourceMetadata(msgspec.Struct, frozen=True):
    worker: _SourceWorker


class _Source(msgspec.Struct, frozen=True):
    publisher_id: int
    metadata: _SourceMetadata


_source_decoder = msgspec.json.Decoder(_Source)


class DiscoveryRecord(NamedTuple):
    """One key of etcd and its value."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredWorker:
    """One worker, as Dynamo is told of it."""

    component: Component
    worker_id: int
    model: str
    address: str
    """`host:port`."""
    args: EngineArgs
    publisher_ids: Sequence[int]
    """Who publishes the KV events of each rank; empty if nobody does."""
    recovery_address: str | None = None
    """`host:port` that answers recovery queries; None: late routers learn only of new events."""

    def records(self) -> list[DiscoveryRecord]:
        """Return the instance, its model card, and the event sources, to be put in this order.

        An endpoint for recovery comes before the sources, which name it.
        """
        sources = [
            record
            for dp_rank, publisher_id in enumerate(self.publisher_ids)
            for record in self._event_source(dp_rank, publisher_id)
        ]
        return [self._instance(GENERATE_ENDPOINT, self.address), self._model_card(), *sources]

    @property
    def sources_prefix(self) -> str:
        """What the keys of the event sources of all workers of the component begin with."""
        component = self.component
        return (
            f"v1/event_sources/namespace/{component.namespace}/component/{component.component}"
            f"/endpoint/{GENERATE_ENDPOINT}/topic/{KV_EVENTS_TOPIC}/"
        )

    def is_left_over(self, record: DiscoveryRecord) -> bool:
        """Whether an event source is that of an earlier process of this worker.

        Of two sources of one rank routers ignore both.
        """
        try:
            check_nesting(record.value)
            source = _source_decoder.decode(record.value)
        except ValueError:
            return False
        is_ours = source.metadata.worker.worker_id == self.worker_id
        return is_ours and source.publisher_id not in self.publisher_ids

    def _instance(self, endpoint: str, address: str) -> DiscoveryRecord:
        path = self._path(endpoint)
        value = {"type": "Endpoint", **self._instance_at(endpoint, address)}
        return DiscoveryRecord(f"v1/instances/{path}/{self.worker_id:x}", _json(value))

    def _instance_at(self, endpoint: str, address: str) -> dict[str, Any]:
        return {
            **self._names(endpoint),
            "transport": {"tcp": f"{address}/{self.worker_id:x}/{self._path(endpoint)}"},
            "device_type": "cpu",
            "request_plane_codec": "msgpack",
        }

    def _model_card(self) -> DiscoveryRecord:
        args = self.args
        context_tokens = args.max_model_len or args.kv_capacity_tokens
        card = {
            "display_name": self.model,
            "slug": self.model,
            "source_path": self.model,
            "context_length": context_tokens,
            "kv_cache_block_size": args.block_size,
            "migration_limit": 0,
            "model_type": _MODEL_TYPES[args.worker_type],
            "model_input": "Tokens",
            "worker_type": str(args.worker_type),
            "needs": _NEEDS[args.worker_type],
            "runtime_config": {
                "context_length": context_tokens,
                "total_kv_blocks": args.num_gpu_blocks,
                "max_num_seqs": args.max_num_seqs,
                "max_num_batched_tokens": args.max_num_batched_tokens,
                "data_parallel_start_rank": 0,
                "data_parallel_size": args.dp_size,
                "enable_local_indexer": self.recovery_address is not None,
                "kv_event_publishing_enabled": bool(self.publisher_ids),
            },
        }
        return DiscoveryRecord(
            f"v1/mdc/{self._path(GENERATE_ENDPOINT)}/{self.worker_id:x}",
            _json({"type": "Model", **self._names(GENERATE_ENDPOINT), "card_json": card}),
        )

    def _event_source(self, dp_rank: int, publisher_id: int) -> Iterator[DiscoveryRecord]:
        target = None
        if self.recovery_address is not None:
            query_endpoint = f"{KV_QUERY_ENDPOINT_PREFIX}{publisher_id:x}"
            target = self._instance_at(query_endpoint, self.recovery_address)
            yield self._instance(query_endpoint, self.recovery_address)
        endpoint = {
            "namespace": self.component.namespace,
            "component": self.component.component,
            "name": GENERATE_ENDPOINT,
        }
        source = {
            "type": "EventSource",
            "scope": {"kind": "endpoint", "endpoint": endpoint},
            "topic": KV_EVENTS_TOPIC,
            "publisher_id": publisher_id,
            "metadata": {
                "kv_state_endpoint": endpoint,
                "worker": {"worker_id": self.worker_id, "dp_rank": dp_rank},
                "publisher_id": publisher_id,
                "recovery_target": target,
            },
        }
        yield DiscoveryRecord(f"{self.sources_prefix}{publisher_id:x}", _json(source))

    def _path(self, endpoint: str) -> str:
        return f"{self.component.namespace}/{self.component.component}/{endpoint}"

    def _names(self, endpoint: str) -> dict[str, Any]:
        return {
            "namespace": self.component.namespace,
            "component": self.component.component,
            "endpoint": endpoint,
            "instance_id": self.worker_id,
        }


def _json(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value)
