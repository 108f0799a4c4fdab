"""Generated tokens: their range, and what they depend on."""

import subprocess
import sys

from mocker_worker.engine import Request
from mocker_worker.engine.sampling import sample_token, stream_seed


def tokens_of(engine, drain, request: Request) -> list[int]:
    engine.add_request(request)
    return drain(engine).tokens[request.request_id]


def test_tokens_cover_100_to_200_and_nothing_else() -> None:
    seen = {sample_token(7, position) for position in range(5000)}
    assert seen == set(range(100, 201))


def test_same_seed_and_input_give_the_same_tokens(make_engine, drain) -> None:
    first = tokens_of(make_engine(seed=5), drain, Request("a", [1, 2], 30))
    assert first == tokens_of(make_engine(seed=5), drain, Request("a", [1, 2], 30))
    assert first != tokens_of(make_engine(seed=6), drain, Request("a", [1, 2], 30))
    assert first != tokens_of(make_engine(seed=5), drain, Request("b", [1, 2], 30))


def test_a_request_seed_outweighs_the_request_id(make_engine, drain) -> None:
    first = tokens_of(make_engine(), drain, Request("a", [1, 2], 30, seed=-3))
    assert first == tokens_of(make_engine(), drain, Request("b", [1, 2], 30, seed=-3))


def test_the_stream_does_not_depend_on_the_process() -> None:
    code = "from mocker_worker.engine.sampling import stream_seed; print(stream_seed(1, 'é', None))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == stream_seed(1, "é", None)


def test_preemption_does_not_change_an_answer(make_engine, drain) -> None:
    calm, tight = make_engine(), make_engine(num_gpu_blocks=8)
    for engine in (calm, tight):
        for name in "ab":
            engine.add_request(Request(name, [ord(name)] * 8, 20))
    expected, actual = drain(calm), drain(tight)
    assert tight.num_preemptions > 0
    assert actual.tokens == expected.tokens
