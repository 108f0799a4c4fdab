"""Manifests: what the simulator reads is what the operator reads, and mistakes are refused."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from mocker_operator.api import engine as operator_engine
from mocker_operator.api import spec as operator_spec
from mocker_operator.api.engine_arguments import engine_arguments
from mocker_operator.api.parse import parse_spec
from mocker_protocol.engine_args import parse_engine_args
from mocker_simulator.cli import main
from mocker_simulator.manifest import ARGUMENTS, FIELDS, ROUTING, read_deployment

LOAD = ["--isl", "200", "--osl", "5", "--requests", "3", "--interval-ms", "20"]
MANIFEST: dict[str, Any] = {
    "apiVersion": "mocker.dev/v1alpha1",
    "kind": "MockerDeployment",
    "metadata": {"name": "demo"},
    "spec": {
        "model": {"name": "mock", "maxModelLen": 4096},
        "engine": {
            "blockSize": 16,
            "preemptionMode": "fifo",
            "timing": {"fixed": {"prefillMs": 30, "decodeMs": 10}},
            "extraEngineArgs": {"kv_transfer_bandwidth": 16.0, "block_size": 16},
        },
        "prefill": {"replicas": 2, "engine": {"maxNumSeqs": 8}},
        "decode": {"engine": {"blockSize": None, "extraEngineArgs": {"is_decode": True}}},
        "frontend": {"routing": "leastLoaded"},
    },
}


def fields(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_the_fields_are_those_of_the_resource() -> None:
    spec = operator_engine.EngineSpec.model_fields
    named = {spec[k].alias or k: v for k, v in operator_engine.ARGUMENT_OF_FIELD.items()}
    assert named == ARGUMENTS
    assert set(FIELDS["engine"]) == fields(operator_engine.EngineSpec)
    assert set(FIELDS["spec"]) == fields(operator_spec.MockerDeploymentSpec)
    assert set(FIELDS["model"]) == fields(operator_spec.ModelSpec)
    assert set(FIELDS["role"]) == fields(operator_spec.RoleSpec)
    assert set(FIELDS["frontend"]) == fields(operator_spec.FrontendSpec)
    assert set(ROUTING) == {mode.value for mode in operator_spec.Routing}


def test_a_role_gets_the_arguments_that_the_operator_gives_it() -> None:
    found = read_deployment(MANIFEST)
    theirs = parse_spec(MANIFEST)
    for role, given in found.engine.items():
        assert parse_engine_args(given) == engine_arguments(theirs, role.value)
    assert found.replicas == {"prefill": 2, "decode": 1}
    assert found.routing == "least-loaded"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("kvTransfer", {"bandwidthGBps": 16}, "spec.kvTransfer: unknown field"),
        ("engine.blokSize", 16, "spec.engine.blokSize: unknown field"),
        ("engine.block_size", 16, "spec.engine.block_size: unknown field"),
        ("prefill.replica", 3, "spec.prefill.replica: unknown field"),
        ("prefill.replicas", "2", "spec.prefill.replicas: must be a number"),
        ("prefill.replicas", True, "spec.prefill.replicas: must be a number"),
        ("prefill.engine", [], "spec.prefill.engine: must be a mapping"),
        ("frontend.routing", "kv", "spec.frontend.routing: must be one of roundRobin"),
        ("frontend.routing", ["kv"], "spec.frontend.routing: must be one of roundRobin"),
        ("engine.timing.step", {}, "spec.engine.timing.step: unknown field"),
        ("engine.timing.fixed.prefilMs", 3, "spec.engine.timing.fixed.prefilMs: unknown"),
        ("engine.timing.fixed.decodeMs", None, "needs prefillMs and decodeMs"),
        ("engine.timing.fixed.decodeMs", "fast", "decode_ms"),
        ("engine.extraEngineArgs.block_size", 32, "32 contradicts 16"),
        ("engine.extraEngineArgs.worker_type", "decode", "contradicts"),
        ("engine.extraEngineArgs.blocks", 3, "unknown engine argument"),
        ("decode.engine.extraEngineArgs.is_decode", False, "contradicts True"),
        ("decode", None, "prefill and decode workers"),
    ],
)
def test_a_wrong_field_is_named(
    path: str, value: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = deepcopy(MANIFEST)
    *parents, last = path.split(".")
    section = manifest["spec"]
    for name in parents:
        section = section[name]
    section[last] = value
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(manifest))
    assert main(["run", "--deployment", str(file), *LOAD]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"kind: [", "not one YAML document"),
        (b"kind: MockerDeployment\n---\nkind: MockerDeployment\n", "not one YAML document"),
        (b"\xff\xfe\x00\xd8", "not one YAML document"),
        (b"kind: Pod\n", "must be MockerDeployment"),
        (b"", "must be MockerDeployment"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_bytes(content)
    assert main(["run", "--deployment", str(file), *LOAD]) == 2
    assert words in capsys.readouterr().err
