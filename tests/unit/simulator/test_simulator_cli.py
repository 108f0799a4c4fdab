"""`mocker-simulator run`: loads, fleets, output, and mistakes that are named."""

import json
from pathlib import Path

import pytest
import yaml

from mocker_simulator.cli import main
from mocker_simulator.progress import progress_bar
from mocker_simulator.records import RequestRecord
from mocker_simulator.report import throughput

LOAD = ["--isl", "200", "--osl", "20", "--requests", "30"]
STEADY = [*LOAD, "--interval-ms", "20"]
MANIFEST = {
    "apiVersion": "mocker.dev/v1alpha1",
    "kind": "MockerDeployment",
    "metadata": {"name": "demo"},
    "spec": {
        "model": {"name": "mock", "maxModelLen": 4096},
        "engine": {"blockSize": 16, "timing": {"fixed": {"prefillMs": 30, "decodeMs": 10}}},
        "prefill": {"replicas": 2},
        "decode": {"replicas": 1, "engine": {"extraEngineArgs": {"decode_speedup_ratio": 2.0}}},
    },
}


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]):
    def run(*args: str) -> dict:
        assert main(["run", "--json", *args]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_all_figures_are_there(figures) -> None:
    found = figures(*STEADY)
    latencies = {
        f"{figure}_{name}_ms"
        for figure in ("mean", "p50", "p90", "p99")
        for name in ("ttft", "tpot", "itl", "e2e")
    }
    assert latencies <= found.keys()
    assert (found["num_requests"], found["total_input_tokens"]) == (30, 6000)
    assert found["total_output_tokens"] == 600
    assert found["preemptions"] == found["prefix_cache_reused_ratio"] == 0
    assert found["wall_time_ms"] > 0
    assert found["p50_itl_ms"] <= found["p90_itl_ms"] <= found["p99_itl_ms"]


def test_the_same_input_gives_the_same_figures(figures) -> None:
    args = [*LOAD, "--rate", "40", "--workers", "3", "--routing", "kv"]
    first, second = figures(*args), figures(*args)
    assert first | {"wall_time_ms": 0} == second | {"wall_time_ms": 0}
    assert figures(*args, "--load-seed", "7")["duration_ms"] != first["duration_ms"]


def test_a_fixed_number_of_clients_never_has_more_in_flight(figures, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    figures(*LOAD, "--concurrency", "4", "--per-request", str(rows))
    spans = [json.loads(line) for line in rows.read_text().splitlines()]
    for row in spans:
        at = row["arrival_ms"]
        assert sum(r["arrival_ms"] <= at < r["finish_ms"] for r in spans) <= 4


def test_kv_routing_finds_shared_prefixes_more_often(figures) -> None:
    args = [*LOAD, "--interval-ms", "50", "--workers", "8", "--block-size", "16"]
    shared = [*args, "--shared-prefix-ratio", "0.8", "--prefix-groups", "8"]
    plain, kv = figures(*shared), figures(*shared, "--routing", "kv")
    assert kv["prefix_cache_reused_ratio"] > plain["prefix_cache_reused_ratio"]


def test_a_manifest_gives_fleet_and_engine_and_flags_outweigh_it(figures, tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(MANIFEST))
    rows = tmp_path / "rows.jsonl"
    found = figures("--deployment", str(file), *STEADY, "--per-request", str(rows))
    assert found["mean_itl_ms"] == pytest.approx(5.0)
    first = json.loads(rows.read_text().splitlines()[0])
    assert (first["worker"], first["decode_worker"], first["ttft_ms"]) == (0, 2, 35.0)
    assert figures("--deployment", str(file), *STEADY, "--workers", "1")["mean_ttft_ms"] >= 30


def test_the_example_of_the_project_can_be_simulated(figures) -> None:
    example = Path(__file__).parents[3] / "examples/disaggregated.yaml"
    assert figures("--deployment", str(example), *STEADY)["num_requests"] == 30


def test_least_loaded_routing_keeps_a_slow_request_company_of_nobody(
    figures, tmp_path: Path
) -> None:
    trace, rows = tmp_path / "trace.jsonl", tmp_path / "rows.jsonl"
    lengths = [2000, 5, 5, 5]
    trace.write_text(
        "".join(
            json.dumps(
                {"timestamp": 400 * i, "input_length": 9, "output_length": n, "hash_ids": [i]}
            )
            + "\n"
            for i, n in enumerate(lengths)
        )
    )
    args = ["--trace", str(trace), "--workers", "2", "--per-request", str(rows)]
    figures(*args, "--routing", "least-loaded")
    workers = [json.loads(line)["worker"] for line in rows.read_text().splitlines()]
    assert workers == [0, 1, 1, 1]


def test_an_azure_trace_is_read(figures, tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.1805900,396,9\n"
    )
    rows = tmp_path / "rows.jsonl"
    found = figures("--trace", str(trace), "--per-request", str(rows))
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (770, 53)
    arrivals = [json.loads(line)["arrival_ms"] for line in rows.read_text().splitlines()]
    assert arrivals == [0.0, 500.0]


def test_what_can_never_fit_is_refused_and_holds_up_nobody(figures) -> None:
    found = figures(*STEADY, "--block-size", "16", "--num-gpu-blocks", "10")
    assert (found["num_refused"], found["num_requests"]) == (30, 0)
    clients = figures(*LOAD, "--concurrency", "2", "--max-model-len", "100", "--routing", "kv")
    assert clients["num_refused"] == 30


def test_a_process_that_starts_slowly_makes_the_first_requests_wait(figures) -> None:
    assert figures(*STEADY, "--startup-time", "2")["duration_ms"] > 2000


def test_the_report_is_one_page_that_loads_nothing(tmp_path: Path, capsys) -> None:
    report = tmp_path / "report.html"
    assert main(["run", *STEADY, "--workers", "2", "--report", str(report)]) == 0
    page = report.read_text()
    assert page.count("<svg") == 8
    assert "src=" not in page
    assert "<script" not in page
    assert "latency, ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "--trace"),
        (LOAD, 2, "--interval-ms"),
        ([*STEADY, "--prefill", "1"], 2, "at least one worker"),
        ([*STEADY, "--block-size", "1"], 2, "block_size"),
        ([*STEADY, "--workers", "2", "--prefill", "1", "--decode", "1"], 2, "leave out --prefill"),
        (["--trace", "x.jsonl", "--isl", "9"], 2, "leave out --isl"),
        (["--trace", "x.jsonl", "--shared-prefix-ratio", "0"], 2, "--shared-prefix-ratio"),
        ([*STEADY, "--timing-model", '{"type": "step"}'], 2, "base_ms"),
        (["--trace", "/nowhere.jsonl"], 1, "/nowhere.jsonl"),
    ],
)
def test_mistakes_are_named(args: list[str], code: int, words: str, capsys) -> None:
    assert main(["run", *args]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"timestamp": 0}', "input_length"),
        ('{"timestamp":0,"input_length":9,"output_length":0,"hash_ids":[1]}', "line 1"),
        ('{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]}', "do not cover"),
    ],
)
def test_a_bad_row_of_a_trace_is_named(row: str, words: str, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(row + "\n")
    assert main(["run", "--trace", str(trace)]) == 1
    assert words in capsys.readouterr().err


def test_a_share_is_from_0_to_1(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["run", *STEADY, "--shared-prefix-ratio", "1.5"])
    assert "must be from 0 to 1" in capsys.readouterr().err


def test_files_that_are_no_text_are_named(tmp_path: Path, capsys) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\xd8")
    assert main(["run", "--trace", str(binary)]) == 1
    assert main(["run", *STEADY, "--extra-engine-args", str(binary)]) == 2
    assert capsys.readouterr().err.count("binary.csv: not UTF-8 text") == 2


def test_azure_stamps_with_and_without_a_zone_can_be_compared(figures, tmp_path: Path) -> None:
    trace, rows = tmp_path / "azure.csv", tmp_path / "rows.jsonl"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,9,4\n2024-05-10 00:00:01.0099300,9,4\n"
    )
    figures("--trace", str(trace), "--per-request", str(rows))
    arrivals = [json.loads(line)["arrival_ms"] for line in rows.read_text().splitlines()]
    assert arrivals == [0.0, 1000.0]


def test_the_lots_of_kv_routing_can_be_drawn_again(figures) -> None:
    args = [*LOAD, "--rate", "40", "--workers", "3", "--routing", "kv"]
    found = {figures(*args, "--routing-seed", str(seed))["mean_ttft_ms"] for seed in range(4)}
    assert len(found) > 1


def test_the_throughput_of_the_last_moment_is_plotted() -> None:
    records = [
        RequestRecord(0, 0.0, 9, 4, first_token_ms=0.0, finish_ms=at, received_tokens=60)
        for at in (0.0, 120_000.0)
    ]
    points = throughput(records)
    assert len(points) == 120
    assert (points[0][1], points[-1][1]) == (60.0, 60.0)


def test_the_progress_bar_is_for_terminals_only(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert progress_bar(10, file) is None


def test_calibration_finds_the_rates_that_made_the_measurements(tmp_path: Path, capsys) -> None:
    rates = {
        "type": "step",
        "base_ms": 6.0,
        "prefill_token_ms": 0.05,
        "decode_request_ms": 0.3,
        "kv_token_ms": 0.0002,
    }
    rows = tmp_path / "rows.jsonl"
    load = ["--isl", "300", "--osl", "80", "--requests", "120", "--rate", "8"]
    timing = ["--timing-model", json.dumps(rates)]
    assert main(["run", *load, *timing, "--per-request", str(rows)]) == 0
    measured = tmp_path / "measured.jsonl"
    measured.write_text(
        "".join(
            json.dumps(
                {
                    "input_toks": row["input_tokens"],
                    "output_toks": row["output_tokens"],
                    "queued_ts": row["arrival_ms"] / 1000,
                    "scheduled_ts": row["first_admit_ms"] / 1000,
                    "first_token_ts": row["first_token_ms"] / 1000,
                    "last_token_ts": row["finish_ms"] / 1000,
                }
            )
            + "\n"
            for row in map(json.loads, rows.read_text().splitlines())
        )
    )
    capsys.readouterr()
    output = tmp_path / "engine.json"
    args = ["--requests", str(measured), "--json", "--rounds", "8", "--output", str(output)]
    assert main(["calibrate", *args]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(error < 0.02 for _, _, error in found["held_out"].values())
    assert json.loads(output.read_text())["timing_model"] == found["timing_model"]
    assert main(["run", *load, "--extra-engine-args", str(output)]) == 0


ROW = {
    "input_toks": 40,
    "output_toks": 9,
    "queued_ts": 1.0,
    "first_token_ts": 1.1,
    "last_token_ts": 1.5,
}


def calibrated(tmp_path: Path, *args: str, **changes: float) -> int:
    """Calibrate with ten requests that do not wait for each other."""
    file = tmp_path / "measured.jsonl"
    moments = ("queued_ts", "first_token_ts", "last_token_ts")
    rows = [ROW | {name: ROW[name] + i for name in moments} | changes for i in range(10)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return main(["calibrate", "--requests", str(file), "--rounds", "2", *args])


def test_curves_are_of_the_whole_run_and_may_be_flat(tmp_path: Path, capsys) -> None:
    series = tmp_path / "series.csv"
    series.write_text("t,running,waiting\n" + "".join(f"{i}.2,1,0\n" for i in range(9)))
    assert calibrated(tmp_path, "--timeseries", str(series), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["whole_run"]["waiting over time"] == [0.0, 0.0, 0.0]
    assert found["held_out"].keys() == {"mean TTFT, ms", "mean TPOT, ms"}
    assert calibrated(tmp_path, "--timeseries", str(series)) == 0
    _, held_out, whole_run = capsys.readouterr().out.split("\n\n")
    assert held_out.startswith("not fitted")
    assert whole_run.startswith("whole run")
    assert "waiting" in whole_run


@pytest.mark.parametrize("content", [b"", b"t,running,waiting\n", b"t\n1\n", b"\xff\xfe\x00\xd8"])
def test_a_time_series_without_figures_is_named(content: bytes, tmp_path: Path, capsys) -> None:
    series = tmp_path / "series.csv"
    series.write_bytes(content)
    assert calibrated(tmp_path, "--timeseries", str(series)) == 1
    assert "series.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_toks": 1}, "no answer of two tokens"),
        ({"output_toks": 0}, "must be at least 1"),
        ({"input_toks": 0}, "must be at least 1"),
        ({"last_token_ts": 0.5}, "queued, first and last"),
        ({"input_toks": 9000}, "refuses request 1"),
    ],
)
def test_measurements_that_nothing_can_be_fitted_to_are_named(
    changes: dict[str, float], words: str, tmp_path: Path, capsys
) -> None:
    assert calibrated(tmp_path, "--max-model-len", "8192", **changes) == 1
    assert words in capsys.readouterr().err
