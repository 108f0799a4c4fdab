"""Runs of passes against single passes: the same times, hits and preemptions."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_protocol.engine_args import EngineArgs, parse_engine_args
from mocker_simulator.fleet import Fleet, FleetSpec, Outcome
from mocker_simulator.kv_routing import KvRouter
from mocker_simulator.routing import least_loaded
from mocker_simulator.workload import Workload
from mocker_worker.engine import EngineCore

BLOCK_SIZE = 4

REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 400),  # ms since the one before
        st.integers(1, 40),  # prompt tokens
        st.one_of(st.integers(1, 18), st.integers(1, 120)),  # output tokens
        st.integers(0, 3),  # whom it shares its prompt with
    ),
    min_size=1,
    max_size=25,
)

STEP = {
    "type": "step",
    "base_ms": 5.0,
    "prefill_token_ms": 0.1,
    "decode_request_ms": 0.5,
    "kv_token_ms": 0.001,
}
PROFILE = {
    "type": "profile",
    "prefill_isl": [1, 1000],
    "prefill_ttft_ms": [11, 100],
    "decode_active_kv_tokens": [0, 100, 400],
    "decode_context_length": [10, 50, 90],
    "decode_itl_ms": [[2, 4, 6], [4, 8, 10], [10, 20, 40]],
}

ENGINES = st.fixed_dictionaries(
    {
        "num_gpu_blocks": st.sampled_from([14, 16, 20, 24, 45, 60, 100, 1000]),
        "max_num_batched_tokens": st.sampled_from([3, 16, 64]),
        "max_num_seqs": st.sampled_from([1, 4, 50]),
        "enable_prefix_caching": st.booleans(),
        "preemption_mode": st.sampled_from(["lifo", "fifo"]),
        "decode_speedup_ratio": st.sampled_from([1.0, 3.0]),
        "timing_model": st.sampled_from([{"type": "polynomial"}, STEP, PROFILE]),
    }
)


def workload(rows: list[tuple[float, int, int, int]]) -> Workload:
    now, arrivals = 0.0, []
    for gap, *_ in rows:
        now += gap
        arrivals.append(now)
    return Workload(
        arrivals_ms=arrivals,
        prompt_tokens=[prompt for _, prompt, _, _ in rows],
        output_tokens=[output for _, _, output, _ in rows],
        block_ids=[[family * 100 + i for i in range(10)] for *_, family in rows],
        trace_block_size=BLOCK_SIZE,
    )


def simulate(
    spec: FleetSpec, load: Workload, concurrency: int | None, *, by_kv: bool = False
) -> Outcome:
    router = KvRouter if by_kv else least_loaded
    return Fleet(spec, load, make_router=router, concurrency=concurrency).run()


def pass_by_pass(run: Callable[[], Outcome]) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineCore, "decode_run", lambda _: None)
        return run()


def args(**given: object) -> EngineArgs:
    return parse_engine_args({"block_size": BLOCK_SIZE, "publish_kv_events": False, **given})


def assert_same(ours: Outcome, plain: Outcome) -> None:
    assert ours.preemptions == plain.preemptions
    assert sum(n for *_, n in ours.gaps.stretches) == sum(n for *_, n in plain.gaps.stretches)
    for one, other in zip(ours.records, plain.records, strict=True):
        for name in ("first_admit_ms", "decode_admit_ms", "first_token_ms", "finish_ms"):
            expected = getattr(other, name)
            close = None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert getattr(one, name) == close
        assert one.reused_tokens == other.reused_tokens
        assert (one.worker, one.refused) == (other.worker, other.refused)
        expected_tokens = 0 if one.refused else one.output_tokens
        assert one.received_tokens == other.received_tokens == expected_tokens


@settings(max_examples=150, deadline=None)
@given(rows=REQUESTS, engine=ENGINES, workers=st.integers(1, 2), by_kv=st.booleans())
def test_a_run_of_passes_is_what_its_passes_are(
    rows: list[tuple[float, int, int, int]], engine: dict[str, object], workers: int, by_kv: bool
) -> None:
    spec, load = FleetSpec(args(**engine), workers), workload(rows)
    plain = pass_by_pass(lambda: simulate(spec, load, None, by_kv=by_kv))
    assert_same(simulate(spec, load, None, by_kv=by_kv), plain)


def test_kv_routing_sees_the_cache_of_the_last_pass_of_a_run() -> None:
    """The last request comes while a run's last pass has let blocks go that its prefix is in."""
    rows = [
        (101.3, 23, 10, 2),
        (203.9, 24, 1, 3),
        (50.1, 2, 1, 2),
        (50.1, 10, 16, 1),
        (101.3, 21, 5, 1),
        (50.1, 23, 6, 3),
    ]
    timing = {"type": "fixed", "prefill_ms": 5, "decode_ms": 10}
    spec, load = FleetSpec(args(num_gpu_blocks=16, timing_model=timing), 2), workload(rows)
    plain = pass_by_pass(lambda: simulate(spec, load, None, by_kv=True))
    assert_same(simulate(spec, load, None, by_kv=True), plain)


@settings(max_examples=60, deadline=None)
@given(rows=REQUESTS, engine=ENGINES, clients=st.one_of(st.none(), st.integers(1, 6)))
def test_a_disaggregated_fleet_is_the_same_in_runs_and_in_single_passes(
    rows: list[tuple[float, int, int, int]], engine: dict[str, object], clients: int | None
) -> None:
    transfer = {"kv_transfer_bandwidth": 1.0, "kv_bytes_per_token": 1_000_003}
    spec = FleetSpec(
        args(**engine, **transfer, worker_type="prefill"),
        2,
        args(**engine, worker_type="decode"),
        2,
    )
    load = workload(rows)
    plain = pass_by_pass(lambda: simulate(spec, load, clients))
    assert_same(simulate(spec, load, clients), plain)
