from collections import defaultdict
from collections.abc import Callable

import pytest

from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.engine import EngineCore, StepOutput

MAX_PASSES = 100_000


@pytest.fixture
def make_engine() -> Callable[..., EngineCore]:
    """An engine with a small block size; keywords are engine arguments."""

    def make(**args: object) -> EngineCore:
        return EngineCore(parse_engine_args({"block_size": 4, "num_gpu_blocks": 64, **args}))

    return make


class Run:
    """What an engine did until it was idle."""

    def __init__(self) -> None:
        self.steps: list[StepOutput] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.finished: list[str] = []

    @property
    def duration_ms(self) -> float:
        return sum(step.duration_ms for step in self.steps)


@pytest.fixture
def drain() -> Callable[[EngineCore], Run]:
    """Run an engine's passes until it is idle."""

    def run(engine: EngineCore) -> Run:
        result = Run()
        while (step := engine.step()) is not None:
            assert len(result.steps) < MAX_PASSES, "the engine does not come to an end"
            result.steps.append(step)
            for output in step.outputs:
                result.tokens[output.request_id].append(output.token_id)
                if output.finish_reason is not None:
                    result.finished.append(output.request_id)
        return result

    return run
