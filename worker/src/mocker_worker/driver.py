"""The only place where the engine meets real time: one task per data-parallel rank.

A pass starts with `run_pass`; what it changed in the cache is published at once, its tokens are
delivered when it has ended, all in one go. Passes that follow each other are chained deadline to
deadline, so timers that fire late do not slow the engine down. A driver that fell behind makes up
for it by passes that end at once, unless it is half a second or more: then it starts afresh.
Where passes are shorter than the event loop can turn, as many are run per turn as take as long as
the turn, half as long if streams are few, and a stream gets their tokens at once. A consumer that
may end its request gets its token with every pass, so that nothing is computed or counted after it.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

import msgspec

from mocker_worker.clock import Clock
from mocker_worker.engine import EngineCore, FinishReason, PassOutput, Request
from mocker_worker.events.sink import HEARTBEAT, EngineLoad, EventSink, PassReport
from mocker_worker.jitter import Jitter
from mocker_worker.stats import RankStats, RequestGroup, RequestTimes

HEARTBEAT_S = 1.0
_FEW_STREAMS = 16
"""A pass of fewer costs more per token than a turn of the loop that brings more of them."""
_LONGEST_TURN_S = 0.005
"""Bounds what a new request waits for, however slowly the loop turns."""
_LONGEST_LAG_S = 0.5
"""What the machine may take away is made up for; what is longer is lost."""


class EngineStopped(Exception):
    """The engine went away before a request was finished."""

    def __init__(self) -> None:
        super().__init__("the worker is shutting down")


class TokenConsumer(Protocol):
    """Takes the tokens of one request; it must neither block nor raise."""

    def take(self, token_ids: list[int], finish_reason: FinishReason | None) -> None:
        """Take the next tokens, one or more; with a finish reason they are the last ones."""
        ...

    def engine_stopped(self) -> None:
        """Learn that no more tokens will come, although the request is not finished."""
        ...


class TokenStream:
    """One request on its way to its consumer."""

    __slots__ = ("consumer", "finish_reason", "is_open", "pending", "request", "times")

    def __init__(self, request: Request, consumer: TokenConsumer, times: RequestTimes) -> None:
        self.request = request
        self.consumer = consumer
        self.times = times
        self.is_open = True
        """False once the consumer left or the last token was delivered."""
        self.pending: list[int] = []
        """Tokens that the consumer gets at the end of the loop's turn."""
        self.finish_reason: FinishReason | None = None
        """Of the last one of them."""


class EngineDriver:
    """Runs the engine of one rank in time."""

    def __init__(
        self,
        engine: EngineCore,
        *,
        dp_rank: int,
        clock: Clock,
        sink: EventSink,
        jitter: Jitter | None = None,
    ) -> None:
        self.engine = engine
        self.dp_rank = dp_rank
        self.stats = RankStats(engine.args.max_model_len or engine.args.kv_capacity_tokens)
        self._clock = clock
        self._sink = sink
        self._jitter = jitter or Jitter()
        self._streams: dict[str, TokenStream] = {}
        self._deliveries: list[tuple[TokenStream, int, FinishReason | None]] = []
        """What the end of the pass that is under way delivers."""
        self._fed: list[TokenStream] = []
        """Streams with tokens for their consumers."""
        self._may_stop: dict[TokenStream, None] = {}
        """Open streams whose consumers may end them, in the order of their arrival."""
        self._new: set[TokenStream] = set()
        """Open streams whose requests no pass has looked at yet."""
        self._is_stopped = False
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

    @property
    def num_queued(self) -> int:
        """Requests that wait for lack of room; new ones that the next pass has slots for do not."""
        engine, waiting = self.engine, self.engine.num_waiting
        new = len(self._new)
        slots = (engine.args.max_num_seqs or new + engine.num_running) - engine.num_running
        return waiting - min(new, max(slots, 0))

    def submit(
        self,
        request: Request,
        consumer: TokenConsumer,
        *,
        group: RequestGroup | None = None,
        may_stop: bool = False,
    ) -> TokenStream:
        """Give a request to the engine; it joins the next pass.

        Args:
            request: A new request.
            consumer: Gets its tokens, never before this call returns.
            group: The other answers to the same prompt.
            may_stop: Whether the consumer may `finish` it.

        Raises:
            RequestRefused: if it can never fit.
            EngineStopped: after `stop`.
        """
        if self._is_stopped:
            raise EngineStopped
        self.engine.add_request(request)
        stream = TokenStream(request, consumer, RequestTimes(self._clock.now_s(), group))
        self._streams[request.request_id] = stream
        if may_stop:
            self._may_stop[stream] = None
        self._new.add(stream)
        self._work.set()
        return stream

    def knows(self, request_id: str) -> bool:
        """Whether an unfinished request has this id."""
        return request_id in self._streams

    def cancel(self, stream: TokenStream) -> None:
        """Forget a stream whose consumer left; does nothing once it is finished."""
        self._close(stream, "abort")

    def finish(self, stream: TokenStream) -> None:
        """End a stream whose consumer saw a stop string in what it takes right now.

        Only for streams that were submitted with `may_stop`; does nothing once it is finished.
        """
        self._close(stream, "stop")

    def stop(self) -> None:
        """End all streams that are open, those that wait for their last token included."""
        self._is_stopped = True
        streams = [*self._streams.values(), *(stream for stream, _, _ in self._deliveries)]
        for stream in dict.fromkeys(streams):
            if stream.is_open:
                self.cancel(stream)
                stream.consumer.engine_stopped()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing changes, while requests hold blocks."""
        is_reset = self.engine.reset_prefix_cache()
        if events := self.engine.take_events():
            self._sink.publish_kv_events(self.dp_rank, events)
        return is_reset

    async def run(self) -> None:
        """Run passes while there is work, and heartbeats while there is none."""
        pass_end_s: float | None = None
        turn_s = turn_began_s = 0.0
        while True:
            if not self.engine.has_unfinished_requests:
                self._hand_out_all()
                await self._idle()
                pass_end_s = None
            now_s = self._clock.now_s()
            output = self.engine.run_pass()
            self._new.clear()
            if output is None:
                pass_end_s = None
                continue
            start_s = now_s if pass_end_s is None else pass_end_s
            duration_s = output.duration_ms / 1000.0 * self._jitter.factor()
            pass_end_s = start_s + duration_s
            if pass_end_s < now_s - _LONGEST_LAG_S:
                pass_end_s = now_s
            self._begin(output, now_s, duration_s)
            is_long = pass_end_s > now_s
            passes_s = turn_s / 2 if output.num_running < _FEW_STREAMS else turn_s
            if is_long or now_s - turn_began_s >= passes_s:
                turn_from_s = self._clock.now_s()
                self._hand_out_all()
                await self._clock.sleep_until(pass_end_s)
                turn_began_s = self._clock.now_s()
                turn_s = min(turn_began_s - max(turn_from_s, pass_end_s), _LONGEST_TURN_S)
            self._finish()
            if is_long:
                self._hand_out_all()

    async def _idle(self) -> None:
        """Wait for a request; who is told of load learns at once that there is none any more."""
        if self._running_in_pass and self._sink.wants_passes:
            self._sink.publish_load(self.dp_rank, self._load(0, self.engine.kv_usage_ratio))
        self._running_in_pass = 0
        self._usage_in_pass_ratio = self.engine.kv_usage_ratio
        self._work.clear()
        while not self._work.is_set():
            deadline_s = self._clock.now_s() + HEARTBEAT_S
            if not await self._clock.wait(self._work, deadline_s):
                load = self._load(0, self.engine.kv_usage_ratio)
                heartbeat = msgspec.structs.replace(HEARTBEAT, load=load)
                self._sink.publish_pass(self.dp_rank, heartbeat)

    def _begin(self, output: PassOutput, now_s: float, duration_s: float) -> None:
        """Publish what is visible at the start of a pass; note what its end delivers.

        Streams are looked up here, since a request that finishes in this pass frees its id.
        """
        if events := self.engine.take_events():
            self._sink.publish_kv_events(self.dp_rank, events)
        self._running_in_pass = output.num_running
        self._usage_in_pass_ratio = output.kv_usage_ratio
        load = output.load
        if self._sink.wants_passes:
            self._sink.publish_pass(self.dp_rank, self._report(output, duration_s))
        self.stats.pass_started(load.prefill_tokens + load.decode_contexts.count)
        streams, deliveries = self._streams, self._deliveries
        for request in output.admitted:
            if request.num_preemptions == 0 and (stream := streams.get(request.request_id)):
                stream.times.scheduled_s = now_s
        for request, token_id in output.sampled:
            reason = request.finish_reason
            if (stream := streams.get(request.request_id)) is not None:
                deliveries.append((stream, token_id, reason))
                if reason is not None:
                    del streams[request.request_id]

    def _report(self, output: PassOutput, duration_s: float) -> PassReport:
        load = self._load(output.num_running, output.kv_usage_ratio)
        return PassReport(duration_s, output.load.metrics(), self.engine.queued_requests(), load)

    def _load(self, num_running: int, kv_usage_ratio: float) -> EngineLoad:
        total_blocks = self.engine.args.num_gpu_blocks
        return EngineLoad(
            num_running=num_running,
            num_waiting=self.engine.num_waiting,
            kv_used_blocks=round(kv_usage_ratio * total_blocks),
            kv_total_blocks=total_blocks,
            prefix_cache_hit_rate=self.engine.prefix_cache_hit_rate,
        )

    def _finish(self) -> None:
        """Note the tokens of a pass for their consumers and observe their latencies."""
        now_s = self._clock.now_s()
        deliveries, self._deliveries = self._deliveries, []
        stats, fed = self.stats, self._fed
        gaps: dict[float, int] = {}
        ended: list[TokenStream] = []
        for stream, token_id, reason in deliveries:
            if not stream.is_open:
                continue
            times = stream.times
            last_s, times.last_token_s = times.last_token_s, now_s
            if last_s is None:
                times.first_token_s = now_s
                stats.first_token(stream.request, times)
            else:
                gaps[last_s] = gaps.get(last_s, 0) + 1
            if not stream.pending:
                fed.append(stream)
            stream.pending.append(token_id)
            if reason is not None:
                stream.finish_reason = reason
                ended.append(stream)
        for last_s, count in gaps.items():
            stats.token_gaps(now_s - last_s, count)
        if self._may_stop:
            self._hand_out([*self._may_stop])
        for stream in ended:
            if stream.is_open and stream.finish_reason is not None:
                self._end(stream, stream.finish_reason)

    def _hand_out_all(self) -> None:
        """Give the consumers what passes have left for them."""
        fed, self._fed = self._fed, []
        self._hand_out(fed)

    def _hand_out(self, streams: Iterable[TokenStream]) -> None:
        for stream in streams:
            token_ids, stream.pending = stream.pending, []
            if token_ids:
                stream.consumer.take(token_ids, stream.finish_reason)

    def _end(self, stream: TokenStream, reason: str) -> None:
        stream.is_open = False
        self._may_stop.pop(stream, None)
        self._new.discard(stream)
        self.stats.finished(stream.request, reason, stream.times)

    def _close(self, stream: TokenStream, reason: str) -> None:
        if not stream.is_open:
            return
        self._end(stream, reason)
        stream.pending = []
        request_id = stream.request.request_id
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort_request(request_id)
