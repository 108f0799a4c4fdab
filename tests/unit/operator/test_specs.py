"""The operator's judgement of the table that the API server judges too."""

from pathlib import Path

import pytest
import yaml

from mocker_operator.api import InvalidSpec, engine_arguments, engine_file, parse_spec

ROOT = Path(__file__).parents[3]
TABLE = yaml.safe_load((ROOT / "tests/data/mockerdeployment_specs.yaml").read_text())


def resource(row):
    return {"metadata": {"name": row.get("resource_name", "table")}, "spec": row["spec"]}


def rows(valid):
    chosen = [row for row in TABLE if row["valid"] is valid]
    return pytest.mark.parametrize("row", chosen, ids=lambda row: row["name"])


def spec_of(**fields):
    return parse_spec({"metadata": {"name": "a"}, "spec": {"model": {"name": "m"}, **fields}})


def test_rows_have_unique_names():
    assert len({row["name"] for row in TABLE}) == len(TABLE)


@rows(valid=True)
def test_a_good_spec_is_accepted(row):
    parse_spec(resource(row), unknown="forbid")


@rows(valid=False)
def test_a_bad_spec_is_refused_with_its_field(row):
    with pytest.raises(InvalidSpec) as refusal:
        parse_spec(resource(row), unknown="forbid")
    assert refusal.value.path.startswith(row["field"])
    assert refusal.value.reason


def test_unknown_fields_from_the_cluster_are_ignored():
    spec = parse_spec(
        {
            "metadata": {"name": "a"},
            "spec": {"model": {"name": "m"}, "aggregated": {"replicas": 3, "later": 1}},
        }
    )
    assert spec.aggregated is not None
    assert spec.aggregated.replicas == 3


@pytest.mark.parametrize("broken", [None, [], "x", 3, {"model": None}, {"model": {"name": 3}}])
def test_any_rubbish_is_an_invalid_spec(broken):
    with pytest.raises(InvalidSpec):
        parse_spec({"metadata": {"name": "a"}, "spec": broken})


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem
)
def test_an_example_is_valid(example):
    for document in yaml.safe_load_all(example.read_text()):
        parse_spec(document, unknown="forbid")


def test_a_role_overrides_the_engine_of_all_roles():
    spec = spec_of(
        engine={"blockSize": 16, "seed": 1}, prefill={"engine": {"blockSize": 32}}, decode={}
    )
    assert engine_file(engine_arguments(spec, "prefill")) == {"block_size": 32, "seed": 1}
    assert engine_file(engine_arguments(spec, "decode")) == {"block_size": 16, "seed": 1}


def test_extra_arguments_of_a_role_win_over_those_of_all_roles():
    spec = spec_of(
        engine={"extraEngineArgs": {"dp_size": 2, "max_num_seqs": None}},
        aggregated={"engine": {"extraEngineArgs": {"dp_size": 4}}},
    )
    assert engine_file(engine_arguments(spec, "aggregated")) == {
        "dp_size": 4,
        "max_num_seqs": None,
    }


def test_every_field_reaches_the_engine():
    row = next(row for row in TABLE if row["name"] == "everything")
    arguments = engine_arguments(parse_spec(resource(row)), "prefill")
    assert arguments.worker_type == "prefill"
    assert engine_file(arguments) == {
        "engine_type": "vllm",
        "num_gpu_blocks": 8192,
        "block_size": 16,
        "max_model_len": 32768,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 32768,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": False,
        "preemption_mode": "fifo",
        "speedup_ratio": 0.0,
        "decode_speedup_ratio": 2.5,
        "startup_time": 1.5,
        "dp_size": 2,
        "publish_kv_events": True,
        "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 0.5},
        "seed": 7,
    }
