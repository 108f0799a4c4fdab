"""Names on the wire that follow from Kubernetes' names."""

import pytest

from mocker_protocol.names import Component, WorkerType, dynamo_namespace, worker_id_from_uid


def test_the_stream_name_is_the_one_dynamo_documents():
    component = Component("dynamo", "backend")
    assert component.kv_event_stream == "namespace-dynamo-component-backend-kv-events"
    assert component.kv_event_subject == "namespace-dynamo-component-backend-kv-events.queue"


@pytest.mark.parametrize(
    ("namespace", "stream"),
    [
        ("default-chat", "namespace-default-chat-component-prefill-kv-events"),
        ("Team-Chat", "namespace-team-chat-component-prefill-kv-events"),
        ("default-chat.v2", "namespace-default-chat-v2-component-prefill-kv-events"),
        ("a_b", "namespace-a-b-component-prefill-kv-events"),
        ("größe", "namespace-gr--e-component-prefill-kv-events"),
    ],
)
def test_odd_characters_never_reach_a_stream_name(namespace, stream):
    assert Component(namespace, "prefill").kv_event_stream == stream


def test_the_event_plane_subject_keeps_case_and_encodes_dots():
    subject = Component("Default-chat.v2", "backend").endpoint_subject("forward-pass-metrics")
    assert subject == (
        "namespace.Default-chat%2Ev2.component.backend.endpoint.generate.forward-pass-metrics"
    )


def test_the_event_plane_subject_encodes_utf8_bytes():
    subject = Component("é x", "prefill").endpoint_subject("kv-events", "a*b")
    assert subject == "namespace.%C3%A9%20x.component.prefill.endpoint.a%2Ab.kv-events"


def test_only_prefill_workers_are_a_component_of_their_own():
    assert WorkerType.PREFILL.component == "prefill"
    assert WorkerType.DECODE.component == "backend"
    assert WorkerType.AGGREGATED.component == "backend"


def test_the_dynamo_namespace_joins_namespace_and_deployment():
    assert dynamo_namespace("default", "chat") == "default-chat"


def test_a_worker_id_is_stable_and_fits_64_bits():
    uid = "5f3c1f5e-7a3c-4a0e-9a44-2f6f7a6e1c11"
    assert worker_id_from_uid(uid) == worker_id_from_uid(uid)
    assert 0 <= worker_id_from_uid(uid) < 2**64
    assert worker_id_from_uid(uid) != worker_id_from_uid(uid + "x")
