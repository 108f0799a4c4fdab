"""Which worker gets a request."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_frontend.registry import Worker
from mocker_frontend.routing.policies import LeastLoaded, RoundRobin, RoutingMode
from mocker_frontend.routing.selection import Selector, best_tier
from mocker_protocol.names import WorkerType
from mocker_protocol.registration import WorkerState


def worker(key, role=WorkerType.DECODE, state=WorkerState.READY, suspect_until_s=0.0):
    return Worker(key, role, f"http://{key}", state, suspect_until_s)


A, B, C = worker("a"), worker("b"), worker("c")
DRAINING = worker("d", state=WorkerState.DRAINING)
SUSPECT = worker("e", suspect_until_s=100.0)


def test_round_robin_takes_turns():
    policy = RoundRobin()
    assert [policy.choose([A, B, C], {}).key for _ in range(5)] == ["a", "b", "c", "a", "b"]


def test_round_robin_goes_on_when_the_last_choice_left():
    policy = RoundRobin()
    policy.choose([A, B, C], {})
    policy.choose([A, B, C], {})
    assert policy.choose([A, C], {}) is C


@given(st.integers(1, 8), st.integers(1, 50))
def test_round_robin_is_fair(workers, turns):
    candidates = [worker(str(number)) for number in range(workers)]
    policy = RoundRobin()
    chosen = Counter(policy.choose(candidates, {}).key for _ in range(turns))
    assert max(chosen.values()) - min(chosen[w.key] for w in candidates) <= 1


def test_least_loaded_takes_the_idle_worker():
    assert LeastLoaded().choose([A, B, C], {"a": 2, "b": 1, "c": 3}) is B
    assert LeastLoaded().choose([A, B, C], {"a": 2, "b": 1}) is C


def test_least_loaded_shares_ties():
    policy = LeastLoaded()
    assert [policy.choose([A, B, C], {"b": 1}).key for _ in range(4)] == ["a", "c", "a", "c"]


@pytest.mark.parametrize(
    ("workers", "tier"),
    [
        ([A, DRAINING, SUSPECT], [A]),
        ([DRAINING, SUSPECT], [DRAINING]),
        ([SUSPECT], [SUSPECT]),
        ([], []),
    ],
)
def test_a_worse_worker_is_better_than_none(workers, tier):
    assert best_tier(workers, now=50.0) == tier


def test_suspicion_ends():
    assert best_tier([A, SUSPECT], now=100.0) == [A, SUSPECT]


def test_a_worker_is_tried_once_per_request():
    selector = Selector(RoutingMode.ROUND_ROBIN)
    tried = set()
    while chosen := selector.choose([A, B, DRAINING], WorkerType.DECODE, tried=tried, now=0.0):
        assert chosen.key not in tried
        tried.add(chosen.key)
    assert tried == {"a", "b", "d"}


def test_only_workers_of_the_role_are_chosen():
    selector = Selector(RoutingMode.ROUND_ROBIN)
    prefill = worker("p", WorkerType.PREFILL)
    assert selector.choose([A, prefill], WorkerType.PREFILL, tried=(), now=0.0) is prefill
    assert selector.choose([A, prefill], WorkerType.AGGREGATED, tried=(), now=0.0) is None


def test_roles_take_turns_of_their_own():
    selector = Selector(RoutingMode.ROUND_ROBIN)
    workers = [A, B, worker("p", WorkerType.PREFILL), worker("q", WorkerType.PREFILL)]
    chosen = [
        selector.choose(workers, role, tried=(), now=0.0).key
        for role in (WorkerType.PREFILL, WorkerType.DECODE) * 2
    ]
    assert chosen == ["p", "a", "q", "b"]


def test_outstanding_requests_are_counted_until_they_end():
    selector = Selector(RoutingMode.LEAST_LOADED)
    with selector.sending(A), selector.sending(A):
        assert selector.outstanding == {"a": 2}
        assert selector.choose([A, B], WorkerType.DECODE, tried=(), now=0.0) is B
    assert not selector.outstanding
