"""Manifests that the API server has refused for good, and how the status says so.

A refused manifest is not sent again until it changes or a minute has passed, for some refusals
(quota, admission policies) end without any change of ours.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from mocker_operator.reconcile.conditions import DEGRADED, READY, Finding, stamped
from mocker_operator.reconcile.model import Manifest
from mocker_operator.reconcile.status import observed_conditions, observed_status

RETRY_AFTER_S = 60.0
REASON = "ApplyFailed"


class _Child(NamedTuple):
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class _Refusal:
    digest: str
    message: str
    retry_at: datetime


class Refusals:
    """Refused manifests of one MockerDeployment."""

    def __init__(self) -> None:
        self._refusals: dict[_Child, _Refusal] = {}
        self._replaced: dict[_Child, datetime] = {}

    @property
    def messages(self) -> Sequence[str]:
        """What the server said about each child."""
        return [
            f"{child.kind} {child.name}: {refusal.message}"
            for child, refusal in sorted(self._refusals.items())
        ]

    def keep_only(self, manifests: Iterable[Manifest]) -> None:
        """Forget the children that are not wanted, or no longer differ."""
        wanted = {_child(manifest) for manifest in manifests}
        self._refusals = {c: refusal for c, refusal in self._refusals.items() if c in wanted}

    def still_refused(self, manifest: Manifest, now: datetime) -> bool:
        """Whether the very same manifest was refused a short while ago."""
        refusal = self._refusals.get(_child(manifest))
        return (
            refusal is not None and refusal.digest == _digest(manifest) and now < refusal.retry_at
        )

    def refused(self, manifest: Manifest, message: str, now: datetime) -> None:
        """Remember a refusal."""
        retry_at = now + timedelta(seconds=RETRY_AFTER_S)
        self._refusals[_child(manifest)] = _Refusal(_digest(manifest), message, retry_at)

    def accepted(self, manifest: Manifest) -> None:
        """Forget the child's refusal."""
        self._refusals.pop(_child(manifest), None)

    def may_replace(self, manifest: Manifest, now: datetime) -> bool:
        """Whether a child may be deleted to be made again; asking counts as having done so.

        Once a minute: an admission webhook may edit every new one in the same way.
        """
        child = _child(manifest)
        last = self._replaced.get(child)
        if last is not None and (now - last).total_seconds() < RETRY_AFTER_S:
            return False
        self._replaced[child] = now
        return True

    def retry_after_s(self, now: datetime) -> float | None:
        """Return in how many seconds the first refused manifest may be sent again."""
        waits = [(refusal.retry_at - now).total_seconds() for refusal in self._refusals.values()]
        return max(0.0, min(waits)) if waits else None


def failed_status(
    resource: Manifest, status: Manifest | None, messages: Sequence[str], now: datetime
) -> Manifest | None:
    """Return the status that reports refused manifests, or None if it already says so.

    Args:
        resource: The MockerDeployment as observed.
        status: The status that the plan wants; None if it is the observed one.
        messages: What the server said.
        now: Time of a transition.
    """
    observed = observed_status(resource)
    wanted = observed if status is None else status
    message = "; ".join(messages)
    verdicts = stamped(
        [Finding(READY, "False", REASON, message), Finding(DEGRADED, "True", REASON, message)],
        observed_conditions(observed),
        generation=resource["metadata"].get("generation", 0),
        now=now,
    )
    others = [c for c in wanted.get("conditions") or () if c["type"] not in (READY, DEGRADED)]
    conditions = sorted([*others, *verdicts], key=lambda condition: str(condition["type"]))
    failed = {**wanted, "conditions": conditions}
    return None if failed == observed else failed


def _child(manifest: Manifest) -> _Child:
    return _Child(manifest["kind"], manifest["metadata"]["name"])


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
