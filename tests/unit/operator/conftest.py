"""A small world for the pure core: a resource, its children as a cluster would show them, pods."""

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mocker_operator.reconcile.model import DecisionState, Key, Observed, Plan
from mocker_operator.reconcile.plan import plan
from mocker_operator.render import RenderSettings
from mocker_protocol.decisions import ScalingDecision

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = RenderSettings("mocker:test", "IfNotPresent", "nats://nats.mocker:4222")


@dataclass
class World:
    """Carries plans out at once, the way an API server and its controllers do in the end."""

    resource: dict[str, Any]
    children: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    decisions: DecisionState | None = field(default_factory=DecisionState)
    held: dict[str, int] = field(default_factory=dict)
    now: datetime = CREATED
    events: list[str] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)

    def look(self) -> Plan:
        observed = Observed(
            copy.deepcopy(self.resource),
            tuple(copy.deepcopy(list(self.children.values()))),
            tuple(copy.deepcopy(self.pods)),
        )
        return plan(observed, self.decisions, self.held, SETTINGS, self.now)

    def step(self) -> Plan:
        """Run one pass; the controllers have not moved yet."""
        self.now += timedelta(seconds=1)
        intent = self.look()
        for manifest in intent.apply:
            self._apply(copy.deepcopy(manifest))
        for ref in intent.delete:
            del self.children[ref.kind, ref.name]
        if intent.status is not None:
            self.resource["status"] = copy.deepcopy(intent.status)
        if intent.acknowledge is not None:
            self.acknowledged.append(intent.acknowledge)
            assert self.decisions is not None
            self.decisions = DecisionState(
                self.decisions.decision,
                self.decisions.invalid,
                self.decisions.written_at,
                intent.acknowledge,
            )
        self.held = dict(intent.held)
        self.events += [event.reason for event in intent.events]
        return intent

    def settle(self) -> None:
        """Run passes and controllers until nothing changes."""
        for _ in range(10):
            before = copy.deepcopy((self.resource, self.children))
            self.step()
            self.roll_out()
            if before == (self.resource, self.children):
                return
        raise AssertionError("the world does not settle")

    def roll_out(self) -> None:
        """Let the Deployment controller and the kubelet do all they have to."""
        self.pods = []
        for child in self.children.values():
            if child["kind"] == "Deployment":
                count = child["spec"]["replicas"]
                child["status"] = {
                    "observedGeneration": child["metadata"]["generation"],
                    "replicas": count,
                    "readyReplicas": count,
                    "updatedReplicas": count,
                }
                self.pods += [self.pod(child["metadata"]["labels"]) for _ in range(count)]

    @staticmethod
    def pod(labels: dict[str, str], phase: str = "Running") -> dict[str, Any]:
        return {"metadata": {"labels": labels}, "status": {"phase": phase}}

    def deployment(self, role: str) -> dict[str, Any]:
        return self.children["Deployment", f"{self.resource['metadata']['name']}-{role}"]

    def replicas(self) -> dict[str, int]:
        return {
            child["metadata"]["labels"]["mocker.dev/role"]: child["spec"]["replicas"]
            for child in self.children.values()
            if child["kind"] == "Deployment"
        }

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(c for c in self.resource["status"]["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def edit(self, **spec: Any) -> None:
        """Change top-level fields of the spec, as `kubectl apply` does; None removes one."""
        merged = {**self.resource["spec"], **spec}
        self.resource["spec"] = {name: value for name, value in merged.items() if value is not None}
        self.resource["metadata"]["generation"] += 1

    def decide(self, decision_id: int, *, age: timedelta = timedelta(0), **counts: int) -> None:
        acknowledged = None if self.decisions is None else self.decisions.acknowledged_id
        self.decisions = DecisionState(
            ScalingDecision(decision_id=decision_id, **counts),
            written_at=self.now - age,
            acknowledged_id=acknowledged,
        )

    def _apply(self, manifest: dict[str, Any]) -> None:
        identity = manifest["kind"], manifest["metadata"]["name"]
        live = self.children.get(identity, {"metadata": {}})
        manifest["metadata"] |= {
            "uid": live["metadata"].get("uid", f"uid-of-{identity[1]}"),
            "generation": live["metadata"].get("generation", 0) + 1,
        }
        if "status" in live:
            manifest["status"] = live["status"]
        self.children[identity] = manifest


@pytest.fixture
def make_world():
    def make(*, name: str = "demo", uid: str = "uid-1", **spec: Any) -> World:
        if "aggregated" not in spec:
            spec = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}, **spec}
        return World(
            {
                "apiVersion": "mocker.dev/v1alpha1",
                "kind": "MockerDeployment",
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "uid": uid,
                    "generation": 1,
                    "creationTimestamp": "2026-01-02T03:04:05Z",
                },
                "spec": {"model": {"name": "m"}, **spec},
            }
        )

    return make


@pytest.fixture
def settings() -> RenderSettings:
    return SETTINGS


@pytest.fixture
def key() -> Key:
    return Key("team", "demo")
