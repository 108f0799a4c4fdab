"""What the operator's installation adds to every MockerDeployment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """Settings of the operator that show in the manifests of its children."""

    image: str
    """Image of all pods whose resource names none."""
    image_pull_policy: str
    """Always, IfNotPresent or Never."""
    nats_url: str
    """NATS server as seen from the pods."""
