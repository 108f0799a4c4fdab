"""One engine in virtual time: the simulator's counterpart of the worker's driver.

A worker is idle, or in a pass, or in a run of passes that are alike. What a pass yields becomes
visible when it ends. A request that comes in during a run cuts it short after the pass it falls
into, so the next pass can admit it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from mocker_protocol.names import WorkerType
from mocker_simulator.records import SimulatedRequest, TokenGaps
from mocker_worker.engine import DecodeRun, EngineCore, PassOutput, Request


class Listener(Protocol):
    """Hears what becomes of requests, when it has become of them."""

    def prefilled(self, request: SimulatedRequest) -> None:
        """Hear that a request has its first token."""

    def finished(self, request: SimulatedRequest, now_ms: float) -> None:
        """Hear that a worker has done its part of a request."""


@dataclass(slots=True)
class Samples:
    """One row per pass or run of passes: when it ended, and what the worker looked like."""

    rows: list[tuple[float, int, int, float]] = field(default_factory=list)
    """Milliseconds, running, waiting, share of the KV cache in use."""


class VirtualWorker:
    """An engine, the pass that it is in, and what it has to tell at the end of it."""

    def __init__(
        self, number: int, engine: EngineCore, gaps: TokenGaps, *, samples: Samples | None = None
    ) -> None:
        self.number = number
        self.engine = engine
        startup_s = engine.args.startup_time
        self.ends_ms: float | None = startup_s * 1000 if startup_s else None
        """When the present pass, or run, or the start of the process ends; None while idle."""
        self._prefills = engine.args.worker_type is WorkerType.PREFILL
        """Its tokens are not for the client: they stand for KV to hand over."""
        self._decodes = engine.args.worker_type is WorkerType.DECODE
        self._gaps = gaps
        self._samples = samples
        self._starts_ms = 0.0
        self._run: DecodeRun | None = None
        self._passes = 0
        """Passes of the run that will be run, not fewer than have started."""
        self._early: list[SimulatedRequest] = []
        """Requests that end with the present pass, if the engine has caught up with it."""
        self._output: PassOutput | None = None

    def add(self, request: SimulatedRequest, now_ms: float) -> bool:
        """Queue a request; True if this changes when the worker's present work ends."""
        self.engine.add_request(request)
        return self.cut(now_ms)

    def cut(self, now_ms: float) -> bool:
        """End a run with the pass that is running now; True if that is earlier than planned."""
        run = self._run
        if run is None:
            return False
        passes = run.passes_until(now_ms - self._starts_ms)
        if passes >= self._passes:
            return False
        self._passes = passes
        self.ends_ms = self._starts_ms + run.elapsed_ms(passes)
        return True

    def catch_up(self, now_ms: float) -> bool:
        """Let the engine be what it is in the present pass; True if a run ends sooner for it."""
        run = self._run
        if run is None:
            return False
        sooner = self.cut(now_ms)
        assert self.ends_ms is not None, "a run has an end"
        self._run = None
        self._early = self._decode(run, self._passes, self.ends_ms)
        return sooner

    def start(self, now_ms: float) -> bool:
        """Begin the next pass or run; False if there is nothing to do."""
        self._starts_ms = now_ms
        self._run = run = self.engine.decode_run()
        if run is not None:
            self._passes = run.num_passes
            self.ends_ms = now_ms + run.elapsed_ms(run.num_passes)
            return True
        self._output = output = self.engine.run_pass()
        if output is None:
            return False
        for request in _simulated(output.admitted):
            _note_admission(request, now_ms, decodes=self._decodes)
        self.ends_ms = now_ms + output.duration_ms
        return True

    def end(self, now_ms: float, listener: Listener) -> None:
        """End the present pass or run, and name the requests that it completed."""
        if self._samples is not None:
            engine = self.engine
            row = (now_ms, engine.num_running, engine.num_waiting, engine.kv_usage_ratio)
            self._samples.rows.append(row)
        self.ends_ms = None
        if self._run is not None:
            self._end_run(self._run, now_ms, listener)
        elif self._output is not None:
            self._end_pass(self._output, now_ms, listener)
        else:
            self._finish(now_ms, listener)

    def cached_blocks(self, request: SimulatedRequest) -> int:
        """Return how many blocks of a request's prompt the worker has cached."""
        return self.engine.count_cached(request.prompt_keys)

    def _end_run(self, run: DecodeRun, now_ms: float, listener: Listener) -> None:
        self._run = None
        self._early = self._decode(run, self._passes, now_ms)
        self._finish(now_ms, listener)

    def _finish(self, now_ms: float, listener: Listener) -> None:
        """Name the requests that a run completed."""
        done, self._early = self._early, []
        for request in done:
            request.record.finish_ms = now_ms
            listener.finished(request, now_ms)

    def _decode(self, run: DecodeRun, passes: int, now_ms: float) -> list[SimulatedRequest]:
        """Run passes that end at `now_ms`; returns the requests that end with the last one."""
        first_ms, last_ms = run.pass_ms(0), run.pass_ms(passes - 1)
        on_time = 0
        for request in _simulated(self.engine.running):
            record = request.record
            if record.latest_token_ms == self._starts_ms:
                on_time += 1
            else:
                self._gaps.add(self._starts_ms + first_ms - record.latest_token_ms)
                self._gaps.add_stretch(run.pass_ms(1), last_ms, passes - 1)
            record.latest_token_ms = now_ms
            record.received_tokens += passes
        if on_time:
            self._gaps.add_stretch(first_ms, last_ms, passes * on_time)
        return list(_simulated(self.engine.run_decodes(passes)))

    def _end_pass(self, output: PassOutput, now_ms: float, listener: Listener) -> None:
        self._output = None
        on_time, starts_ms = 0, self._starts_ms
        for request in _simulated([request for request, _ in output.sampled]):
            record = request.record
            if self._prefills:
                request.is_handed_over = True
                listener.prefilled(request)
                listener.finished(request, now_ms)
                continue
            record.received_tokens += 1
            if record.first_token_ms is None:
                record.first_token_ms = now_ms
                listener.prefilled(request)
            elif record.latest_token_ms == starts_ms:
                on_time += 1
            else:
                self._gaps.add(now_ms - record.latest_token_ms)
            record.latest_token_ms = now_ms
            if request.num_tokens >= request.end_tokens:
                record.finish_ms = now_ms
                listener.finished(request, now_ms)
        if on_time:
            gap_ms = now_ms - self._starts_ms
            self._gaps.add_stretch(gap_ms, gap_ms, on_time)


def _simulated(requests: Sequence[Request]) -> Sequence[SimulatedRequest]:
    """Return the same requests: the simulator adds no others."""
    return cast("Sequence[SimulatedRequest]", requests)


def _note_admission(request: SimulatedRequest, now_ms: float, *, decodes: bool) -> None:
    record = request.record
    if decodes:
        if record.decode_admit_ms is None:
            record.decode_admit_ms = now_ms
    elif record.first_admit_ms is None:
        record.first_admit_ms = now_ms
        record.first_reused_tokens = record.reused_tokens = request.num_cached_tokens
    elif request.num_preemptions:
        record.reused_tokens = request.num_reused_tokens
