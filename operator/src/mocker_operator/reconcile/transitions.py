"""Events: what changed between the observed status and the new one, each said once.

Nothing is remembered between passes. An event follows from the difference of two states, so a
pass that finds nothing new says nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mocker_operator.api.spec import MockerDeploymentSpec, ScalingSource
from mocker_operator.reconcile.conditions import DEGRADED, INVALID_SPEC, READY, SCALING_ACTIVE
from mocker_operator.reconcile.model import Event, EventType, Manifest
from mocker_operator.reconcile.status import observed_conditions
from mocker_operator.scaling.policy import ScalingReason, Verdict, describe


@dataclass(frozen=True, slots=True)
class Step:
    """The scaling of one pass."""

    spec: MockerDeploymentSpec
    verdict: Verdict
    counts: Mapping[str, int]
    """Replicas per worker role from here on."""
    found: Mapping[str, int]
    """`spec.replicas` of the worker Deployments as observed."""


def events(before: Manifest, after: Manifest, step: Step | None) -> tuple[Event, ...]:
    """Return the events of a pass.

    Args:
        before: The observed status.
        after: The new status.
        step: What was scaled; None if the spec is invalid.
    """
    found = list(_condition_events(before, after))
    if step is not None:
        found = [
            *_scaled(step),
            *_held(before, after, step),
            *_decision_events(before, after, step.verdict),
            *found,
        ]
    return tuple(found)


def _condition_events(before: Manifest, after: Manifest) -> Iterator[Event]:
    was, now = observed_conditions(before), observed_conditions(after)
    ready, degraded = now[READY], now[DEGRADED]
    if ready["reason"] == INVALID_SPEC and _changed(was, now, READY):
        yield Event(EventType.WARNING, "InvalidSpec", ready["message"])
    if degraded["status"] == "True" and was.get(DEGRADED, {}).get("status") != "True":
        yield Event(EventType.WARNING, degraded["reason"], degraded["message"])
    if ready["status"] == "True" and was.get(READY, {}).get("status") != "True":
        yield Event(EventType.NORMAL, "Ready", ready["message"])


def _changed(was: Mapping[str, Manifest], now: Mapping[str, Manifest], kind: str) -> bool:
    return any(was.get(kind, {}).get(key) != now[kind][key] for key in ("reason", "message"))


def _scaled(step: Step) -> Iterator[Event]:
    for role, count in step.counts.items():
        old = step.found.get(role, count)
        if old != count:
            reason = "ScaledUp" if count > old else "ScaledDown"
            cause = (
                "" if step.verdict.decision is None else f" by {describe(step.verdict.decision)}"
            )
            yield Event(EventType.NORMAL, reason, f"{role} scaled from {old} to {count}{cause}")


def _held(before: Manifest, after: Manifest, step: Step) -> Iterator[Event]:
    """Say once per generation which replicas of the spec a planner's counts keep from acting."""
    if step.spec.scaling.source is ScalingSource.MANUAL or "observedGeneration" not in before:
        return
    if before["observedGeneration"] == after["observedGeneration"]:
        return
    held = [
        f"{role} stays at {step.counts[role]} although spec.{role}.replicas is {wanted.replicas}"
        for role, wanted in step.spec.roles.items()
        if wanted.replicas != step.counts[role]
    ]
    if held:
        message = f"{', '.join(held)}: spec.scaling.source is planner"
        yield Event(EventType.NORMAL, "ReplicasHeld", message)


def _decision_events(before: Manifest, after: Manifest, verdict: Verdict) -> Iterator[Event]:
    old: dict[str, Any] = before.get("decision") or {}
    new: dict[str, Any] = after.get("decision") or {}
    was, now = observed_conditions(before), observed_conditions(after)
    if verdict.reason is ScalingReason.DECISION_IGNORED and _changed(was, now, SCALING_ACTIVE):
        yield Event(EventType.WARNING, "DecisionIgnored", verdict.message)
    same_id = old.get("observedId") == new.get("observedId")
    if verdict.clamped and not (same_id and old.get("clamped")):
        yield Event(EventType.WARNING, "DecisionClamped", verdict.message)
    if verdict.decision is not None and new.get("appliedId") != old.get("appliedId"):
        message = f"{describe(verdict.decision)} has been carried out"
        yield Event(EventType.NORMAL, "DecisionApplied", message)
