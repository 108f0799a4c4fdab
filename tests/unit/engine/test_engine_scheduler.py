"""What a pass contains, who has to wait, who is preempted, who is refused."""

import itertools

import pytest

from mocker_worker.engine import FinishReason, Request, RequestRefused, RequestStatus

TOGGLES = list(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize(("shared", "caching", "chunked"), TOGGLES)
def test_a_crowd_gets_all_its_tokens_and_leaves_nothing_behind(
    make_engine, drain, shared: bool, caching: bool, chunked: bool
) -> None:
    engine = make_engine(
        num_gpu_blocks=500,
        block_size=64,
        speedup_ratio=10.0,
        enable_prefix_caching=caching,
        enable_chunked_prefill=chunked,
    )
    for i in range(200):
        half = [1] * 500 if shared else [1000 + i] * 500
        engine.add_request(Request(str(i), half + [5000 + i] * 500, 100))
    run = drain(engine)
    assert sum(map(len, run.tokens.values())) == 20_000
    assert sorted(run.finished, key=int) == [str(i) for i in range(200)]
    assert (engine.num_running, engine.num_waiting, engine.kv_usage_ratio) == (0, 0, 0.0)
    assert not engine.has_unfinished_requests
    assert engine.step() is None
    assert (engine.prefix_cache_hits > 0) == (shared and caching)


def test_identical_prompts_hit_the_cache(make_engine, drain) -> None:
    engine = make_engine(block_size=64)
    for i in range(10):
        engine.add_request(Request(str(i), [7] * 65, 10))
        drain(engine)
    assert engine.prefix_cache_hit_rate > 0.8
    assert engine.prefix_cache_hits == 9 * 64
    assert engine.prefix_cache_queries == 10 * 65


def test_nothing_is_looked_up_without_prefix_caching(make_engine, drain) -> None:
    engine = make_engine(enable_prefix_caching=False)
    engine.add_request(Request("a", [7] * 9, 2))
    drain(engine)
    assert (engine.prefix_cache_queries, engine.prefix_cache_hits) == (0, 0)


def test_the_hit_rate_is_a_mean_over_the_latest_thousand_admissions(make_engine, drain) -> None:
    engine = make_engine()
    for i in range(3):
        engine.add_request(Request(f"cold{i}", [100 + i] * 5, 1))
    drain(engine)
    assert engine.prefix_cache_hit_rate == 0.0
    for i in range(1001):
        engine.add_request(Request(str(i), [7] * 5, 1))
    drain(engine)
    assert engine.prefix_cache_hit_rate == pytest.approx(4 / 5)


def test_running_requests_use_the_budget_before_waiting_ones(make_engine) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add_request(Request("a", range(4), 9))
    engine.step()
    engine.add_request(Request("b", range(100, 120), 9))
    scheduled = engine.step().scheduled
    assert (scheduled.num_decode_requests, scheduled.sum_prefill_tokens) == (1, 7)


def test_a_long_prompt_is_computed_in_chunks_and_answers_with_the_last(make_engine, drain) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add_request(Request("a", range(20), 2))
    steps = drain(engine).steps
    assert [step.scheduled.sum_prefill_tokens for step in steps] == [8, 8, 4, 0]
    assert [step.scheduled.sum_prefill_kv_tokens for step in steps] == [0, 8, 16, 0]
    assert [len(step.outputs) for step in steps] == [0, 0, 1, 1]


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_whole(make_engine, drain) -> None:
    engine = make_engine(max_num_batched_tokens=8, enable_chunked_prefill=False)
    engine.add_request(Request("a", range(6), 1))
    engine.add_request(Request("b", range(100, 106), 1))
    assert [step.scheduled.sum_prefill_tokens for step in drain(engine).steps] == [6, 6]


def test_max_num_seqs_limits_who_runs(make_engine) -> None:
    engine = make_engine(max_num_seqs=2)
    for name in "abc":
        engine.add_request(Request(name, [ord(name)], 5))
    step = engine.step()
    assert (step.num_running, engine.num_waiting) == (2, 1)


def test_a_prompt_that_does_not_fit_as_a_whole_waits_without_preempting(make_engine) -> None:
    engine = make_engine(num_gpu_blocks=8, max_num_batched_tokens=16)
    engine.add_request(Request("a", range(16), 8))
    engine.add_request(Request("b", range(100, 120), 4))
    for _ in range(4):
        engine.step()
        assert engine.num_waiting == 1
    assert engine.num_preemptions == 0


def test_blocks_of_a_scheduled_prompt_are_hits_for_later_prompts_of_the_same_pass(
    make_engine,
) -> None:
    engine = make_engine()
    for name in "ab":
        engine.add_request(Request(name, range(9), 1))
    step = engine.step()
    assert [output.num_cached_tokens for output in step.outputs] == [0, 8]
    assert step.scheduled.sum_prefill_tokens == 9 + 1
    assert step.scheduled.sum_prefill_kv_tokens == 8


def test_computed_and_cached_tokens_add_up_to_the_prompts(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=1000, max_num_batched_tokens=16)
    prompts = [[i % 3] * (5 + 3 * i) for i in range(20)]
    for i, prompt in enumerate(prompts):
        engine.add_request(Request(str(i), prompt, 4))
    computed = sum(step.scheduled.sum_prefill_tokens for step in drain(engine).steps)
    assert engine.num_preemptions == 0
    assert 0 < engine.prefix_cache_hits < sum(map(len, prompts))
    assert computed + engine.prefix_cache_hits == sum(map(len, prompts))


def test_a_fully_cached_prompt_computes_its_last_block_and_answers(make_engine, drain) -> None:
    engine = make_engine()
    for name in "ab":
        engine.add_request(Request(name, range(8), 3))
        run = drain(engine)
    assert len(run.tokens["b"]) == 3
    assert run.steps[0].outputs[0].num_cached_tokens == 4
    assert run.steps[0].scheduled.sum_prefill_tokens == 4


def test_generated_tokens_are_hits_for_a_prompt_that_continues_them(make_engine, drain) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(4), 9))
    answer = drain(engine).tokens["a"]
    engine.add_request(Request("b", [*range(4), *answer], 1))
    assert engine.step().outputs[0].num_cached_tokens == 12


def test_a_hit_stops_at_the_first_hole(make_engine, drain) -> None:
    engine = make_engine()
    engine.add_request(Request("a", [1] * 4 + [2] * 4 + [3] * 4, 1))
    drain(engine)
    engine.add_request(Request("b", [1] * 4 + [9] * 4 + [3] * 4 + [4], 1))
    assert engine.step().outputs[0].num_cached_tokens == 4


@pytest.mark.parametrize(("mode", "victim"), [("lifo", "b"), ("fifo", "a")])
def test_the_victim_of_a_shortage_goes_to_the_front_of_the_queue(
    make_engine, drain, mode: str, victim: str
) -> None:
    engine = make_engine(num_gpu_blocks=5, preemption_mode=mode)
    requests = {name: Request(name, [ord(name)] * 7, 9) for name in "abc"}
    for request in requests.values():
        engine.add_request(request)
    while engine.num_preemptions == 0:
        step = engine.step()
    assert requests[victim].status is RequestStatus.PREEMPTED
    assert step.preempted == 1
    assert step.queued.num_decode_requests == 1
    assert step.queued.num_prefill_requests == 1
    assert step.queued.sum_decode_kv_tokens == requests[victim].num_tokens
    assert sorted(drain(engine).finished) == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["lifo", "fifo"])
@pytest.mark.parametrize("chunked", [True, False])
def test_two_requests_larger_together_than_the_cache_both_finish(
    make_engine, drain, mode: str, chunked: bool
) -> None:
    engine = make_engine(
        num_gpu_blocks=10,
        max_num_batched_tokens=20,
        preemption_mode=mode,
        enable_chunked_prefill=chunked,
    )
    for name in "ab":
        engine.add_request(Request(name, [ord(name)] * 13, 27))
    run = drain(engine)
    assert {name: len(tokens) for name, tokens in run.tokens.items()} == {"a": 27, "b": 27}
    assert engine.num_preemptions > 0


def test_a_preempted_request_keeps_its_tokens_and_its_cached_count(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=8)
    for name in "ab":
        engine.add_request(Request(name, [ord(name)] * 8, 20))
    outputs = [output for step in drain(engine).steps for output in step.outputs]
    assert engine.num_preemptions > 0
    assert len(outputs) == 40
    assert {output.num_cached_tokens for output in outputs} == {0}
    assert engine.prefix_cache_queries == 16


def test_light_load_never_preempts_however_long_the_queue(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=20)
    for i in range(50):
        engine.add_request(Request(str(i), [i] * 7, 1))
    drain(engine)
    assert engine.num_preemptions == 0


def test_the_first_token_comes_with_the_prefill_and_is_no_decode(make_engine) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(5), 3))
    first, second = engine.step(), engine.step()
    assert (first.scheduled.num_prefill_requests, first.scheduled.num_decode_requests) == (1, 0)
    assert (second.scheduled.num_prefill_requests, second.scheduled.num_decode_requests) == (0, 1)
    assert second.scheduled.sum_decode_kv_tokens == 6
    assert len(first.outputs) == len(second.outputs) == 1


def test_a_prefill_worker_gives_one_token_whatever_was_asked(make_engine, drain) -> None:
    engine = make_engine(worker_type="prefill")
    engine.add_request(Request("a", range(5), 50))
    run = drain(engine)
    assert len(run.tokens["a"]) == 1
    assert len(run.steps) == 1
    assert run.steps[0].outputs[0].finish_reason is FinishReason.LENGTH


def test_a_decode_worker_computes_no_prompt_that_was_prefilled_elsewhere(
    make_engine, drain
) -> None:
    fixed = {"type": "fixed", "prefill_ms": 100.0, "decode_ms": 1.0}
    engine = make_engine(worker_type="decode", timing_model=fixed)
    engine.add_request(Request("a", range(10), 4, remote_prefill=True))
    run = drain(engine)
    assert [step.duration_ms for step in run.steps] == [1.0] * 4
    assert len(run.tokens["a"]) == 4
    assert run.steps[0].kv_usage_ratio == 3 / 64
    assert run.steps[0].scheduled.num_prefill_requests == 0
    assert run.steps[0].scheduled.sum_decode_kv_tokens == 10
    assert all(not step.kv_events for step in run.steps)


def test_a_decode_worker_prefills_what_nobody_prefilled(make_engine, drain) -> None:
    fixed = {"type": "fixed", "prefill_ms": 100.0, "decode_ms": 1.0}
    engine = make_engine(worker_type="decode", timing_model=fixed)
    engine.add_request(Request("a", range(10), 2))
    assert [step.duration_ms for step in drain(engine).steps] == [100.0, 1.0]


def test_a_preempted_remote_prompt_is_computed_here(make_engine, drain) -> None:
    engine = make_engine(worker_type="decode", num_gpu_blocks=8, enable_prefix_caching=False)
    for name in "ab":
        engine.add_request(Request(name, [ord(name)] * 8, 20, remote_prefill=True))
    run = drain(engine)
    assert {name: len(tokens) for name, tokens in run.tokens.items()} == {"a": 20, "b": 20}
    assert any(step.scheduled.sum_prefill_tokens > 8 for step in run.steps)


def test_generation_stops_at_max_model_len(make_engine, drain) -> None:
    engine = make_engine(max_model_len=12)
    engine.add_request(Request("a", range(10), 100))
    run = drain(engine)
    assert len(run.tokens["a"]) == 2
    assert run.steps[-1].outputs[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("args", "prompt_tokens", "max_tokens", "field"),
    [
        ({}, 0, 5, "prompt"),
        ({}, 5, 0, "max_tokens"),
        ({"max_model_len": 12}, 12, 1, "prompt"),
        ({"num_gpu_blocks": 4}, 17, 1, "prompt"),
        ({"num_gpu_blocks": 4}, 10, 8, "max_tokens"),
        ({"max_num_batched_tokens": 8, "enable_chunked_prefill": False}, 9, 1, "prompt"),
    ],
)
def test_what_can_never_run_is_refused_and_holds_up_nobody(
    make_engine, drain, args: dict, prompt_tokens: int, max_tokens: int, field: str
) -> None:
    engine = make_engine(**args)
    with pytest.raises(RequestRefused) as refused:
        engine.add_request(Request("a", range(prompt_tokens), max_tokens))
    assert refused.value.field == field
    assert not engine.has_unfinished_requests
    engine.add_request(Request("a", range(3), 2))
    assert drain(engine).finished == ["a"]


def test_a_request_may_fill_the_cache_to_its_last_slot(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=4)
    engine.add_request(Request("a", range(10), 7))
    assert len(drain(engine).tokens["a"]) == 7


def test_an_id_in_use_and_a_bad_token_id_are_refused(make_engine) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(3), 2))
    with pytest.raises(RequestRefused, match="request_id"):
        engine.add_request(Request("a", range(3), 2))
    with pytest.raises(RequestRefused, match="prompt"):
        Request("b", [2**32], 2)
    with pytest.raises(RequestRefused, match="prompt"):
        Request("b", [-1], 2)


def test_a_cancelled_request_frees_its_slot_and_blocks_at_once(make_engine, drain) -> None:
    engine = make_engine(block_size=64, num_gpu_blocks=100)
    engine.add_request(Request("a", range(500), 200))
    for _ in range(129):
        engine.step()
    assert engine.kv_usage_ratio > 0
    assert engine.abort_request("a")
    assert (engine.num_running, engine.num_waiting, engine.kv_usage_ratio) == (0, 0, 0.0)
    assert engine.step() is None
    assert not engine.abort_request("a")


def test_a_waiting_and_a_preempted_request_can_be_cancelled(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=5)
    requests = [Request(name, [ord(name)] * 7, 9) for name in "abc"]
    for request in requests:
        engine.add_request(request)
    while engine.num_preemptions == 0:
        engine.step()
    for request in requests[1:]:
        assert engine.abort_request(request.request_id)
        assert request.status is RequestStatus.FINISHED_ABORTED
    step = engine.step()
    assert step.queued.num_decode_requests == step.queued.num_prefill_requests == 0
    assert step.queued.sum_decode_kv_tokens == step.queued.sum_prefill_tokens == 0
    assert drain(engine).finished == ["a"]


def test_a_request_whose_last_token_is_not_delivered_yet_is_past_cancelling(make_engine) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(3), 1))
    assert engine.step().outputs[0].finish_reason is FinishReason.LENGTH
    assert not engine.abort_request("a")
    assert engine.kv_usage_ratio == 0.0


def test_queued_metrics_describe_the_prompts_that_wait(make_engine) -> None:
    engine = make_engine(max_num_seqs=1)
    for name, length in (("a", 4), ("b", 6), ("c", 10)):
        engine.add_request(Request(name, range(length), 5))
    queued = engine.step().queued
    assert (queued.num_prefill_requests, queued.sum_prefill_tokens) == (2, 16)
    assert queued.var_prefill_length == 4.0


def test_scheduled_metrics_describe_the_spread_of_lengths(make_engine) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(4), 5))
    engine.add_request(Request("b", range(100, 110), 5))
    first, second = engine.step().scheduled, engine.step().scheduled
    assert (first.num_prefill_requests, first.sum_prefill_tokens) == (2, 14)
    assert first.var_prefill_length == 9.0
    assert (second.num_decode_requests, second.sum_decode_kv_tokens) == (2, 5 + 11)
    assert second.var_decode_kv_tokens == 9.0
