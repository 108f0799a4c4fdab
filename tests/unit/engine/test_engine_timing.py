"""Pass times against the values that Dynamo's formulas give."""

import pytest

from mocker_protocol.engine_args import InvalidEngineArgs, ProfileTiming, parse_engine_args
from mocker_worker.engine import Request
from mocker_worker.engine.pass_load import BilledLoad
from mocker_worker.engine.profile_timing import Profile
from mocker_worker.engine.timing import Fixed, Polynomial


def prefill(tokens: int) -> BilledLoad:
    return BilledLoad(num_prefills=1, prefill_tokens=tokens)


def decode(context_tokens: int, requests: int = 1) -> BilledLoad:
    return BilledLoad(num_decodes=requests, decode_kv_tokens=context_tokens)


@pytest.mark.parametrize(
    ("tokens", "expected_ms"),
    [(1, 16.5166), (100, 18.0240), (1000, 32.1059), (8192, 169.1369), (32768, 966.0765)],
)
def test_prefill_time_is_quadratic_in_the_new_tokens(tokens: int, expected_ms: float) -> None:
    assert Polynomial(1000).prefill_ms(prefill(tokens)) == pytest.approx(expected_ms, abs=5e-5)


def test_a_pass_without_new_tokens_costs_no_prefill_time() -> None:
    assert Polynomial(1000).prefill_ms(prefill(0)) == 0.0
    assert Fixed(3.0, 2.0).prefill_ms(prefill(0)) == 0.0


@pytest.mark.parametrize(
    ("share", "expected_ms"),
    [(0.0, 5.74), (0.1, 10.8836), (0.25, 17.6337), (0.5, 26.31), (0.75, 31.7688), (1.0, 34.01)],
)
def test_decode_time_follows_the_share_of_the_cache_in_use(
    share: float, expected_ms: float
) -> None:
    load = decode(int(share * 10**6))
    assert Polynomial(10**6).decode_ms(load) == pytest.approx(expected_ms, abs=5e-5)


def test_decode_time_never_falls_at_high_load() -> None:
    full_ms = Polynomial(1000).decode_ms(decode(1000))
    assert Polynomial(1000).decode_ms(decode(1_000_000, 9)) == full_ms


PROFILE = {
    "type": "profile",
    "prefill_isl": [100, 1000],
    "prefill_ttft_ms": [10, 100],
    "decode_active_kv_tokens": [0, 100, 400],
    "decode_context_length": [10, 50, 90],
    "decode_itl_ms": [[2, 4, 6], [4, 8, 10], [10, 20, 40]],
}


def profile() -> Profile:
    model = parse_engine_args({"timing_model": PROFILE}).timing_model
    assert isinstance(model, ProfileTiming)
    return Profile(model)


@pytest.mark.parametrize(("tokens", "expected_ms"), [(100, 10), (550, 55), (2000, 200), (50, 5)])
def test_a_profile_is_linear_in_the_new_tokens_and_beyond(tokens: int, expected_ms: float) -> None:
    assert profile().prefill_ms(prefill(tokens)) == pytest.approx(expected_ms)


@pytest.mark.parametrize(
    ("kv", "requests", "expected_ms"),
    [(100, 2, 8), (50, 1, 6), (50, 5, 3), (250, 5, 14), (400, 4, 45), (700, 14, 32)],
)
def test_a_profile_is_bilinear_in_contexts_and_their_mean_and_beyond(
    kv: int, requests: int, expected_ms: float
) -> None:
    assert profile().decode_ms(decode(kv, requests)) == pytest.approx(expected_ms)


def test_a_profile_never_falls_below_a_millisecond() -> None:
    tables = {**PROFILE, "decode_itl_ms": [[-9, -9, -9]] * 3}
    model = parse_engine_args({"timing_model": tables}).timing_model
    assert isinstance(model, ProfileTiming)
    assert Profile(model).decode_ms(decode(50)) == 1.0


STEP = {
    "type": "step",
    "base_ms": 5.0,
    "prefill_token_ms": 0.1,
    "decode_request_ms": 0.5,
    "kv_token_ms": 0.001,
}


def test_a_step_model_charges_its_base_once(make_engine) -> None:
    engine = make_engine(timing_model=STEP)
    engine.add_request(Request("a", range(20), 5))
    assert engine.step().duration_ms == pytest.approx(5 + 20 * 0.1)
    engine.add_request(Request("b", range(100, 110), 5))
    assert engine.step().duration_ms == pytest.approx(5 + 10 * 0.1 + 0.5 + 21 * 0.001)
    assert engine.step().duration_ms == pytest.approx(5 + 2 * 0.5 + (22 + 11) * 0.001)


@pytest.mark.parametrize("timing", [{"type": "polynomial"}, STEP, PROFILE])
@pytest.mark.parametrize("requests", [1, 3])
def test_the_cost_of_coming_passes_is_that_of_each_pass(
    make_engine, timing: dict, requests: int
) -> None:
    engine = make_engine(timing_model=timing, num_gpu_blocks=1000)
    for i in range(requests):
        engine.add_request(Request(str(i), [i] * (7 + i), 300))
    engine.step()
    compared = 0
    while (run := engine.decode_run()) is not None:
        for index in range(run.num_passes):
            assert engine.step().duration_ms == pytest.approx(run.pass_ms(index))
            compared += 1
    assert compared == 299


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("prefill_isl", [5, 5], "greater than the one before"),
        ("prefill_ttft_ms", [1], "one value per prefill_isl"),
        ("decode_itl_ms", [[1, 2, 3]], "a row per decode_active_kv_tokens"),
    ],
)
def test_a_profile_whose_tables_do_not_fit_is_refused(field: str, value: list, text: str) -> None:
    with pytest.raises(InvalidEngineArgs, match=text):
        parse_engine_args({"timing_model": {**PROFILE, field: value}})


def test_speedup_divides_all_time_and_decode_speedup_divides_decode_time_further(
    make_engine, drain
) -> None:
    fixed = {"type": "fixed", "prefill_ms": 12.0, "decode_ms": 6.0}
    engine = make_engine(speedup_ratio=2.0, decode_speedup_ratio=3.0, timing_model=fixed)
    engine.add_request(Request("a", [1, 2, 3], 3))
    assert [step.duration_ms for step in drain(engine).steps] == [6.0, 1.0, 1.0]


def test_speedup_zero_means_no_time_at_all(make_engine, drain) -> None:
    engine = make_engine(speedup_ratio=0)
    engine.add_request(Request("a", list(range(50)), 20))
    run = drain(engine)
    assert run.duration_ms == 0.0
    assert len(run.tokens["a"]) == 20


def test_a_mixed_pass_costs_its_prefill_and_its_decode(make_engine) -> None:
    engine = make_engine(timing_model={"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0})
    engine.add_request(Request("a", [1, 2, 3], 5))
    engine.step()
    engine.add_request(Request("b", [4, 5, 6], 5))
    step = engine.step()
    assert step is not None
    assert step.duration_ms == 11.0


def test_a_pass_that_only_recomputes_an_answer_takes_time(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=30, max_num_batched_tokens=8, enable_prefix_caching=False)
    for name in "ab":
        engine.add_request(Request(name, [ord(name)] * 7, 80))
    steps = drain(engine).steps
    assert engine.num_preemptions > 0
    assert all(step.duration_ms > 0 for step in steps)
