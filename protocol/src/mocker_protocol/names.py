"""Dynamo's names on the wire, derived from Kubernetes' names.

One worker is `namespace/component/endpoint` plus a 64-bit id in every event, metric and
registration (NVIDIA Dynamo 0.7 to 1.6). The Dynamo namespace of a deployment is
`<kubernetes namespace>-<deployment name>`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

import xxhash

GENERATE_ENDPOINT = "generate"
KV_QUERY_ENDPOINT_PREFIX = "worker_kv_query_source_"
"""The publisher id in hex completes the name of the endpoint that answers recovery queries."""


class WorkerType(StrEnum):
    """Part that a worker plays (`worker_type` of Dynamo's MockEngineArgs)."""

    AGGREGATED = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def component(self) -> str:
        """Dynamo component: `prefill` for prefill workers, `backend` for all others."""
        return "prefill" if self is WorkerType.PREFILL else "backend"


def dynamo_namespace(kubernetes_namespace: str, deployment: str) -> str:
    """Return the Dynamo namespace of a MockerDeployment."""
    return f"{kubernetes_namespace}-{deployment}"


def worker_id_from_uid(uid: str) -> int:
    """Return the worker id of a pod: XXH3-64 of its uid, so 0..2**64-1 and stable for its life."""
    return xxhash.xxh3_64_intdigest(uid.encode())


@dataclass(frozen=True, slots=True)
class Component:
    """A Dynamo component and the NATS names that follow from it."""

    namespace: str
    component: str

    @property
    def kv_event_stream(self) -> str:
        """JetStream stream of the component's KV events (Dynamo 0.7).

        `namespace.NS.component.COMP.kv_events` in lower case, every character outside
        `a-z0-9-_` replaced by `_`, a leading `_` stripped, then `_` replaced by `-`.
        """
        name = f"namespace.{self.namespace}.component.{self.component}.kv_events".lower()
        return re.sub(r"[^a-z0-9_-]", "_", name).lstrip("_").replace("_", "-")

    @property
    def kv_event_subject(self) -> str:
        """Subject that workers publish KV events on."""
        return f"{self.kv_event_stream}.queue"

    def endpoint_subject(self, topic: str, endpoint: str = GENERATE_ENDPOINT) -> str:
        """Subject of an event-plane topic at endpoint scope (Dynamo 1.6).

        Segments are percent-encoded outside `[A-Za-z0-9_-]`.
        """
        parts = ("namespace", self.namespace, "component", self.component, "endpoint", endpoint)
        return ".".join([*(_percent_encoded(part) for part in parts), topic])

    def namespace_subject(self, topic: str) -> str:
        """Subject of a topic that all components of the namespace share (Dynamo 0.7)."""
        return f"namespace.{_percent_encoded(self.namespace)}.{topic}"


def _percent_encoded(segment: str) -> str:
    return re.sub(
        rb"[^A-Za-z0-9_-]", lambda match: b"%%%02X" % match.group()[0], segment.encode()
    ).decode()
