from collections import Counter

import pytest

from mocker_worker.server.errors import InvalidRequest
from mocker_worker.server.faults import DEFAULT_KINDS, FaultKind, FaultPlan

STATUSES = {
    "rate_limit": 429,
    "invalid_api_key": 401,
    "context_length": 400,
    "server_error": 503,
    "invalid_request": 400,
    "model_not_found": 404,
}


@pytest.mark.parametrize(("kind", "status"), STATUSES.items())
def test_a_header_forces_an_error_with_its_status(kind, status):
    plan = FaultPlan()
    fault = plan.draw({"X-Return-Error": kind})

    assert fault.kind == kind
    assert fault.error.status == status
    assert plan.counts[FaultKind(kind)] == 1


@pytest.mark.parametrize("kind", ["stream_error", "disconnect"])
def test_faults_inside_of_an_answer_have_no_status(kind):
    fault = FaultPlan().draw({"X-Return-Error": kind})

    assert (fault.kind, fault.error) == (kind, None)


def test_an_unknown_kind_in_the_header_is_the_clients_mistake():
    with pytest.raises(InvalidRequest, match="X-Return-Error: unknown kind 'nothing'; use one of"):
        FaultPlan().draw({"X-Return-Error": "nothing"})


def test_without_a_rate_nothing_fails():
    plan = FaultPlan(kinds=["rate_limit"])

    assert all(plan.draw({}) is None for _ in range(100))
    assert sum(plan.counts.values()) == 0


def test_the_rate_is_a_share_in_percent():
    plan = FaultPlan(20, seed=1)
    faults = [plan.draw({}) for _ in range(10_000)]

    assert 1850 < sum(fault is not None for fault in faults) < 2150
    assert sum(plan.counts.values()) == sum(fault is not None for fault in faults)


def test_all_requests_fail_at_100_percent_and_all_kinds_are_as_likely():
    plan = FaultPlan(100, ["rate_limit", "disconnect"], seed=2)
    kinds = Counter(plan.draw({}).kind for _ in range(2_000))

    assert set(kinds) == {"rate_limit", "disconnect"}
    assert 900 < kinds["disconnect"] < 1100


def test_the_same_seed_draws_the_same_faults():
    def drawn():
        plan = FaultPlan(50, seed=3)
        faults = [plan.draw({}) for _ in range(50)]
        return [None if fault is None else fault.kind for fault in faults]

    assert drawn() == drawn()


def test_no_kinds_mean_all_errors_with_a_status():
    plan = FaultPlan()
    assert plan.kinds == DEFAULT_KINDS
    assert {str(kind) for kind in plan.kinds} == set(STATUSES)

    plan.kinds = ["disconnect", "disconnect"]
    assert plan.kinds == (FaultKind.DISCONNECT,)
    plan.kinds = []
    assert plan.kinds == DEFAULT_KINDS


@pytest.mark.parametrize("rate", [-1, 101, float("nan")])
def test_other_rates_are_refused(rate):
    with pytest.raises(ValueError, match="from 0 to 100"):
        FaultPlan(rate)


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="unknown kind 'no'"):
        FaultPlan(kinds=["no"])


def test_each_error_is_its_own():
    plan = FaultPlan()
    first, second = (plan.draw({"X-Return-Error": "rate_limit"}) for _ in range(2))

    assert first.error is not second.error
