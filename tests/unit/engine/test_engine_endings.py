"""How an answer ends: its script, a stop token, or a limit; and what the cache keeps of it."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.engine import (
    EngineCore,
    FinishReason,
    Request,
    RequestRefused,
    RequestStatus,
    TokenOutput,
)

SMALL = {"block_size": 4, "num_gpu_blocks": 64}


def answer(engine: EngineCore, request: Request) -> list[TokenOutput]:
    """Run a request alone to its end."""
    engine.add_request(request)
    outputs = []
    while (step := engine.step()) is not None:
        outputs += step.outputs
    assert (engine.num_running, engine.num_kv_blocks_held) == (0, 0)
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is request.finish_reason
    return outputs


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    return [output.token_id for output in outputs]


def random_answer(length: int) -> list[int]:
    """The tokens that seed 5 gives."""
    engine = EngineCore(parse_engine_args(SMALL))
    return tokens_of(answer(engine, Request("plain", range(5), length, seed=5)))


RANDOM = random_answer(40)


def test_a_script_is_the_answer_and_its_end_a_stop(make_engine) -> None:
    request = Request("a", range(5), 100, script=[7, 8, 9])
    outputs = answer(make_engine(), request)
    assert tokens_of(outputs) == [7, 8, 9]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert request.status is RequestStatus.FINISHED_STOPPED
    assert list(request.token_ids) == [*range(5), 7, 8, 9]


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_script_that_the_limit_cuts_or_meets_ends_by_length(make_engine, max_tokens) -> None:
    request = Request("a", range(5), max_tokens, script=[7, 8, 9])
    assert tokens_of(answer(make_engine(), request)) == [7, 8, 9][:max_tokens]
    assert request.status is RequestStatus.FINISHED_LENGTH


def test_a_script_ends_at_the_longest_context(make_engine) -> None:
    request = Request("a", range(5), 100, script=range(50))
    assert tokens_of(answer(make_engine(max_model_len=8), request)) == [0, 1, 2]
    assert request.finish_reason is FinishReason.LENGTH


def test_a_prefill_worker_gives_the_first_token_of_a_script(make_engine) -> None:
    request = Request("a", range(5), 100, script=[7, 8, 9])
    outputs = answer(make_engine(worker_type="prefill"), request)
    assert [(o.token_id, o.finish_reason) for o in outputs] == [(7, FinishReason.LENGTH)]


def test_a_stop_token_is_delivered_and_ends_the_answer(make_engine) -> None:
    request = Request("a", range(5), 40, seed=5, stop_token_ids={RANDOM[10]})
    end = RANDOM.index(RANDOM[10]) + 1
    assert tokens_of(answer(make_engine(), request)) == RANDOM[:end]
    assert request.finish_reason is FinishReason.STOP


def test_a_stop_token_in_a_script_ends_it(make_engine) -> None:
    request = Request("a", range(5), 40, script=[7, 8, 9, 8], stop_token_ids=[8], min_tokens=3)
    assert tokens_of(answer(make_engine(), request)) == [7, 8, 9, 8]
    request = Request("b", range(5), 40, script=[7, 8, 9, 8], stop_token_ids=[8], min_tokens=2)
    assert tokens_of(answer(make_engine(), request)) == [7, 8]


def test_a_stop_token_at_the_limit_is_a_stop_as_in_vllm(make_engine) -> None:
    request = Request("a", range(5), 2, script=[7, 8, 9], stop_token_ids=[8])
    assert answer(make_engine(), request)[-1].finish_reason is FinishReason.STOP


@given(
    st.sets(st.sampled_from(RANDOM), max_size=6),
    st.integers(0, 45),
    st.integers(1, 40),
    st.integers(0, 45),
)
def test_an_answer_is_the_same_stream_cut_by_whatever_comes_first(
    stops: set[int], min_tokens: int, max_tokens: int, script_length: int
) -> None:
    engine = EngineCore(parse_engine_args({**SMALL, "speedup_ratio": 0}))
    stream = [1000 + i // 2 for i in range(script_length)] or RANDOM
    stops |= {1000 + token - 100 for token in stops}
    request = Request(
        "a",
        range(5),
        max_tokens,
        seed=5,
        script=stream if script_length else (),
        stop_token_ids=stops,
        min_tokens=min_tokens,
    )
    ends = [
        i for i, token in enumerate(stream[:max_tokens], 1) if token in stops and i >= min_tokens
    ]
    expected = stream[: min([*ends, max_tokens])]
    assert tokens_of(answer(engine, request)) == expected
    stopped = bool(ends) or len(expected) < max_tokens
    assert request.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)


def test_a_stopped_request_leaves_its_full_blocks_cached(make_engine) -> None:
    engine = make_engine()
    answer(engine, Request("a", range(5), 100, script=[7, 8, 9, 10, 11]))
    known = [*range(5), 7, 8, 9, 10]
    [chain] = engine.cached_blocks()
    assert list(chain.blocks) == hash_blocks(known, 4)
    assert answer(engine, Request("b", [*known, 99], 1))[0].num_cached_tokens == 8


def test_a_preempted_request_goes_on_with_its_script(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=6)
    scripts = {name: [ord(name) * 10 + i for i in range(14)] for name in "ab"}
    for name, script in scripts.items():
        engine.add_request(Request(name, [ord(name)] * 5, 15, script=script))
    assert drain(engine).tokens == scripts
    assert engine.num_preemptions > 0


@pytest.mark.parametrize("bad", [[-1], [2**32], [1.5], ["a"]])
def test_a_script_of_other_things_than_tokens_is_refused(bad: list) -> None:
    with pytest.raises(RequestRefused, match="script: token ids"):
        Request("a", [1], 1, script=bad)


def test_a_salt_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestRefused, match="cache_salt: has half a surrogate pair"):
        Request("a", [1], 1, cache_salt="\ud800")


def test_a_prompt_may_be_an_array(make_engine) -> None:
    tokens = array("I", range(9))
    request = Request("a", tokens, 3)
    answer(make_engine(), request)
    assert list(tokens) == list(range(9)), "the caller's array is not the engine's"


def test_the_queue_tells_how_many_prompt_tokens_wait(make_engine) -> None:
    engine = make_engine(max_num_seqs=1)
    for name, length in (("a", 5), ("b", 7), ("c", 11)):
        engine.add_request(Request(name, range(length), 2))
    assert (engine.num_waiting_tokens, engine.num_kv_blocks_held) == (23, 0)
    step = engine.step()
    assert [request.request_id for request in step.admitted] == ["a"]
    assert (engine.num_waiting_tokens, engine.num_kv_blocks_held) == (18, 2)
    engine.abort_request("b")
    assert engine.num_waiting_tokens == 11
    assert engine.step().admitted == []
    assert [request.request_id for request in engine.step().admitted] == ["c"]
    assert engine.num_waiting_tokens == 0


def test_who_was_preempted_is_admitted_again_and_says_so(make_engine) -> None:
    engine = make_engine(num_gpu_blocks=6)
    for name in "ab":
        engine.add_request(Request(name, [ord(name)] * 5, 16))
    admitted, waiting = [], set()
    while (step := engine.step()) is not None:
        admitted += [(r.request_id, r.num_preemptions) for r in step.admitted]
        waiting.add(engine.num_waiting_tokens)
    assert admitted == [("a", 0), ("b", 0), ("b", 1)]
    assert waiting == {0, 5}
