"""The lines that the command line prints. Pure."""

import json

from mocker_planner.status import Status
from mocker_protocol.decisions import DeploymentKey, ScalingDecision


def counts(decision: ScalingDecision) -> str:
    """Return the wanted counts, such as `prefill=2 decode unchanged`."""
    return " ".join(
        f"{role} unchanged" if count is None else f"{role}={count}"
        for role, count in (("prefill", decision.prefill), ("decode", decision.decode))
    )


def decided(key: DeploymentKey, decision: ScalingDecision) -> str:
    """Return the line after a decision was written."""
    return f"{key.namespace}/{key.name}: decision {decision.decision_id}: {counts(decision)}"


def scaled(key: DeploymentKey, decision: ScalingDecision, after_s: float) -> str:
    """Return the line after a decision was carried out."""
    return f"{decided(key, decision)}: scaled after {after_s:.1f} s"


def status_text(key: DeploymentKey, status: Status) -> str:
    """Return the lines of `status`."""
    name = f"{key.namespace}/{key.name}"
    if status.decision is None:
        return f"{name}: no decision"
    line = decided(key, status.decision)
    if not status.pending:
        return f"{line}: scaled"
    last = "none yet" if status.scaled_decision_id is None else str(status.scaled_decision_id)
    return f"{line}: not scaled yet (last scaled: {last})"


def as_json(key: DeploymentKey, status: Status, *, scaled_after_s: float | None = None) -> str:
    """Return one JSON object with the decision, its acknowledgement and the time that passed."""
    decision = status.decision
    return json.dumps(
        {
            "namespace": key.namespace,
            "name": key.name,
            "decision_id": None if decision is None else decision.decision_id,
            "prefill": None if decision is None else decision.prefill,
            "decode": None if decision is None else decision.decode,
            "scaled_decision_id": status.scaled_decision_id,
            "scaled_after_s": None if scaled_after_s is None else round(scaled_after_s, 3),
        }
    )
