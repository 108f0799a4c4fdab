import json

import pytest

from mocker_worker.server.orca import orca_header


def test_text_names_the_load():
    header = orca_header("TEXT", kv_cache_usage_ratio=0.25, num_requests_waiting=3)

    assert header == (
        "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3.0"
    )


def test_json_names_the_load():
    header = orca_header(" json ", kv_cache_usage_ratio=0.25, num_requests_waiting=3)
    form, _, text = header.partition(" ")

    assert form == "JSON"
    assert json.loads(text) == {
        "named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3.0}
    }


@pytest.mark.parametrize("form", ["", "BIN", "text/plain"])
def test_other_forms_get_no_header(form):
    assert orca_header(form, kv_cache_usage_ratio=0, num_requests_waiting=0) is None
