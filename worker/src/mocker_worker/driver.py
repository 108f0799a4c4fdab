"""The only place where the engine meets real time: one task per data-parallel rank.

A pass starts with `step`; what it changed in the cache is published at once, its tokens are
delivered when it has ended, all in one go. Passes that follow each other are chained deadline to
deadline, so timers that fire late do not slow the engine down; a driver that fell behind by more
than a pass starts afresh instead of rushing.
"""

import asyncio

from mocker_worker.clock import Clock
from mocker_worker.engine import EngineCore, Request, StepOutput, TokenOutput
from mocker_worker.events.sink import HEARTBEAT, EventSink, PassReport
from mocker_worker.stats import RankStats

HEARTBEAT_S = 1.0


class EngineStopped(Exception):
    """The engine went away before the request was finished."""


class TokenStream:
    """Tokens of one request, oldest first, for one consumer."""

    __slots__ = (
        "_buffer",
        "_stopped",
        "_waiter",
        "arrival_s",
        "is_open",
        "last_token_s",
        "request",
    )

    def __init__(self, request: Request, arrival_s: float) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.last_token_s: float | None = None
        self.is_open = True
        """False once the consumer left or the last token was delivered."""
        self._buffer: list[TokenOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        self._stopped = False

    async def next_tokens(self) -> list[TokenOutput]:
        """Wait for tokens and return all that have come; mostly one.

        Raises:
            EngineStopped: when no more will come.
        """
        if not self._buffer:
            if self._stopped:
                raise EngineStopped("the worker is shutting down")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            return await self.next_tokens()
        tokens, self._buffer = self._buffer, []
        return tokens

    def deliver(self, token: TokenOutput) -> None:
        """Append a token."""
        self._buffer.append(token)
        self._wake()

    def stop(self) -> None:
        """Say that no more tokens will come."""
        self.is_open = False
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineDriver:
    """Runs the engine of one rank in time."""

    def __init__(self, engine: EngineCore, *, dp_rank: int, clock: Clock, sink: EventSink) -> None:
        self.engine = engine
        self.dp_rank = dp_rank
        self.stats = RankStats()
        self._clock = clock
        self._sink = sink
        self._streams: dict[str, TokenStream] = {}
        self._deliveries: list[tuple[TokenStream, TokenOutput]] = []
        """What the end of the pass that is under way delivers."""
        self._work = asyncio.Event()
        self._running_in_pass = 0
        self._usage_in_pass_ratio = 0.0

    @property
    def num_running(self) -> int:
        """Requests in the pass that is under way; 0 between passes."""
        return self._running_in_pass

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the cache that requests hold in the pass that is under way."""
        return self._usage_in_pass_ratio

    @property
    def num_streams(self) -> int:
        """Requests that were submitted and whose last token was not yet computed."""
        return len(self._streams)

    def submit(self, request: Request) -> TokenStream:
        """Give a request to the engine; it joins the next pass.

        Raises:
            RequestRefused: if it can never fit.
        """
        self.engine.add_request(request)
        stream = TokenStream(request, self._clock.now_s())
        self._streams[request.request_id] = stream
        self._work.set()
        return stream

    def knows(self, request_id: str) -> bool:
        """Whether an unfinished request has this id."""
        return request_id in self._streams

    def cancel(self, stream: TokenStream) -> None:
        """Forget a stream whose consumer left; does nothing once it is finished."""
        if not stream.is_open:
            return
        stream.is_open = False
        self.stats.finished["abort"] += 1
        request_id = stream.request.request_id
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort_request(request_id)

    def stop(self) -> None:
        """End all streams that are open, those that wait for their last token included."""
        streams = [*self._streams.values(), *(stream for stream, _ in self._deliveries)]
        for stream in streams:
            self.cancel(stream)
            stream.stop()

    async def run(self) -> None:
        """Run passes while there is work, and heartbeats while there is none."""
        pass_end_s: float | None = None
        while True:
            if not self.engine.has_unfinished_requests:
                await self._idle()
                pass_end_s = None
            now_s = self._clock.now_s()
            output = self.engine.step()
            if output is None:
                pass_end_s = None
                continue
            start_s = now_s if pass_end_s is None else pass_end_s
            pass_end_s = max(start_s + output.duration_ms / 1000.0, now_s)
            self._begin(output)
            await self._clock.sleep_until(pass_end_s)
            self._finish()

    async def _idle(self) -> None:
        """Wait for a request."""
        self._work.clear()
        while not self._work.is_set():
            deadline_s = self._clock.now_s() + HEARTBEAT_S
            if not await self._clock.wait(self._work, deadline_s):
                self._sink.publish_pass(self.dp_rank, HEARTBEAT)

    def _begin(self, output: StepOutput) -> None:
        """Publish what is visible at the start of a pass; note what its end delivers.

        Streams are looked up here, since a request that finishes in this pass frees its id.
        """
        if output.kv_events:
            self._sink.publish_kv_events(self.dp_rank, output.kv_events)
        self._sink.publish_pass(
            self.dp_rank,
            PassReport(output.duration_ms / 1000.0, output.scheduled, output.queued),
        )
        self._running_in_pass = output.num_running
        self._usage_in_pass_ratio = output.kv_usage_ratio
        for token in output.outputs:
            stream = self._streams.get(token.request_id)
            if stream is None:
                continue
            self._deliveries.append((stream, token))
            if token.finish_reason is not None:
                del self._streams[token.request_id]

    def _finish(self) -> None:
        """Deliver the tokens of a pass and observe their latencies."""
        now_s = self._clock.now_s()
        deliveries, self._deliveries = self._deliveries, []
        if not self.engine.has_unfinished_requests:
            self._running_in_pass = 0
            self._usage_in_pass_ratio = self.engine.kv_usage_ratio
        stats = self.stats
        gaps: dict[float, int] = {}
        for stream, token in deliveries:
            if not stream.is_open:
                continue
            if (last_s := stream.last_token_s) is None:
                stats.ttft.observe(now_s - stream.arrival_s)
                stats.prompt_tokens += stream.request.num_prompt_tokens
            else:
                gaps[last_s] = gaps.get(last_s, 0) + 1
            stream.last_token_s = now_s
            stats.generation_tokens += 1
            if token.finish_reason is not None:
                stream.is_open = False
                stats.finished[token.finish_reason] += 1
                stats.e2e.observe(now_s - stream.arrival_s)
            stream.deliver(token)
        for last_s, count in gaps.items():
            stats.itl.observe(now_s - last_s, count)
