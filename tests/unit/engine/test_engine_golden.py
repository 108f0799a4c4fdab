"""The engine's passes against those of Dynamo 1.6.1, in virtual time (see data/README.md)."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import pytest

from mocker_protocol.engine_args import EngineArgs, parse_engine_args
from mocker_worker.engine import EngineCore, Request, TokenOutput

DATA = Path(__file__).parent / "data"
EXPECTED = json.loads((DATA / "six_requests.expected.json").read_text())
TRACE = [json.loads(line) for line in (DATA / "six_requests.jsonl").read_text().splitlines()]
TOLERANCE_MS = 1e-5
MILESTONES = (
    "arrival_time_ms",
    "first_admit_ms",
    "decode_admit_ms",
    "first_token_ms",
    "terminal_time_ms",
)


@dataclass
class Times:
    arrival_ms: float
    first_admit_ms: float | None = None
    decode_admit_ms: float | None = None
    first_token_ms: float | None = None
    terminal_ms: float | None = None
    reused: int = 0
    tokens: int = 0

    def milestones(self) -> list[float | None]:
        return [
            self.arrival_ms,
            self.first_admit_ms,
            self.decode_admit_ms,
            self.first_token_ms,
            self.terminal_ms,
        ]


@dataclass
class Worker:
    """One engine and the pass that it is in."""

    engine: EngineCore
    requests: dict[str, Request] = field(default_factory=dict)
    admitted: set[str] = field(default_factory=set)
    ends_ms: float | None = None
    outputs: list[TokenOutput] = field(default_factory=list)

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.engine.add_request(request)

    def start_pass(self, now_ms: float) -> list[str]:
        """Begin a pass; returns who was admitted for the first time."""
        step = self.engine.step()
        if step is None:
            return []
        self.ends_ms, self.outputs = now_ms + step.duration_ms, step.outputs
        new = [
            request_id
            for request_id, request in self.requests.items()
            if request.num_computed_tokens and request_id not in self.admitted
        ]
        self.admitted.update(new)
        return new


def prompt_of(row: dict) -> list[int]:
    tokens = [hash_id for hash_id in row["hash_ids"] for _ in range(64)]
    return tokens[: row["input_length"]]


class Fleet:
    """Round-robin over workers, prefill first where there are prefill workers."""

    def __init__(self, entry: list[EngineCore], decode: list[EngineCore]) -> None:
        self.entry = [Worker(engine) for engine in entry]
        self.decode = [Worker(engine) for engine in decode]
        self.times: dict[str, Times] = {}
        self._dispatched = {"entry": 0, "decode": 0}

    def run(self) -> list[Times]:
        arrivals = [(float(row["timestamp"]), str(i)) for i, row in enumerate(TRACE)]
        while True:
            ends = [w.ends_ms for w in self.entry + self.decode if w.ends_ms is not None]
            upcoming = ends + [at for at, _ in arrivals[:1]]
            if not upcoming:
                return list(self.times.values())
            now = min(upcoming)
            while arrivals and arrivals[0][0] <= now:
                at, request_id = arrivals.pop(0)
                self.times[request_id] = Times(at)
                self._dispatch("entry", request_id)
            for role, workers in (("entry", self.entry), ("decode", self.decode)):
                for worker in workers:
                    if worker.ends_ms is not None and worker.ends_ms <= now:
                        self._end_pass(role, worker, now)
            self._start_passes(now)

    def _dispatch(self, role: str, request_id: str) -> None:
        workers = self.entry if role == "entry" else self.decode
        row = TRACE[int(request_id)]
        worker = workers[self._dispatched[role] % len(workers)]
        self._dispatched[role] += 1
        remote = role == "decode"
        request = Request(request_id, prompt_of(row), row["output_length"], remote_prefill=remote)
        worker.add(request)

    def _end_pass(self, role: str, worker: Worker, now: float) -> None:
        worker.ends_ms = None
        for output in worker.outputs:
            times = self.times[output.request_id]
            if role == "entry":
                times.reused = output.num_cached_tokens
            if role == "entry" and self.decode:
                self._dispatch("decode", output.request_id)
                continue
            times.tokens += 1
            if times.first_token_ms is None:
                times.first_token_ms = now
            if output.finish_reason is not None:
                times.terminal_ms = now

    def _start_passes(self, now: float) -> None:
        for worker in self.entry:
            if worker.ends_ms is None:
                for request_id in worker.start_pass(now):
                    self.times[request_id].first_admit_ms = now
        for worker in self.decode:
            if worker.ends_ms is None:
                for request_id in worker.start_pass(now):
                    self.times[request_id].decode_admit_ms = now


def engine(worker_type: str, case_args: list[str]) -> EngineCore:
    options = dict(zip(case_args[::2], case_args[1::2], strict=True))
    args: EngineArgs = parse_engine_args(
        {
            "worker_type": worker_type,
            "block_size": EXPECTED["engine"]["block_size"],
            "num_gpu_blocks": int(options.get("--blocks", EXPECTED["engine"]["num_gpu_blocks"])),
            **json.loads(options.get("--engine", "{}")),
        }
    )
    return EngineCore(args)


def fleet(case_args: list[str]) -> Fleet:
    options = dict(zip(case_args[::2], case_args[1::2], strict=True))
    if "--disagg" in options:
        prefill, decode = map(int, options["--disagg"].split(","))
        return Fleet(
            [engine("prefill", case_args) for _ in range(prefill)],
            [engine("decode", case_args) for _ in range(decode)],
        )
    return Fleet([engine("aggregated", case_args) for _ in range(int(options["--workers"]))], [])


@pytest.mark.parametrize("name", EXPECTED["cases"])
def test_every_request_has_the_times_that_dynamo_gives_it(name: str) -> None:
    case = EXPECTED["cases"][name]
    times = fleet(case["args"]).run()
    assert [t.tokens for t in times] == [row["output_length"] for row in case["requests"]]
    assert [t.reused for t in times] == [row["reused_input_tokens"] for row in case["requests"]]
    for ours, theirs in zip(times, case["requests"], strict=True):
        assert ours.milestones() == [
            pytest.approx(theirs[key], abs=TOLERANCE_MS, rel=0) if theirs[key] is not None else None
            for key in MILESTONES
        ]


def test_a_long_run_has_the_means_that_dynamo_gives_it() -> None:
    """2000 prompts of 1000 tokens, one every 50 ms, 100 tokens each, in one worker."""
    worker = EngineCore(parse_engine_args({}))
    first_ms: dict[int, float] = {}
    last_ms: dict[int, float] = {}
    now, arrived = 0.0, 0
    while len(last_ms) < 2000:
        while arrived < 2000 and arrived * 50.0 <= now:
            worker.add_request(Request(str(arrived), [arrived] * 1000, 100))
            arrived += 1
        step = worker.step()
        if step is None:
            now = arrived * 50.0
            continue
        now += step.duration_ms
        for output in step.outputs:
            first_ms.setdefault(int(output.request_id), now)
            if output.finish_reason is not None:
                last_ms[int(output.request_id)] = now
    ttft_ms = fmean(first_ms[i] - i * 50.0 for i in range(2000))
    itl_ms = fmean((last_ms[i] - first_ms[i]) / 99 for i in range(2000))
    assert now == pytest.approx(100683.7166, abs=1e-3)
    assert (ttft_ms, itl_ms) == (pytest.approx(44.1908, rel=1e-5), pytest.approx(22.4229, rel=1e-5))
