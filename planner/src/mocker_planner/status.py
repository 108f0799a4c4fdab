"""What the bucket says about one deployment, and what follows from it. Pure.

Payloads are whatever somebody wrote: rubbish counts as absent.
"""

from dataclasses import dataclass

from mocker_protocol.decisions import (
    InvalidDecision,
    ScalingDecision,
    parse_acknowledgement,
    parse_decision,
)


@dataclass(frozen=True, slots=True)
class Status:
    """The latest decision and the last one that was carried out; None where there is none."""

    decision: ScalingDecision | None
    scaled_decision_id: int | None

    @property
    def pending(self) -> bool:
        """Whether the latest decision still waits for its acknowledgement."""
        return self.decision is not None and self.decision.decision_id != self.scaled_decision_id

    @property
    def next_decision_id(self) -> int:
        """Id after all that were used, so that an old acknowledgement cannot match a new decision.

        0 if none was used.
        """
        used = [] if self.decision is None else [self.decision.decision_id]
        if self.scaled_decision_id is not None:
            used.append(self.scaled_decision_id)
        return max(used, default=-1) + 1


def read_status(decision: bytes | None, acknowledgement: bytes | None) -> Status:
    """Interpret the payloads of the two keys of a deployment; None if a key does not exist."""
    return Status(
        _decision(decision),
        None if acknowledgement is None else parse_acknowledgement(acknowledgement),
    )


def _decision(payload: bytes | None) -> ScalingDecision | None:
    if payload is None:
        return None
    try:
        return parse_decision(payload)
    except InvalidDecision:
        return None
