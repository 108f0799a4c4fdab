"""Scheduling by priority: who is admitted, who gives up blocks, and that nobody is lost."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.engine import EngineCore, Request, RequestStatus

PRIORITY = {"scheduling_policy": "priority"}


def order_of_admission(engine: EngineCore) -> list[str]:
    admitted = []
    while (step := engine.step()) is not None:
        admitted += [r.request_id for r in step.admitted if r.num_preemptions == 0]
    return admitted


def add(engine: EngineCore, *priorities: int, prompt: int = 5, max_tokens: int = 4) -> None:
    for i, priority in enumerate(priorities):
        engine.add_request(Request(str(i), [i] * prompt, max_tokens, priority=priority))


def test_lower_values_go_first_and_equal_ones_as_they_came(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **PRIORITY)
    add(engine, 0, 1, -1, 1, 0, -1)
    assert order_of_admission(engine) == ["2", "5", "0", "4", "1", "3"]


def test_first_come_first_served_ignores_priorities(make_engine) -> None:
    engine = make_engine(max_num_seqs=1)
    add(engine, 0, 1, -1)
    assert order_of_admission(engine) == ["0", "1", "2"]


def test_who_runs_is_not_preempted_for_an_urgent_arrival(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **PRIORITY)
    engine.add_request(Request("long", [1] * 5, 30, priority=9))
    engine.step()
    engine.add_request(Request("urgent", [2] * 5, 1, priority=0))
    assert order_of_admission(engine) == ["urgent"]
    assert engine.num_preemptions == 0


def victims(engine: EngineCore, requests: list[Request]) -> list[str]:
    """Who is preempted, in order; several in one pass as they stand in `requests`."""
    found, before = [], dict.fromkeys(requests, 0)
    while engine.step() is not None:
        for request in requests:
            found += [request.request_id] * (request.num_preemptions - before[request])
            before[request] = request.num_preemptions
    return found


def test_the_least_urgent_gives_up_its_blocks_though_it_is_the_oldest(make_engine) -> None:
    engine = make_engine(num_gpu_blocks=6, **PRIORITY)
    requests = [Request(name, [i] * 5, 12, priority=-i) for i, name in enumerate("ab")]
    for request in requests:
        engine.add_request(request)
        engine.step()
    assert set(victims(engine, requests)) == {"a"}


def test_of_equals_the_latest_to_arrive_gives_up_its_blocks(make_engine) -> None:
    engine = make_engine(num_gpu_blocks=9, **PRIORITY)
    requests = [Request(name, [i] * 5, 12, priority=1) for i, name in enumerate("abc")]
    for request in requests:
        engine.add_request(request)
    assert victims(engine, requests)[0] == "c"


def test_a_preempted_request_waits_where_its_priority_belongs(make_engine) -> None:
    engine = make_engine(num_gpu_blocks=6, max_num_seqs=2, **PRIORITY)
    low = Request("low", [1] * 5, 12, priority=5)
    high = Request("high", [2] * 5, 12, priority=0)
    for request in (low, high):
        engine.add_request(request)
    while low.status is not RequestStatus.PREEMPTED:
        engine.step()
    engine.add_request(Request("middle", [3] * 5, 1, priority=3))
    engine.add_request(Request("lower", [4] * 5, 1, priority=6))
    names = []
    while (step := engine.step()) is not None:
        names += [request.request_id for request in step.admitted]
    assert names == ["middle", "low", "lower"]


def test_an_abort_finds_its_request_in_the_queue(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **PRIORITY)
    add(engine, 3, 1, 2, 1)
    assert engine.abort_request("3")
    assert order_of_admission(engine) == ["1", "2", "0"]


PRIORITIES = st.lists(st.integers(-2, 2), min_size=1, max_size=25)


def small(**args: object) -> EngineCore:
    return EngineCore(parse_engine_args({"block_size": 2, "num_gpu_blocks": 10, **args}))


@settings(deadline=None)
@given(PRIORITIES, st.integers(1, 6), st.data())
def test_everybody_gets_the_answer_of_a_first_come_run(priorities, max_num_seqs, data) -> None:
    lengths = data.draw(
        st.lists(
            st.tuples(st.integers(1, 8), st.integers(1, 12)),
            min_size=len(priorities),
            max_size=len(priorities),
        )
    )

    def tokens(engine: EngineCore) -> dict[str, list[int]]:
        result: dict[str, list[int]] = {}
        for i, (prompt, max_tokens) in enumerate(lengths):
            engine.add_request(Request(str(i), [i] * prompt, max_tokens, priority=priorities[i]))
        while (step := engine.step()) is not None:
            for output in step.outputs:
                result.setdefault(output.request_id, []).append(output.token_id)
        assert engine.num_kv_blocks_held == engine.num_waiting_tokens == 0
        return result

    assert tokens(small(max_num_seqs=max_num_seqs, **PRIORITY)) == tokens(
        small(max_num_seqs=max_num_seqs)
    )


@settings(deadline=None)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=25))
def test_with_equal_priorities_it_is_first_come_first_served(lengths: list[int]) -> None:
    """Preemption takes the latest admitted there, which is the latest to arrive."""

    def steps(engine: EngineCore) -> list[object]:
        for i, length in enumerate(lengths):
            engine.add_request(Request(str(i), [i] * length, length))
        result = []
        while (step := engine.step()) is not None:
            result.append((step.outputs, step.duration_ms, step.preempted, step.kv_events))
        return result

    assert steps(small(**PRIORITY)) == steps(small())


def test_the_most_urgent_running_request_is_never_preempted(
    make_engine: Callable[..., EngineCore],
) -> None:
    engine = make_engine(num_gpu_blocks=8, **PRIORITY)
    requests = [Request(str(i), [i] * 5, 20, priority=i * 7 % 5) for i in range(10)]
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished_requests:
        running = list(engine.running)
        first = min(running, key=lambda r: (r.priority, r.arrival), default=None)
        before = first.num_preemptions if first else 0
        engine.step()
        assert first is None or first.num_preemptions == before
    assert engine.num_preemptions > 0
