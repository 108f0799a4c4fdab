import statistics

import pytest

from mocker_worker.jitter import Jitter


def test_no_jitter_is_exactly_1():
    jitter = Jitter()

    assert [jitter.factor() for _ in range(3)] == [1.0] * 3


@pytest.mark.parametrize("share", [0.01, 0.1, 0.2])
def test_the_mean_is_1_and_the_deviation_is_the_share(share):
    jitter = Jitter(share, seed=1)
    factors = [jitter.factor() for _ in range(20_000)]

    assert statistics.mean(factors) == pytest.approx(1, abs=share / 30)
    assert statistics.stdev(factors) == pytest.approx(share, rel=0.03)


@pytest.mark.parametrize(("share", "bound"), [(0.05, 0.15), (0.2, 0.6), (0.3, 0.7), (1.0, 0.7)])
def test_factors_stay_within_three_deviations_and_seven_tenths(share, bound):
    jitter = Jitter(share, seed=2)
    factors = [jitter.factor() for _ in range(5_000)]

    assert max(factors) == pytest.approx(1 + bound)
    assert min(factors) == pytest.approx(1 - bound)


def test_the_same_seed_gives_the_same_factors():
    first, second = Jitter(0.1, seed=3), Jitter(0.1, seed=3)

    assert [first.factor() for _ in range(9)] == [second.factor() for _ in range(9)]


def test_the_share_can_be_changed_while_running():
    jitter = Jitter(seed=4)
    jitter.share = 0.1
    assert jitter.factor() != 1.0

    jitter.share = 0.0
    assert jitter.factor() == 1.0


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_other_shares_are_refused(share):
    with pytest.raises(ValueError, match="from 0 to 1"):
        Jitter(share)
