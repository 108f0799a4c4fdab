import asyncio
import contextlib

import pytest

from mocker_protocol.engine_args import EngineArgs, FixedTiming
from mocker_protocol.kv_events import AllBlocksCleared, BlockStored
from mocker_worker.driver import EngineDriver, EngineStopped
from mocker_worker.engine import EngineCore, Request, RequestRefused

PREFILL_S, DECODE_S = 0.1, 0.01


class ManualClock:
    """Time that only moves when a test says so."""

    def __init__(self):
        self.time_s = 0.0
        self.waits: list[tuple[float, asyncio.Future]] = []

    def now_s(self):
        return self.time_s

    async def sleep_until(self, deadline_s):
        if deadline_s <= self.time_s:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        self.waits.append((deadline_s, woken))
        await woken

    async def wait(self, event, deadline_s):
        tasks = {
            asyncio.ensure_future(event.wait()),
            asyncio.ensure_future(self.sleep_until(deadline_s)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        return event.is_set()

    async def move_to(self, time_s):
        await settle()
        self.time_s = time_s
        due = [wait for wait in self.waits if wait[0] <= time_s]
        self.waits = [wait for wait in self.waits if wait[0] > time_s]
        for _, woken in due:
            if not woken.done():
                woken.set_result(None)
        await settle()

    @property
    def deadlines(self):
        return [deadline for deadline, woken in self.waits if not woken.done()]


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


class RecordingSink:
    wants_passes = True

    def __init__(self):
        self.kv_events = []
        self.passes = []
        self.loads = []

    def publish_kv_events(self, dp_rank, events):
        self.kv_events += events

    def publish_pass(self, dp_rank, report):
        self.passes.append(report)

    def publish_load(self, dp_rank, load):
        self.loads.append(load)


class Collector:
    """A consumer that keeps what it gets."""

    def __init__(self):
        self.tokens = []
        self.shares = []
        self.is_stopped = False

    def take(self, token_ids, finish_reason):
        self.tokens += token_ids
        self.shares.append(len(token_ids))

    def engine_stopped(self):
        self.is_stopped = True


class Rig:
    def __init__(self, **args):
        timing = FixedTiming(type="fixed", prefill_ms=PREFILL_S * 1e3, decode_ms=DECODE_S * 1e3)
        args = {"block_size": 4, "num_gpu_blocks": 8, "timing_model": timing} | args
        self.clock = ManualClock()
        self.sink = RecordingSink()
        self.engine = EngineCore(EngineArgs(**args))
        self.driver = EngineDriver(self.engine, dp_rank=0, clock=self.clock, sink=self.sink)

    def submit(self, request_id="a", prompt=range(8), max_tokens=3):
        return self.driver.submit(Request(request_id, prompt, max_tokens), Collector())


@contextlib.asynccontextmanager
async def running(**args):
    rig = Rig(**args)
    task = asyncio.create_task(rig.driver.run())
    await settle()
    try:
        yield rig
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def available(stream):
    tokens, stream.consumer.tokens = stream.consumer.tokens, []
    return tokens


async def test_tokens_come_when_their_pass_has_ended():
    async with running() as rig:
        stream = rig.submit()
        await rig.clock.move_to(0.099)
        assert not available(stream)

        await rig.clock.move_to(0.1)
        assert len(available(stream)) == 1


async def test_cache_events_and_metrics_are_published_at_the_start_of_the_pass():
    async with running() as rig:
        stream = rig.submit()
        await settle()

        assert [type(event) for event in rig.sink.kv_events] == [BlockStored]
        assert rig.sink.passes[-1].wall_time_s == pytest.approx(PREFILL_S)
        assert rig.sink.passes[-1].scheduled.sum_prefill_tokens == 8
        assert not available(stream)


async def test_each_pass_is_reported_once():
    async with running() as rig:
        rig.submit("a")
        rig.submit("b", prompt=range(50, 54))
        for time_s in (0.1, 0.11, 0.12, 0.13):
            await rig.clock.move_to(time_s)

        assert [report.wall_time_s > 0 for report in rig.sink.passes] == [True] * 3


async def test_no_report_is_made_for_a_sink_that_wants_none():
    async with running() as rig:
        rig.sink.wants_passes = False
        stream = rig.submit()
        await rig.clock.move_to(0.1)

        assert len(available(stream)) == 1
        assert rig.sink.passes == []


async def test_late_timers_do_not_slow_the_engine_down():
    async with running() as rig:
        rig.submit(max_tokens=5)
        await rig.clock.move_to(0.104)
        assert rig.clock.deadlines == [pytest.approx(0.11)]

        await rig.clock.move_to(0.119)
        assert rig.clock.deadlines == [pytest.approx(0.12)]


async def test_a_driver_that_the_machine_held_up_makes_up_for_it():
    async with running() as rig:
        stream = rig.submit(max_tokens=24)
        await rig.clock.move_to(0.304)

        assert len(available(stream)) == 21
        assert rig.clock.deadlines == [pytest.approx(0.31)]


async def test_a_driver_far_behind_starts_afresh():
    async with running() as rig:
        stream = rig.submit(max_tokens=6)
        await rig.clock.move_to(5.0)
        assert len(available(stream)) == 2

        assert rig.clock.deadlines == [pytest.approx(5.01)]


async def test_no_simulated_delay_still_yields_to_the_loop():
    async with running(speedup_ratio=0.0) as rig:
        stream = rig.submit(max_tokens=20)
        other = asyncio.create_task(asyncio.sleep(0))
        while stream.is_open:  # noqa: ASYNC110 - the loop must turn, not time go by
            await asyncio.sleep(0)
        await settle()

        assert other.done()
        assert len(stream.consumer.tokens) == 20
        assert rig.clock.time_s == 0.0


@pytest.mark.parametrize(("num_streams", "passes_per_turn"), [(1, 4), (15, 4), (16, 7)])
async def test_passes_shorter_than_a_turn_of_the_loop_share_a_delivery(
    num_streams, passes_per_turn
):
    """Where streams are few, passes get half as much time as the turn takes."""
    async with running(speedup_ratio=0.0, num_gpu_blocks=256) as rig:
        clock, pass_s = rig.clock, 2.0**-10  # exact, so that sums of it are

        async def slow_turn(deadline_s):
            clock.time_s += 6 * pass_s
            await asyncio.sleep(0)

        def pass_takes_a_sixth():
            clock.time_s += pass_s
            return run_pass()

        run_pass, rig.engine.run_pass = rig.engine.run_pass, pass_takes_a_sixth
        clock.sleep_until = slow_turn
        streams = [rig.submit(f"r{number}", max_tokens=30) for number in range(num_streams)]
        while streams[0].is_open:  # noqa: ASYNC110 - the loop must turn, not time go by
            await asyncio.sleep(0)
        await settle()

        assert [sum(stream.consumer.shares) for stream in streams] == [30] * num_streams
        assert max(streams[0].consumer.shares) == passes_per_turn


async def test_tokens_of_a_pass_that_lasts_are_delivered_alone():
    async with running() as rig:
        stream = rig.submit(max_tokens=5)
        for time_s in (0.1, 0.11, 0.12, 0.13, 0.14):
            await rig.clock.move_to(time_s)

        assert stream.consumer.shares == [1] * 5


async def test_a_client_that_leaves_frees_its_blocks_by_the_next_pass():
    async with running() as rig:
        stream = rig.submit(max_tokens=24)
        await rig.clock.move_to(0.1)
        assert rig.engine.kv_usage_ratio > 0

        rig.driver.cancel(stream)
        await rig.clock.move_to(0.11)

        assert rig.engine.kv_usage_ratio == 0
        assert rig.driver.num_running == 0
        assert rig.driver.kv_usage_ratio == 0
        assert rig.driver.stats.finished_requests["abort"] == 1


async def test_a_reused_id_does_not_get_the_tokens_of_its_predecessor():
    async with running() as rig:
        rig.driver.cancel(rig.submit())
        first = rig.submit()
        await settle()
        rig.driver.cancel(first)
        second = rig.submit(prompt=range(100, 108))
        await rig.clock.move_to(0.1)

        assert not available(first)
        assert not available(second)
        await rig.clock.move_to(0.2)
        assert len(available(second)) == 1


async def test_an_idle_rank_sends_a_heartbeat_every_second():
    async with running() as rig:
        await rig.clock.move_to(1.0)
        await rig.clock.move_to(2.0)

        assert [report.wall_time_s for report in rig.sink.passes] == [0.0, 0.0]
        assert rig.sink.passes[0].scheduled.num_decode_requests == 0


@pytest.mark.parametrize("end", ["length", "finish", "cancel"])
async def test_a_rank_that_becomes_idle_says_at_once_that_nothing_is_in_use(end):
    """However its last request ended: with short pauses there is never a heartbeat."""
    async with running() as rig:
        assert rig.sink.loads == []
        if end == "finish":
            submit_stopper(rig, 1, max_tokens=9)
        else:
            stream = rig.submit(max_tokens=1 if end == "length" else 9)
        await rig.clock.move_to(0.1)
        if end == "cancel":
            rig.driver.cancel(stream)
            await rig.clock.move_to(0.11)
        (load,) = rig.sink.loads

        assert rig.sink.passes[-1].load.num_running == 1
        assert (load.num_running, load.num_waiting, load.kv_used_blocks) == (0, 0, 0)


async def test_a_request_after_idling_starts_its_pass_at_once():
    async with running() as rig:
        await rig.clock.move_to(0.5)
        rig.submit()
        await settle()

        assert pytest.approx(0.6) in rig.clock.deadlines


async def test_latencies_are_observed_once_per_token():
    async with running() as rig:
        rig.submit("a", max_tokens=3)
        rig.submit("b", max_tokens=3)
        for time_s in (0.1, 0.11, 0.12):
            await rig.clock.move_to(time_s)
        stats = rig.driver.stats

        assert sum(stats.ttft.counts) == 2
        assert sum(stats.itl.counts) == 4
        assert stats.itl.sum == pytest.approx(4 * DECODE_S)
        assert stats.generation_tokens == 6
        assert stats.finished_requests["length"] == 2
        assert stats.e2e.sum == pytest.approx(0.24)


async def test_a_request_that_can_never_fit_is_refused():
    async with running() as rig:
        with pytest.raises(RequestRefused, match="KV cache"):
            rig.submit(max_tokens=1000)

        assert rig.driver.num_streams == 0


async def test_stopping_ends_open_streams():
    async with running() as rig:
        stream = rig.submit()
        await settle()
        rig.driver.stop()

        assert stream.consumer.is_stopped


async def test_a_driver_that_was_stopped_takes_no_requests():
    """Such as one whose body came while the worker went away."""
    async with running() as rig:
        rig.driver.stop()
        with pytest.raises(EngineStopped):
            rig.submit()

        assert rig.driver.num_streams == 0
        assert not rig.engine.has_unfinished_requests


async def test_stopping_ends_a_stream_whose_last_token_is_being_computed():
    async with running() as rig:
        stream = rig.submit(max_tokens=1)
        await rig.clock.move_to(0.05)
        assert rig.driver.num_streams == 0
        rig.driver.stop()
        await rig.clock.move_to(0.1)

        assert stream.consumer.is_stopped
        assert not stream.consumer.tokens
        assert rig.driver.stats.finished_requests["abort"] == 1


async def test_stopping_leaves_a_finished_stream_its_tokens():
    async with running() as rig:
        stream = rig.submit(max_tokens=1)
        await rig.clock.move_to(0.1)
        rig.driver.stop()

        assert len(stream.consumer.tokens) == 1
        assert not stream.consumer.is_stopped
        assert rig.driver.stats.finished_requests["abort"] == 0


class Stopper(Collector):
    """A consumer that has enough after so many tokens."""

    def __init__(self, driver, enough):
        super().__init__()
        self.driver, self.enough = driver, enough
        self.stream = None

    def take(self, token_ids, finish_reason):
        super().take(token_ids, finish_reason)
        if len(self.tokens) >= self.enough:
            self.driver.finish(self.stream)


def submit_stopper(rig, enough, *, max_tokens):
    stopper = Stopper(rig.driver, enough)
    request = Request("a", range(8), max_tokens)
    stopper.stream = rig.driver.submit(request, stopper, may_stop=True)
    return stopper


@pytest.mark.parametrize("max_tokens", [2, 20])
async def test_a_consumer_that_has_enough_ends_its_request_as_stopped(max_tokens):
    """Also with the token that ends it anyway."""
    async with running() as rig:
        stopper = submit_stopper(rig, 2, max_tokens=max_tokens)
        for time_s in (0.1, 0.11, 0.12):
            await rig.clock.move_to(time_s)

        assert len(stopper.tokens) == 2
        stats = rig.driver.stats
        assert stats.finished_requests == dict.fromkeys(stats.finished_requests, 0) | {"stop": 1}
        assert stats.request_generation_tokens.sum == stats.generation_tokens == 2
        assert stats.e2e.count == 1
        assert not rig.engine.has_unfinished_requests
        assert rig.driver.num_running == rig.driver.kv_usage_ratio == 0


async def test_nothing_is_computed_after_the_token_that_was_enough():
    """Not even where several passes share a turn of the loop."""
    async with running(speedup_ratio=0.0, num_gpu_blocks=64) as rig:
        clock, run_pass = rig.clock, rig.engine.run_pass

        async def slow_turn(deadline_s):
            clock.time_s += 1.0
            await asyncio.sleep(0)

        passes = []
        rig.engine.run_pass = lambda: passes.append(1) or run_pass()
        clock.sleep_until = slow_turn
        stopper = submit_stopper(rig, 7, max_tokens=100)
        while stopper.stream.is_open:  # noqa: ASYNC110 - the loop must turn, not time go by
            await asyncio.sleep(0)

        assert stopper.shares == [1] * 7
        assert len(passes) == 7
        assert rig.driver.stats.generation_tokens == 7


async def test_new_requests_that_have_a_slot_are_not_queued():
    async with running(max_num_seqs=2) as rig:
        for name in "abcd":
            rig.submit(name)
        assert rig.driver.num_queued == 2
        await settle()

        assert (rig.driver.num_running, rig.driver.num_queued) == (2, 2)
        rig.submit("e")
        assert rig.driver.num_queued == 3


async def test_jitter_stretches_passes():
    class Doubled:
        def factor(self):
            return 2.0

    rig = Rig()
    rig.driver._jitter = Doubled()
    task = asyncio.create_task(rig.driver.run())
    rig.submit()
    await settle()

    assert rig.clock.deadlines == [pytest.approx(2 * PREFILL_S)]
    task.cancel()


async def test_resetting_the_prefix_cache_publishes_it_at_once():
    async with running() as rig:
        rig.submit(max_tokens=1)
        await rig.clock.move_to(0.1)
        assert rig.driver.reset_prefix_cache()

        assert rig.sink.kv_events[-1] == AllBlocksCleared()


async def test_the_prefix_cache_is_not_reset_while_it_is_in_use():
    async with running() as rig:
        rig.submit(max_tokens=5)
        await rig.clock.move_to(0.1)

        assert not rig.driver.reset_prefix_cache()
