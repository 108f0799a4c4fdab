"""From a validated spec to the manifests of all children. Pure."""

from mocker_operator.render.settings import RenderSettings
from mocker_operator.render.workloads import endpoint, render

__all__ = ["RenderSettings", "endpoint", "render"]
