"""The examples in the documents are what the code reads and writes."""

import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from mocker_operator.api.parse import parse_spec
from mocker_protocol import decisions, registration
from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.forward_pass import ForwardPassMetrics
from mocker_protocol.kv_events import BlockStored, decode_router_event, encode_router_event
from mocker_protocol.names import Component

ROOT = Path(__file__).resolve().parents[3]
WIRE = (ROOT / "docs/wire.md").read_text()


def examples(section, language="json"):
    (text,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", WIRE, flags=re.MULTILINE | re.DOTALL)
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_kv_event_in_the_documents_is_the_one_that_is_sent():
    stored, removed = examples("KV events")[0].splitlines()
    blocks = tuple(hash_blocks([1, 2, 3, 4, 5, 6, 7, 8], 4))
    event = BlockStored(parent_hash=None, blocks=blocks)
    assert encode_router_event(7587890123456789, 0, event).decode() == stored
    assert decode_router_event(removed.encode()).event.block_hashes == (blocks[1].sequence,)


def test_the_forward_pass_metrics_in_the_documents_have_every_field():
    (text,) = examples("Forward-pass metrics")
    metrics = msgspec.json.decode(text, type=ForwardPassMetrics)
    assert json.loads(msgspec.json.encode(metrics)) == json.loads(text)


def test_the_registration_in_the_documents_is_one():
    (text,) = examples("Registrations")
    record = registration.decode_registration(text.encode())
    assert record.encode().decode() == text.strip()
    assert record.namespace == "default-disaggregated"


def test_the_decision_in_the_documents_is_one():
    decision, acknowledgement = examples("Decisions")[0].splitlines()
    assert decisions.parse_decision(decision.encode()).decode == 3
    assert decisions.parse_acknowledgement(acknowledgement.encode()) == 7


def test_the_names_in_the_documents_are_those_on_the_wire():
    component = Component("default-disaggregated", "prefill")
    for documented, real in (
        ("namespace-<ns>-component-<component>-kv-events", component.kv_event_stream),
        (
            "namespace.<ns>.component.<component>.endpoint.generate.forward-pass-metrics",
            component.endpoint_subject("forward-pass-metrics"),
        ),
        ("mocker-workers", registration.BUCKET),
        ("mocker-planner", decisions.BUCKET),
    ):
        assert f"`{documented}`" in WIRE
        filled = documented.replace("<ns>", component.namespace)
        assert filled.replace("<component>", component.component) == real


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *(ROOT / "examples").glob("*.yaml")], ids=lambda path: path.name
)
def test_every_example_of_the_resource_is_valid(path):
    text = path.read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL) or [text]
    resources = [
        document
        for block in blocks
        for document in yaml.safe_load_all(block)
        if document and document.get("kind") == "MockerDeployment"
    ]
    assert resources
    for resource in resources:
        parse_spec(resource, unknown="forbid")


def test_the_permissions_in_the_documents_are_those_that_the_chart_grants():
    granted = yaml.safe_load((ROOT / "tests/data/operator_rules.yaml").read_text())
    rows = re.findall(
        r"^\| (`[a-z.8]+`|core) \| ([a-z/, ]+) \| ([a-z, ]+) \|$",
        (ROOT / "docs/operator.md").read_text(),
        flags=re.MULTILINE,
    )
    documented = [
        {
            "apiGroups": ["" if group == "core" else group.strip("`")],
            "resources": resources.split(", "),
            "verbs": verbs.split(", "),
        }
        for group, resources, verbs in rows
    ]
    assert documented == granted
