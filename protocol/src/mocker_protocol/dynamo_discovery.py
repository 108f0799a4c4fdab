"""The records by which Dynamo 1.6 finds a worker in etcd, as keys and JSON values.

Its KV router counts blocks of a worker that has all three: an instance, a model card, and for each
rank the source of its KV events. The transport of the instance is where the worker's HTTP server
is; nothing there speaks Dynamo's request plane, and the card names no tokenizer, so that Dynamo's
own frontend offers no model because of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.event_plane import KV_EVENTS_TOPIC
from mocker_protocol.json_nesting import check_nesting
from mocker_protocol.names import GENERATE_ENDPOINT, Component, WorkerType

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

    def records(self) -> list[DiscoveryRecord]:
        """Return the instance, its model card, and the event sources, to be put in this order."""
        return [self._instance(), self._model_card(), *self._event_sources()]

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

    def _instance(self) -> DiscoveryRecord:
        component = self.component
        path = f"{component.namespace}/{component.component}/{GENERATE_ENDPOINT}"
        return DiscoveryRecord(
            f"v1/instances/{path}/{self.worker_id:x}",
            _json(
                {
                    "type": "Endpoint",
                    **self._names(),
                    "transport": {"tcp": f"{self.address}/{self.worker_id:x}/{path}"},
                    "device_type": "cpu",
                    "request_plane_codec": "msgpack",
                }
            ),
        )

    def _model_card(self) -> DiscoveryRecord:
        component, args = self.component, self.args
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
                "enable_local_indexer": False,
                "kv_event_publishing_enabled": bool(self.publisher_ids),
            },
        }
        path = f"{component.namespace}/{component.component}/{GENERATE_ENDPOINT}"
        return DiscoveryRecord(
            f"v1/mdc/{path}/{self.worker_id:x}",
            _json({"type": "Model", **self._names(), "card_json": card}),
        )

    def _event_sources(self) -> list[DiscoveryRecord]:
        component = self.component
        endpoint = {
            "namespace": component.namespace,
            "component": component.component,
            "name": GENERATE_ENDPOINT,
        }
        return [
            DiscoveryRecord(
                f"{self.sources_prefix}{publisher_id:x}",
                _json(
                    {
                        "type": "EventSource",
                        "scope": {"kind": "endpoint", "endpoint": endpoint},
                        "topic": KV_EVENTS_TOPIC,
                        "publisher_id": publisher_id,
                        "metadata": {
                            "kv_state_endpoint": endpoint,
                            "worker": {"worker_id": self.worker_id, "dp_rank": dp_rank},
                            "publisher_id": publisher_id,
                            "recovery_target": None,
                        },
                    }
                ),
            )
            for dp_rank, publisher_id in enumerate(self.publisher_ids)
        ]

    def _names(self) -> dict[str, Any]:
        return {
            "namespace": self.component.namespace,
            "component": self.component.component,
            "endpoint": GENERATE_ENDPOINT,
            "instance_id": self.worker_id,
        }


def _json(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value)
