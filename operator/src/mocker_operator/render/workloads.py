"""Deployments, ConfigMaps and Services from a validated spec. Pure: equal input, equal output."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mocker_operator.api.engine_arguments import engine_arguments, engine_file
from mocker_operator.api.spec import FRONTEND, MockerDeploymentSpec, Routing, WorkerRole
from mocker_operator.api.template import TemplateSpec
from mocker_operator.constants import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MAP_API_VERSION,
    CONFIG_MAP_KIND,
    DEPLOYMENT_API_VERSION,
    DEPLOYMENT_KIND,
    HTTP_PORT,
    SERVICE_API_VERSION,
    SERVICE_KIND,
)
from mocker_operator.reconcile.model import Key, Manifest
from mocker_operator.render.kv_events import kv_event_args, kv_event_ports
from mocker_operator.render.metadata import (
    child_name,
    digest,
    labels,
    metadata,
    selector,
    with_desired_hash,
)
from mocker_operator.render.pod import CONFIG_PATH, Mount, Program, from_field, pod_template
from mocker_operator.render.settings import RenderSettings
from mocker_operator.render.tokenizer import tokenizer_env, tokenizer_mounts
from mocker_protocol.names import dynamo_namespace

_ROUTING_FLAG: Final = {
    Routing.ROUND_ROBIN: "round-robin",
    Routing.LEAST_LOADED: "least-loaded",
}
_ENGINE_FILE: Final = "engine.json"
_PROGRESS_DEADLINE_S: Final = 600
"""Kubernetes' own default, on top of the time that the engine takes to start."""


@dataclass(frozen=True, slots=True)
class _Rendering:
    key: Key
    uid: str
    spec: MockerDeploymentSpec
    counts: Mapping[str, int]
    settings: RenderSettings

    @property
    def dynamo_namespace(self) -> str:
        return dynamo_namespace(self.key.namespace, self.key.name)


def render(
    key: Key,
    uid: str,
    spec: MockerDeploymentSpec,
    counts: Mapping[str, int],
    settings: RenderSettings,
) -> list[Manifest]:
    """Return all children of a MockerDeployment, in the order in which they are to be applied.

    Args:
        key: Namespace and name of the resource.
        uid: Its uid, which makes it the owner; empty for manifests without owner.
        spec: A spec that `parse_spec` accepted.
        counts: Replicas per role; a role that is absent has those of the spec.
        settings: What the operator's installation adds.
    """
    context = _Rendering(key, uid, spec, counts, settings)
    manifests: list[Manifest] = []
    for role in spec.roles:
        config = _config_map(context, role)
        manifests += [config, _worker(context, role, config)]
    if spec.frontend.enabled:
        manifests.append(_frontend(context))
    if (role_of_service := service_role(spec)) is not None:
        manifests.append(_service(context, role_of_service))
    return [with_desired_hash(manifest) for manifest in manifests]


def service_role(spec: MockerDeploymentSpec) -> str | None:
    """Return the role whose pods answer clients; None for P/D workers without a frontend."""
    if spec.frontend.enabled:
        return FRONTEND
    return "aggregated" if spec.aggregated is not None else None


def endpoint(key: Key, spec: MockerDeploymentSpec) -> str | None:
    """Return the base URL of the OpenAI API inside the cluster; None if nothing serves it."""
    role = service_role(spec)
    if role is None:
        return None
    return f"http://{child_name(key.name, role)}.{key.namespace}.svc:{HTTP_PORT}/v1"


def _config_map(context: _Rendering, role: WorkerRole) -> Manifest:
    arguments = engine_file(engine_arguments(context.spec, role))
    return {
        "apiVersion": CONFIG_MAP_API_VERSION,
        "kind": CONFIG_MAP_KIND,
        "metadata": metadata(context.key, role, context.uid),
        "data": {_ENGINE_FILE: json.dumps(arguments, indent=2) + "\n"},
    }


def _worker(context: _Rendering, role: WorkerRole, config: Manifest) -> Manifest:
    spec = context.spec
    engine = engine_arguments(spec, role)
    flags = [] if role == "aggregated" else [f"--is-{role}-worker"]
    program = _program(
        context,
        container="worker",
        args=[
            *("--extra-engine-args", f"{CONFIG_PATH}/{_ENGINE_FILE}"),
            *flags,
            *kv_event_args(spec.kv_events, engine),
        ],
    )
    program = replace(
        program,
        env=[
            from_field("POD_NAME", "metadata.name"),
            from_field("POD_UID", "metadata.uid"),
            from_field("POD_IP", "status.podIP"),
            from_field("POD_NAMESPACE", "metadata.namespace"),
            {"name": "DYN_NAMESPACE", "value": context.dynamo_namespace},
            *tokenizer_env(spec.tokenizer),
        ],
        mounts=[
            Mount("config", CONFIG_PATH, {"configMap": {"name": config["metadata"]["name"]}}),
            *tokenizer_mounts(spec.tokenizer),
        ],
        startup_s=engine.startup_time or 0.0,
        ports=kv_event_ports(spec.kv_events, engine),
    )
    wanted = spec.roles[role]
    return _deployment(
        context,
        role,
        program,
        template=wanted.template,
        replicas=context.counts.get(role, wanted.replicas),
        annotations={CONFIG_HASH_ANNOTATION: digest(config["data"])},
    )


def _frontend(context: _Rendering) -> Manifest:
    wanted = context.spec.frontend
    program = _program(
        context,
        container="frontend",
        args=[
            *("--namespace", context.dynamo_namespace),
            *("--routing", _ROUTING_FLAG[wanted.routing]),
        ],
    )
    return _deployment(
        context,
        FRONTEND,
        program,
        template=wanted.template,
        replicas=context.counts.get(FRONTEND, wanted.replicas),
    )


def _program(context: _Rendering, *, container: str, args: list[str]) -> Program:
    spec, settings = context.spec, context.settings
    return Program(
        container=container,
        image=spec.image or settings.image,
        image_pull_policy=settings.image_pull_policy,
        command=[f"mocker-{container}", "serve"],
        args=[
            *("--port", str(HTTP_PORT)),
            *("--model-name", spec.model.name),
            *("--nats-url", settings.nats_url),
            *("--drain-timeout-s", str(spec.scaling.drain_timeout_seconds)),
            *args,
        ],
        drain_timeout_s=spec.scaling.drain_timeout_seconds,
    )


def _deployment(
    context: _Rendering,
    role: str,
    program: Program,
    *,
    template: TemplateSpec,
    replicas: int,
    annotations: dict[str, str] | None = None,
) -> Manifest:
    name = context.key.name
    return {
        "apiVersion": DEPLOYMENT_API_VERSION,
        "kind": DEPLOYMENT_KIND,
        "metadata": metadata(context.key, role, context.uid),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": _PROGRESS_DEADLINE_S + math.ceil(program.startup_s),
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
            },
            "selector": {"matchLabels": selector(name, role)},
            "template": pod_template(
                program, template, labels=labels(name, role), annotations=annotations or {}
            ),
        },
    }


def _service(context: _Rendering, role: str) -> Manifest:
    return {
        "apiVersion": SERVICE_API_VERSION,
        "kind": SERVICE_KIND,
        "metadata": metadata(context.key, role, context.uid),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(context.key.name, role),
            "ports": [{"name": "http", "port": HTTP_PORT, "protocol": "TCP", "targetPort": "http"}],
        },
    }
