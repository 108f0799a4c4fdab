"""What is measured, and how a scraper sees it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mocker_frontend.exposition import Exposition
from mocker_frontend.sse import Usage
from mocker_frontend.telemetry import Endpoint, Outcome, RequestRecord, RequestType, Telemetry


@pytest.fixture
def telemetry():
    return Telemetry()


def start(telemetry, now=0.0):
    return RequestRecord(telemetry, Endpoint.CHAT_COMPLETIONS, RequestType.STREAM, now=now)


def samples(telemetry):
    exposition = Exposition(telemetry, list, model="Org/Mock", namespace="default-chat")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition.text().decode())
        for sample in family.samples
    }


def total(telemetry, name):
    return sum(value for (found, _), value in samples(telemetry).items() if found == name)


def test_every_series_exists_from_the_start_with_zero(telemetry):
    found = samples(telemetry)
    assert set(found.values()) == {0.0}
    names = {name for name, _ in found}
    for histogram in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_duration_seconds",
        "input_sequence_tokens",
        "output_sequence_tokens",
    ):
        assert {f"dynamo_frontend_{histogram}_{part}" for part in ("sum", "count")} <= names
    assert {
        "dynamo_frontend_requests_started_total",
        "dynamo_frontend_requests_total",
        "dynamo_frontend_inflight_requests",
        "dynamo_frontend_queued_requests",
    } <= names


def test_all_series_carry_the_planners_labels(telemetry):
    for _, labels in samples(telemetry):
        assert dict(labels)["model"] == "org/mock"
        assert dict(labels)["dynamo_namespace"] == "default-chat"


def test_a_stream_is_measured_token_by_token(telemetry):
    record = start(telemetry)
    record.tokens(1, now=0.5)
    record.tokens(1, now=0.6)
    record.tokens(2, now=0.8)
    record.tokens(0, now=0.9)
    record.finish(Outcome.SUCCESS, Usage(100, 4), now=1.0)
    assert telemetry.time_to_first_token_s.sum == pytest.approx(0.5)
    assert telemetry.time_to_first_token_s.count == 1
    assert telemetry.inter_token_latency_s.sum == pytest.approx(0.3)
    assert telemetry.inter_token_latency_s.count == 3
    assert telemetry.request_duration_s.sum == pytest.approx(1.0)
    assert telemetry.input_sequence_tokens.sum == 100
    assert telemetry.output_sequence_tokens.sum == 4


def test_without_usage_the_events_are_the_length(telemetry):
    record = start(telemetry)
    record.tokens(3, now=0.5)
    record.finish(Outcome.SUCCESS, None, now=1.0)
    assert telemetry.output_sequence_tokens.sum == 3
    assert telemetry.input_sequence_tokens.count == 0


def test_the_gauges_rise_and_fall(telemetry):
    record, waiting = start(telemetry), start(telemetry)
    record.tokens(1, now=0.5)
    assert total(telemetry, "dynamo_frontend_inflight_requests") == 2
    assert total(telemetry, "dynamo_frontend_queued_requests") == 1
    record.finish(Outcome.SUCCESS, None, now=1.0)
    waiting.finish(Outcome.CANCELLED, None, now=1.0)
    assert total(telemetry, "dynamo_frontend_inflight_requests") == 0
    assert total(telemetry, "dynamo_frontend_queued_requests") == 0


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_request_that_started_ends_under_one_status(telemetry, outcome):
    start(telemetry).finish(outcome, None, now=1.0)
    assert total(telemetry, "dynamo_frontend_requests_started_total") == 1
    ended = {
        labels: n for (name, labels), n in samples(telemetry).items() if n and "_total" in name
    }
    assert any(dict(labels).get("status") == outcome for labels in ended)
    assert total(telemetry, "dynamo_frontend_requests_total") == 1


def test_failed_requests_do_not_count_as_durations(telemetry):
    start(telemetry).finish(Outcome.ERROR, None, now=9.0)
    assert telemetry.request_duration_s.count == 0
