"""The pod template that all roles share: restricted, without a token, ready before it is used.

Namespaces that enforce the pod security standard `restricted` accept it.
"""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from mocker_operator.api.template import EnvVar, TemplateSpec
from mocker_operator.constants import HTTP_PORT

_USER_ID: Final = 10001
_EXIT_MARGIN_S: Final = 10
"""What a worker may take beyond its drain timeout before it is killed."""
_DEFAULT_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "64Mi"},
    "limits": {"memory": "256Mi"},
}


class Mount(NamedTuple):
    """A volume that is mounted read-only."""

    name: str
    path: str
    source: dict[str, Any]
    """The volume without its name."""


@dataclass(frozen=True, slots=True)
class Program:
    """What runs in the one container of a pod."""

    container: str
    image: str
    image_pull_policy: str
    command: list[str]
    args: list[str]
    drain_timeout_s: int
    env: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    """Beside /tmp."""
    startup_s: float = 0.0
    """How long it takes by design until it is ready."""
    ports: list[dict[str, Any]] = field(default_factory=list)
    """Container ports beside the HTTP port."""


CONFIG_PATH: Final = "/etc/mocker"


def pod_template(
    program: Program, template: TemplateSpec, *, labels: dict[str, str], annotations: dict[str, str]
) -> dict[str, Any]:
    """Return the pod template of a Deployment."""
    metadata: dict[str, Any] = {"labels": {**template.labels, **labels}}
    if annotations or template.annotations:
        metadata["annotations"] = {**template.annotations, **annotations}
    return {"metadata": metadata, "spec": _pod_spec(program, template)}


def from_field(name: str, path: str) -> dict[str, Any]:
    """Return an environment variable that the kubelet fills from a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _pod_spec(program: Program, template: TemplateSpec) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The kernel drops a signal that the first process of its namespace has no handler for: a
        # SIGTERM while Python starts would be lost, and the pod stay for its whole grace period.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": program.drain_timeout_s + _EXIT_MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(program, template)],
        "volumes": _volumes(program),
    }
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        spec["tolerations"] = [
            _without_empty(item.model_dump(mode="json", by_alias=True, exclude_none=True))
            for item in template.tolerations
        ]
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": item.name} for item in template.image_pull_secrets]
    return spec


def _container(program: Program, template: TemplateSpec) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": program.container,
        "image": program.image,
        "imagePullPolicy": program.image_pull_policy,
        "command": program.command,
        "args": program.args,
        "ports": [
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
            *program.ports,
        ],
        "resources": _resources(template),
        "readinessProbe": _probe("/ready", period_s=1),
        "livenessProbe": _probe("/live", period_s=10),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(program),
    }
    env = program.env + [_variable(item) for item in template.env]
    return {**container, "env": env} if env else container


def _variable(item: EnvVar) -> dict[str, Any]:
    return _without_empty(item.model_dump(mode="json", by_alias=True, exclude_none=True))


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave empty strings out, as the API server does when it answers."""
    return {name: value for name, value in fields.items() if value != ""}


def _resources(template: TemplateSpec) -> dict[str, Any]:
    if template.resources is None:
        return _DEFAULT_RESOURCES
    amounts = {
        "requests": template.resources.requests.amounts(),
        "limits": template.resources.limits.amounts(),
    }
    return {kind: amount for kind, amount in amounts.items() if amount}


def _probe(path: str, *, period_s: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }


def _volumes(program: Program) -> list[dict[str, Any]]:
    volumes = [{"name": mount.name, **mount.source} for mount in program.mounts]
    return [{"name": "tmp", "emptyDir": {}}, *volumes]


def _mounts(program: Program) -> list[dict[str, Any]]:
    mounts = [
        {"name": mount.name, "mountPath": mount.path, "readOnly": True} for mount in program.mounts
    ]
    return [{"name": "tmp", "mountPath": "/tmp"}, *mounts]
