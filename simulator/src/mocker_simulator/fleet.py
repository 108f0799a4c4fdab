"""A fleet of virtual workers: events in the order of their time, and nothing between them.

At one instant requests arrive first, then passes end (entry workers before decode workers, each
by number), then passes start. In a disaggregated fleet the entry workers prefill. The KV of what
they have finished is sent to a decode worker from one of its passes on, one prompt with each pass.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from mocker_protocol.engine_args import EngineArgs
from mocker_simulator.records import RequestRecord, SimulatedRequest, TokenGaps
from mocker_simulator.routing import Router
from mocker_simulator.source import Source
from mocker_simulator.transfer import KvTransfer
from mocker_simulator.virtual_worker import Samples, VirtualWorker
from mocker_simulator.workload import Workload
from mocker_worker.engine import EngineCore, RequestRefused


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The engines of a fleet."""

    entry: EngineArgs
    num_entry: int
    """Aggregated workers, or prefill workers if there are decode workers."""
    decode: EngineArgs | None = None
    num_decode: int = 0


@dataclass(slots=True)
class Outcome:
    """What a simulation found."""

    records: list[RequestRecord] = field(default_factory=list)
    gaps: TokenGaps = field(default_factory=TokenGaps)
    samples: list[Samples] = field(default_factory=list)
    """Per worker, entry workers first; empty unless asked for."""
    preemptions: int = 0


class Fleet:
    """Runs one workload through one fleet."""

    def __init__(
        self,
        spec: FleetSpec,
        workload: Workload,
        *,
        make_router: Callable[[list[VirtualWorker]], Router],
        concurrency: int | None = None,
        sampling: bool = False,
    ) -> None:
        """Set a fleet up.

        Args:
            spec: The engines.
            workload: What comes in.
            make_router: Makes the router among the workers of one role.
            concurrency: Clients that send the next request when theirs has finished; None lets
                the requests come at their own times.
            sampling: Keep the state of every worker after each pass, for a report.
        """
        self.num_requests = len(workload)
        self.outcome = Outcome()
        self._sampling = sampling
        self._workers: list[VirtualWorker] = []
        self._entry = make_router(self._make(spec.entry, spec.num_entry))
        self._decode: Router | None = None
        if spec.decode is not None:
            self._decode = make_router(self._make(spec.decode, spec.num_decode))
        self._transfer = KvTransfer(spec.entry)
        self._in_transfer: dict[int, tuple[VirtualWorker, SimulatedRequest]] = {}
        self._reservations: list[deque[SimulatedRequest]] = [deque() for _ in self._workers]
        """Per decode worker whose KV it has not begun to take; one begins with each pass."""
        self._source = Source(workload, spec.entry.block_size, concurrency)
        self._clock: list[tuple[float, int, int]] = []
        """Heap of (end of a pass in ms, worker, serial) and (end of a transfer, -1, request)."""
        self._serials = [0] * len(self._workers)
        """The entry of each worker that counts; older ones in the heap are void."""
        self._touched: set[int] = set()
        """Workers that may start a pass now."""
        for worker in self._workers:
            if worker.ends_ms is not None:
                self._schedule(worker)

    def run(self, progress: Callable[[int], None] | None = None) -> Outcome:
        """Run to the last token; `progress` hears how many requests have arrived."""
        source, clock = self._source, self._clock
        while True:
            now = source.next_ms
            if clock and clock[0][0] < now:
                now = clock[0][0]
            if now == inf:
                break
            while source.next_ms <= now:
                self._arrive(now)
                if progress is not None:
                    progress(source.sent)
            while clock and clock[0][0] <= now:
                self._happen(now)
            if source.next_ms > now:
                self._start(now)
        self.outcome.preemptions = sum(w.engine.num_preemptions for w in self._workers)
        return self.outcome

    def prefilled(self, request: SimulatedRequest) -> None:
        """Tell the router that sent a request that it has its first token."""
        self._router_of(request).prefilled(request)

    def finished(self, request: SimulatedRequest, now_ms: float) -> None:
        """Take a request from a worker that has done its part."""
        self._router_of(request).completed(request)
        if request.is_handed_over:
            self._hand_over(request, now_ms)
        else:
            self._source.completed(now_ms)

    def _make(self, args: EngineArgs, count: int) -> list[VirtualWorker]:
        start = len(self._workers)
        for number in range(start, start + count * args.dp_size):
            samples = Samples() if self._sampling else None
            if samples is not None:
                self.outcome.samples.append(samples)
            engine = EngineCore(args, dp_rank=(number - start) % args.dp_size)
            self._workers.append(VirtualWorker(number, engine, self.outcome.gaps, samples=samples))
        return self._workers[start:]

    def _arrive(self, now: float) -> None:
        """Send the next request to an entry worker."""
        request = self._source.send()
        record = request.record
        self.outcome.records.append(record)
        if self._entry.looks_at_caches:
            for present in self._workers:
                if present.catch_up(now):
                    self._schedule(present)
        worker = self._entry.choose(request, now)
        record.worker = worker.number
        self._add(worker, request, now)

    def _add(self, worker: VirtualWorker, request: SimulatedRequest, now: float) -> None:
        try:
            sooner = worker.add(request, now)
        except RequestRefused as refused:
            request.record.refused = str(refused)
            self._router_of(request).completed(request)
            self._source.completed(now)
            return
        if sooner:
            self._schedule(worker)
        elif worker.ends_ms is None:
            self._touched.add(worker.number)

    def _happen(self, now: float) -> None:
        """Let the next thing happen: a pass or a transfer of KV ends."""
        _, number, serial = heappop(self._clock)
        if number < 0:
            self._add(*self._in_transfer.pop(serial), now)
        elif self._serials[number] == serial:
            self._workers[number].end(now, self)
            self._touched.add(number)

    def _start(self, now: float) -> None:
        touched = self._touched
        for number in sorted(touched) if len(touched) > 1 else tuple(touched):
            worker = self._workers[number]
            if worker.ends_ms is not None:
                continue
            self._take_kv(worker, now)
            if worker.start(now):
                if self._reservations[number]:
                    worker.cut(now)
                self._schedule(worker)
        self._touched.clear()

    def _schedule(self, worker: VirtualWorker) -> None:
        assert worker.ends_ms is not None, "only a worker in a pass has an end to wait for"
        self._serials[worker.number] += 1
        entry = (worker.ends_ms, worker.number, self._serials[worker.number])
        heappush(self._clock, entry)

    def _router_of(self, request: SimulatedRequest) -> Router:
        """Return the router that has sent a request to where it is."""
        return self._decode if self._decode and request.remote_prefill else self._entry

    def _hand_over(self, request: SimulatedRequest, now: float) -> None:
        assert self._decode is not None, "prefill workers come with decode workers"
        record = request.record
        remote = SimulatedRequest(record, prompt_keys=request.prompt_keys, remote_prefill=True)
        worker = self._decode.choose(remote, now)
        record.decode_worker = worker.number
        if self._transfer.is_instant:
            self._add(worker, remote, now)
            return
        self._reservations[worker.number].append(remote)
        if worker.cut(now):
            self._schedule(worker)
        elif worker.ends_ms is None:
            self._touched.add(worker.number)

    def _take_kv(self, worker: VirtualWorker, now: float) -> None:
        """Begin transfers to a worker between two passes: all while it is idle, else one.

        One more when the KV of another has arrived: Dynamo's engine then takes two steps at once.
        """
        queue, engine = self._reservations[worker.number], worker.engine
        if queue and engine.num_waiting:
            self._reserve(worker, now)
        if queue:
            self._reserve(worker, now)
        while queue and not engine.has_unfinished_requests:
            self._reserve(worker, now)

    def _reserve(self, worker: VirtualWorker, now: float) -> None:
        """Let a worker take the next prompt's KV; its transfer begins."""
        request = self._reservations[worker.number].popleft()
        cached = worker.cached_blocks(request)
        delay_ms = self._transfer.delay_ms(request.num_prompt_tokens, cached)
        if delay_ms:
            self._in_transfer[request.record.index] = worker, request
            heappush(self._clock, (now + delay_ms, -1, request.record.index))
        else:
            self._add(worker, request, now)
