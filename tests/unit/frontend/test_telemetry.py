"""What is measured, and how a scraper sees it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mocker_frontend.exposition import Exposition
from mocker_frontend.sse import Usage
from mocker_frontend.telemetry import Endpoint, Outcome, RequestRecord, RequestType, Telemetry


@pytest.fixture
def telemetry():
    return Telemetry()


def start(telemetry, now=0.0, **more):
    return RequestRecord(telemetry, Endpoint.CHAT_COMPLETIONS, RequestType.STREAM, now=now, **more)


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
    assert "dynamo_component_router_kv_hit_rate_count" in names
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
    for name, labels in samples(telemetry):
        of_router = name.startswith("dynamo_component_router_")
        assert dict(labels)["model"] == "org/mock"
        expected = "default_chat" if of_router else "default-chat"
        assert dict(labels)["dynamo_namespace"] == expected


@pytest.mark.parametrize(
    ("usage", "shares"),
    [
        (None, []),
        (Usage(10, 1), []),
        (Usage(0, 1, 0), []),
        (Usage(10, 1, 0), [0.0]),
        (Usage(10, 1, 4), [0.4]),
        (Usage(10, 1, 10), [1.0]),
    ],
)
def test_the_hit_rate_is_the_cached_share_of_each_prompt(telemetry, usage, shares):
    start(telemetry).prompt_computed(usage)
    assert telemetry.kv_hit_rate.count == len(shares)
    assert telemetry.kv_hit_rate.sum == pytest.approx(sum(shares))


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


def test_the_first_tokens_of_several_choices_are_no_gaps(telemetry):
    record = start(telemetry, num_choices=3)
    record.tokens(3, now=0.5)
    record.tokens(3, now=0.6)
    record.tokens(1, now=0.7)
    record.tokens(2, now=0.7)
    assert telemetry.time_to_first_token_s.count == 1
    assert telemetry.inter_token_latency_s.count == 6
    assert telemetry.inter_token_latency_s.sum == pytest.approx(6 * 0.1)


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
