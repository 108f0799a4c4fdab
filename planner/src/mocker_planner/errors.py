"""What can go wrong between a planner and the bucket; each message names the remedy."""

from mocker_protocol.decisions import DeploymentKey


class PlannerError(Exception):
    """Root of all errors of this package."""


class NatsUnreachable(PlannerError):
    """No NATS server answers at the URL, or its JetStream is off."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"cannot reach NATS with JetStream at {url} ({reason}). From outside the cluster, "
            "forward the port first: kubectl -n <operator namespace> port-forward "
            "service/<nats service> 4222:4222; or give --nats-url (or NATS_SERVER)."
        )
        self.url = url


class InvalidTarget(PlannerError, ValueError):
    """A name, count or id that no decision can carry."""


class Contended(PlannerError):
    """Other planners kept writing in between."""

    def __init__(self, key: DeploymentKey, attempts: int) -> None:
        super().__init__(
            f"{key.decision}: {attempts} attempts were overtaken by another planner; "
            "let only one planner decide for a deployment"
        )


class Superseded(PlannerError):
    """A later decision took the place of the one that was waited for."""

    def __init__(self, key: DeploymentKey, decision_id: int, by: int) -> None:
        super().__init__(
            f"{key.decision}: decision {decision_id} was replaced by {by} before it was carried out"
        )


class NotScaledInTime(PlannerError):
    """The acknowledgement did not come."""

    def __init__(self, key: DeploymentKey, decision_id: int, timeout_s: float) -> None:
        super().__init__(
            f"{key.decision}: decision {decision_id} was not acknowledged within {timeout_s:g} s; "
            f"see: kubectl -n {key.namespace} describe mockerdeployment {key.name}"
        )
