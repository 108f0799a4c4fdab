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
from mocker_protocol.event_plane import (
    KV_EVENTS_TOPIC,
    encode_router_events,
    encode_single_router_event,
)
from mocker_protocol.forward_pass import ForwardPassMetrics
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_router_event,
    encode_router_event,
)
from mocker_protocol.load_report import (
    ActiveLoad,
    decode_load_event,
    encode_active_load,
    encode_load_event,
)
from mocker_protocol.names import Component
from mocker_protocol.request_plane import RecoveryQuery, encode_tree_dump

ROOT = Path(__file__).resolve().parents[3]
WIRE = (ROOT / "docs/wire.md").read_text()


def examples(section, language="json"):
    (text,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", WIRE, flags=re.MULTILINE | re.DOTALL)
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_kv_events_in_the_documents_are_those_that_are_sent():
    lines = examples("KV events on JetStream")[0].splitlines()
    blocks = tuple(hash_blocks([1, 2, 3, 4, 5, 6, 7, 8], 4))
    events = [
        AllBlocksCleared(),
        BlockStored(parent_hash=None, blocks=blocks),
        BlockRemoved((blocks[1].sequence,)),
    ]
    for event_id, (line, event) in enumerate(zip(lines, events, strict=True)):
        assert encode_router_event(7587890123456789, event_id, event).decode() == line
        assert decode_router_event(line.encode()).event == event


def test_the_event_plane_message_in_the_documents_is_the_one_that_is_sent():
    (as_json,) = examples("KV events on the event plane")
    (as_hex,) = examples("KV events on the event plane", "hex")
    event = BlockStored(parent_hash=None, blocks=tuple(hash_blocks([1, 2, 3, 4], 4)))
    payload = encode_router_events(1234, [(0, event)])
    assert payload == bytes.fromhex(as_hex)
    assert msgspec.msgpack.decode(payload) == json.loads(as_json)


def test_the_recovery_in_the_documents_is_what_is_asked_and_answered():
    query, answer = (json.loads(line) for line in examples("Recovery")[0].splitlines())
    asked = msgspec.msgpack.decode(msgspec.msgpack.encode(query), type=RecoveryQuery)
    assert asked == RecoveryQuery(1234, 0)
    event = BlockStored(parent_hash=None, blocks=tuple(hash_blocks([1, 2, 3, 4], 4)))
    dump = encode_tree_dump([encode_single_router_event(1234, 0, event)], 17)
    assert msgspec.msgpack.decode(dump) == answer


def test_the_load_reports_in_the_documents_are_those_that_are_sent():
    event, load = examples("Load reports")
    assert encode_load_event(decode_load_event(event.encode())).decode() == event.strip()
    payload = encode_active_load(ActiveLoad(worker_id=7, dp_rank=0, kv_used_blocks=9))
    assert msgspec.msgpack.decode(payload) == json.loads(load)


def test_the_forward_pass_metrics_in_the_documents_have_every_field():
    (text,) = examples("Forward-pass metrics")
    metrics = msgspec.json.decode(text, type=ForwardPassMetrics)
    assert json.loads(msgspec.json.encode(metrics)) == json.loads(text)


def test_the_registrations_in_the_documents_are_some():
    lines = examples("Registrations")[0].splitlines()
    records = [registration.decode_registration(line.encode()) for line in lines]
    assert [record.encode().decode() for record in records] == lines
    assert [record.state for record in records] == ["ready", "draining"]
    assert records[0].namespace == "default-disaggregated"


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
        (
            "namespace.<ns>.component.<component>.endpoint.generate.kv-events",
            component.endpoint_subject(KV_EVENTS_TOPIC),
        ),
        ("namespace.<ns>.kv_metrics", component.namespace_subject("kv_metrics")),
        (
            "namespace.<ns>.component.<component>.endpoint.generate.kv_metrics",
            component.endpoint_subject("kv_metrics"),
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
