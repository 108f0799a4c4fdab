"""Pass times against the values that Dynamo's formulas give."""

import pytest

from mocker_worker.engine import Request
from mocker_worker.engine.timing import Fixed, Polynomial


@pytest.mark.parametrize(
    ("tokens", "expected_ms"),
    [(1, 16.5166), (100, 18.0240), (1000, 32.1059), (8192, 169.1369), (32768, 966.0765)],
)
def test_prefill_time_is_quadratic_in_the_new_tokens(tokens: int, expected_ms: float) -> None:
    assert Polynomial(1000).prefill_ms(tokens) == pytest.approx(expected_ms, abs=5e-5)


def test_a_pass_without_new_tokens_costs_no_prefill_time() -> None:
    assert Polynomial(1000).prefill_ms(0) == 0.0
    assert Fixed(3.0, 2.0).prefill_ms(0) == 0.0


@pytest.mark.parametrize(
    ("share", "expected_ms"),
    [(0.0, 5.74), (0.1, 10.8836), (0.25, 17.6337), (0.5, 26.31), (0.75, 31.7688), (1.0, 34.01)],
)
def test_decode_time_follows_the_share_of_the_cache_in_use(
    share: float, expected_ms: float
) -> None:
    assert Polynomial(10**6).decode_ms(1, int(share * 10**6)) == pytest.approx(
        expected_ms, abs=5e-5
    )


def test_decode_time_never_falls_at_high_load() -> None:
    full_ms = Polynomial(1000).decode_ms(1, 1000)
    assert Polynomial(1000).decode_ms(9, 1_000_000) == full_ms


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
