"""The text format, judged by Prometheus' own client: its writer and its parser."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from mocker_worker.server.exposition import Family, HistogramFamily, Page, number_text
from mocker_worker.stats import Histogram

CREATED_S = 1_796_167_206.3561506
ODD_LABELS = {"model_name": 'a "quoted"\\path\nwith lines', "engine": "0"}


class FixedCollector:
    def __init__(self, *families):
        self.families = families

    def collect(self):
        return self.families


def reference(*families):
    registry = CollectorRegistry()
    registry.register(FixedCollector(*families))
    return generate_latest(registry).decode()


@given(st.one_of(st.integers(-(10**9), 10**18), st.floats()))
def test_numbers_are_written_as_by_the_client(value):
    assert number_text(value) == floatToGoString(value)


@pytest.mark.parametrize("value", [999_999, 1_000_000, 999_999.5, 1e16, 1e21, 1234567.25, 0, 5e-7])
def test_numbers_at_the_edges_are_written_as_by_the_client(value):
    assert number_text(value) == floatToGoString(value)


def test_gauges_are_the_bytes_of_the_client():
    expected = GaugeMetricFamily("g", 'Help "with"\nlines.', labels=["model_name", "engine"])
    expected.add_metric(["m", "1"], 0.1 + 0.2)
    expected.add_metric(ODD_LABELS.values(), 7)
    labels = {"model_name": "m", "engine": "1"}
    family = Family(
        "gauge",
        "g",
        'Help "with"\nlines.',
        [(labels, lambda: 0.1 + 0.2), (ODD_LABELS, lambda: 7)],
    )

    assert Page([family], created_s=CREATED_S).render() == reference(expected)


@pytest.mark.parametrize("created_s", [CREATED_S, None])
def test_counters_are_the_bytes_of_the_client(created_s):
    expected = CounterMetricFamily("vllm:request_success", "Ended.", labels=["finished_reason"])
    for reason, value in (("stop", 0), ("length", 12_345_678)):
        expected.add_metric([reason], value, created=created_s)
    family = Family(
        "counter",
        "vllm:request_success",
        "Ended.",
        [
            ({"finished_reason": "stop"}, lambda: 0),
            ({"finished_reason": "length"}, lambda: 12_345_678),
        ],
    )

    assert Page([family], created_s=created_s).render() == reference(expected)


@given(st.lists(st.floats(0, 50), max_size=30))
def test_histograms_are_the_bytes_of_the_client(observations):
    bounds = (0.5, 1.0, 10)
    histogram = Histogram(bounds)
    for value in observations:
        histogram.observe(value)
    buckets = [
        (floatToGoString(bound), sum(value <= bound for value in observations))
        for bound in (*bounds, float("inf"))
    ]
    expected = HistogramMetricFamily("h_seconds", "Time.", labels=["engine"])
    expected.add_metric(["0"], buckets, sum(observations, 0.0))
    family = HistogramFamily("h_seconds", "Time.", [({"engine": "0"}, histogram)])

    assert Page([family], created_s=None).render() == reference(expected)


def test_a_million_observations_are_the_bytes_of_the_client():
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 999_999)
    histogram.observe(2.0, 2)
    labels = {"model_name": "100%d.0 %s"}
    expected = HistogramMetricFamily("h", "Time.", labels=["model_name"])
    buckets = [("1.0", 999_999), ("+Inf", 1_000_001)]
    expected.add_metric(labels.values(), buckets, histogram.sum)
    page = Page([HistogramFamily("h", "Time.", [(labels, histogram)])], created_s=None)

    assert page.render() == reference(expected)


def test_a_histogram_tells_the_observations_of_the_moment():
    histogram = Histogram((1.0,))
    page = Page([HistogramFamily("h", "Time.", [({}, histogram)])], created_s=None)
    histogram.observe(0.5)
    assert "h_count 1.0\nh_sum 0.5\n" in page.render()
    histogram.observe(0.25)

    assert "h_count 2.0\nh_sum 0.75\n" in page.render()


def test_what_is_created_follows_each_family():
    page = Page(
        [
            HistogramFamily("h", "Time.", [({"engine": "0"}, Histogram((1.0,)))]),
            Family("gauge", "g", "Value.", [({}, lambda: 1)]),
        ],
        created_s=CREATED_S,
    )

    families = {family.name: family for family in text_string_to_metric_families(page.render())}
    assert list(families) == ["h", "h_created", "g"]
    assert families["h_created"].type == "gauge"
    assert families["h_created"].samples[0].value == pytest.approx(CREATED_S)


def test_a_page_tells_the_values_of_the_moment():
    values = [0]
    page = Page([Family("gauge", "g", "Value.", [({}, lambda: values[0])])], created_s=None)
    page.render()
    values[0] = 5

    assert page.render().endswith("g 5.0\n")


def test_counts_of_a_histogram_equal_its_observations():
    chance, histogram = random.Random(5), Histogram((1, 2, 5))
    observations = [(chance.uniform(0, 8), chance.randrange(1, 4)) for _ in range(200)]
    for value, count in observations:
        histogram.observe(value, count)

    assert histogram.count == sum(count for _, count in observations)
    assert histogram.sum == pytest.approx(sum(value * count for value, count in observations))


def test_a_histogram_can_feed_another_with_other_bounds():
    histogram, other = Histogram((1.0,)), Histogram((5.0,))
    histogram.also = other
    histogram.observe(3.0, 2)

    assert (histogram.counts, other.counts) == ([0, 2], [2, 0])
    assert other.sum == 6.0
