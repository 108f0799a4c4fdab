"""What the metrics say of scripted runs: the engine and its driver, in time that never waits."""

import asyncio
import contextlib
import functools
import random
import re

import pytest
from waiting import PATIENCE_S

from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.driver import EngineDriver
from mocker_worker.engine import EngineCore, Request
from mocker_worker.server.metrics import DIALECTS, WorkerCounts, WorkerMetrics
from mocker_worker.server.metrics_vllm import num_waiting
from mocker_worker.server.throughput import Throughput
from mocker_worker.stats import RequestGroup

PREFILL_S, DECODE_S = 1.0, 0.125
LABEL = re.compile(r'(\w+)="([^"]*)"')


class LeapingClock:
    """Time that is where somebody waits for it to be."""

    def __init__(self):
        self.time_s = 0.0
        self.on_sleep = lambda: None
        """Called in the middle of every pass."""

    def now_s(self):
        return self.time_s

    async def sleep_until(self, deadline_s):
        self.on_sleep()
        self.time_s = max(self.time_s, deadline_s)
        await asyncio.sleep(0)

    async def wait(self, event, deadline_s):
        await event.wait()
        return True


class NoSink:
    wants_passes = False

    def publish_kv_events(self, dp_rank, events):
        pass

    def publish_pass(self, dp_rank, report):
        pass

    def publish_load(self, dp_rank, load):
        pass


class Client:
    """Counts its tokens, and may do something when it has so many."""

    def __init__(self, *, after=0, then=None):
        self.num_tokens = 0
        self.done = asyncio.Event()
        self._after, self._then = after, then

    def take(self, token_ids, finish_reason):
        self.num_tokens += len(token_ids)
        if self._then is not None and self.num_tokens == self._after:
            self._then()
        if finish_reason is not None:
            self.done.set()

    def engine_stopped(self):
        self.done.set()


class Rig:
    def __init__(self, **args):
        timing = {"type": "fixed", "prefill_ms": PREFILL_S * 1e3, "decode_ms": DECODE_S * 1e3}
        args = {"block_size": 4, "num_gpu_blocks": 64, "timing_model": timing} | args
        self.clock = LeapingClock()
        engine = EngineCore(parse_engine_args(args))
        self.rank = EngineDriver(engine, dp_rank=0, clock=self.clock, sink=NoSink())
        self.metrics = WorkerMetrics(
            "m", [self.rank], WorkerCounts(), dialects=frozenset(DIALECTS), environment={}
        )
        self._num_requests = 0

    def submit(
        self, prompt=range(8), max_tokens=5, *, client=None, group=None, may_stop=False, **settings
    ):
        client = client or Client()
        self._num_requests += 1
        request = Request(f"request-{self._num_requests}", prompt, max_tokens, **settings)
        client.stream = self.rank.submit(request, client, group=group, may_stop=may_stop)
        return client

    def read(self):
        return Scrape(self.metrics.render().decode())


class Scrape:
    """The samples of one scrape by name and, where it matters, one label's value."""

    def __init__(self, text):
        self._samples = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                series, value = line.split()
                name, _, labels = series.partition("{")
                samples = self._samples.setdefault(name, [])
                samples.append((dict(LABEL.findall(labels)), float(value)))

    def __call__(self, name, **labels):
        (value,) = {
            value for present, value in self._samples[name] if labels.items() <= present.items()
        }
        return value

    def by(self, name, label):
        return {labels[label]: value for labels, value in self._samples[name]}

    def histogram(self, name):
        """Return count and sum."""
        return self(f"{name}_count"), pytest.approx(self(f"{name}_sum"))


@contextlib.asynccontextmanager
async def running(**args):
    rig = Rig(**args)
    task = asyncio.create_task(rig.rank.run())
    try:
        yield rig
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def served(*clients):
    async with asyncio.timeout(PATIENCE_S):
        for client in clients:
            await client.done.wait()
    await asyncio.sleep(0)


async def test_a_request_is_observed_by_every_histogram():
    async with running() as rig:
        await served(rig.submit(max_tokens=5))
        read = rig.read()

    assert read("vllm:prompt_tokens_total") == 8
    assert read("vllm:generation_tokens_total") == 5
    assert read.by("vllm:request_success_total", "finished_reason") == {
        "stop": 0, "length": 1, "abort": 0, "error": 0, "repetition": 0
    }  # fmt: skip
    decode_s = 4 * DECODE_S
    for name, count, total in (
        ("time_to_first_token_seconds", 1, PREFILL_S),
        ("inter_token_latency_seconds", 4, decode_s),
        ("request_time_per_output_token_seconds", 1, DECODE_S),
        ("e2e_request_latency_seconds", 1, PREFILL_S + decode_s),
        ("request_queue_time_seconds", 1, 0),
        ("request_inference_time_seconds", 1, PREFILL_S + decode_s),
        ("request_prefill_time_seconds", 1, PREFILL_S),
        ("request_decode_time_seconds", 1, decode_s),
        ("request_prompt_tokens", 1, 8),
        ("request_generation_tokens", 1, 5),
        ("request_max_num_generation_tokens", 1, 5),
        ("request_params_max_tokens", 1, 5),
        ("request_params_n", 1, 1),
        ("request_prefill_kv_computed_tokens", 1, 8),
        ("request_num_preemptions", 1, 0),
        ("iteration_tokens_total", 5, 8 + 4),
    ):
        assert read.histogram(f"vllm:{name}") == (count, total), name


async def test_buckets_are_cumulative_and_end_with_all_observations():
    async with running() as rig:
        await served(*(rig.submit(range(start, start + 8)) for start in range(0, 30, 10)))
        read = rig.read()

    buckets = read.by("vllm:inter_token_latency_seconds_bucket", "le")
    values = list(buckets.values())
    assert values == sorted(values)
    assert buckets["0.1"] == 0
    assert buckets["0.15"] == buckets["+Inf"] == 12


async def test_values_fall_after_the_load():
    async with running(max_num_seqs=2) as rig:
        seen = []
        client = Client(after=1, then=lambda: seen.append(rig.read()))
        await served(rig.submit(client=client), *(rig.submit() for _ in range(3)))
        during, after = seen[0], rig.read()

    assert during("vllm:num_requests_running") == 2
    assert during("vllm:num_requests_waiting") == 2
    assert during.by("vllm:num_requests_waiting_by_reason", "reason") == {
        "capacity": 2, "deferred": 0
    }  # fmt: skip
    assert during("vllm:kv_cache_usage_perc") > 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert after(f"vllm:{name}") == 0


@pytest.mark.parametrize("end", ["finish", "cancel"])
async def test_values_fall_when_the_last_client_ends_its_request_itself(end):
    async with running() as rig:
        client = Client(after=3, then=lambda: (leave(client.stream), client.done.set()))
        leave = getattr(rig.rank, end)
        await served(rig.submit(client=client, max_tokens=50, may_stop=end == "finish"))
        read = rig.read()

    assert client.num_tokens == 3
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert read(f"vllm:{name}") == 0
    assert read("sglang:token_usage") == 0


async def test_time_in_the_queue_is_told_from_time_in_the_engine():
    async with running(max_num_seqs=1) as rig:
        await served(rig.submit(max_tokens=1), rig.submit(range(50, 58), max_tokens=1))
        read = rig.read()

    assert read.histogram("vllm:request_queue_time_seconds") == (2, PREFILL_S)
    assert read.histogram("vllm:request_inference_time_seconds") == (2, 2 * PREFILL_S)
    assert read.histogram("vllm:e2e_request_latency_seconds") == (2, 3 * PREFILL_S)


async def test_a_client_that_leaves_is_counted_and_not_observed():
    async with running() as rig:
        leaver = Client(after=2, then=lambda: rig.rank.cancel(leaver.stream))
        await served(rig.submit(client=leaver, max_tokens=50) and rig.submit(range(20, 28)))
        await asyncio.sleep(0)
        read = rig.read()

    assert leaver.num_tokens == 2
    assert read("vllm:request_success_total", finished_reason="abort") == 1
    assert read("vllm:num_requests_running") == 0
    assert read("vllm:generation_tokens_total") == 2 + 5
    assert read.histogram("vllm:time_to_first_token_seconds")[0] == 2
    for name in ("e2e_request_latency_seconds", "request_generation_tokens", "request_params_n"):
        assert read.histogram(f"vllm:{name}")[0] == 1


async def test_a_cached_prompt_is_told_from_a_computed_one():
    async with running() as rig:
        await served(rig.submit(range(16)))
        await served(rig.submit(range(16)))
        read = rig.read()

    assert read("vllm:prefix_cache_queries_total") == 32
    assert read("vllm:prefix_cache_hits_total") == 12
    assert read.by("vllm:prompt_tokens_by_source_total", "source") == {
        "local_compute": 20, "local_cache_hit": 12, "external_kv_transfer": 0
    }  # fmt: skip
    assert read("vllm:prompt_tokens_cached_total") == 12
    assert read("vllm:prompt_tokens_cached_by_source_total", source="device") == 12
    assert read.histogram("vllm:request_prefill_kv_computed_tokens") == (2, 16 + 4)
    assert read("vllm:gpu_prefix_cache_hits_total") == 12
    assert read("sglang:cached_tokens_total") == 12


async def test_a_decode_worker_counts_the_kv_of_prefill_workers():
    async with running(worker_type="decode") as rig:
        seen = []
        rig.clock.on_sleep = lambda: seen.append(rig.read())
        await served(rig.submit(range(16), remote_prefill=True))
        read = rig.read()

    assert read.by("vllm:prompt_tokens_by_source_total", "source") == {
        "local_compute": 1, "local_cache_hit": 0, "external_kv_transfer": 15
    }  # fmt: skip
    assert read("vllm:external_prefix_cache_queries_total") == 16
    assert read("vllm:external_prefix_cache_hits_total") == 15
    assert read("vllm:prompt_tokens_cached_by_source_total", source="p2p") == 15
    assert read.histogram("vllm:request_prefill_kv_computed_tokens") == (1, 1)
    fetches = [
        scrape("vllm:num_requests_kv_fetch_by_stage", stage="in_progress")
        for scrape in (*seen, read)
    ]
    assert fetches == [1, 0, 0, 0, 0, 0]


async def test_preemptions_are_counted_per_engine_and_per_request():
    async with running(num_gpu_blocks=8, enable_prefix_caching=False) as rig:
        await served(rig.submit(range(8), max_tokens=16), rig.submit(range(20, 28), max_tokens=16))
        read = rig.read()

    preemptions = read("vllm:num_preemptions_total")
    assert preemptions > 0
    assert read.histogram("vllm:request_num_preemptions") == (2, preemptions)
    assert read.histogram("vllm:time_to_first_token_seconds")[0] == 2
    assert read("vllm:generation_tokens_total") == 32


async def test_answers_of_one_request_are_counted_once_as_its_n():
    async with running() as rig:
        group = RequestGroup(3)
        await served(*(rig.submit(max_tokens=n, group=group) for n in (2, 4, 3)))
        read = rig.read()

    assert read.histogram("vllm:request_params_n") == (1, 3)
    assert read.histogram("vllm:request_max_num_generation_tokens") == (1, 4)
    assert read.histogram("vllm:request_generation_tokens") == (3, 9)


async def test_a_group_is_counted_although_a_client_gave_up_its_last_answer():
    async with running() as rig:
        group = RequestGroup(2)
        leaver = Client(after=3, then=lambda: rig.rank.cancel(leaver.stream))
        rig.submit(client=leaver, max_tokens=50, group=group)
        await served(rig.submit(max_tokens=2, group=group), rig.submit(range(20, 28)))
        read = rig.read()

    assert read("vllm:request_params_n_count") == 2
    assert read("vllm:request_params_n_sum") == 1 + 2


async def test_all_dialects_tell_of_the_same_run():
    async with running() as rig:
        await served(rig.submit())
        read = rig.read()

    assert read.histogram("vllm:time_per_output_token_seconds") == read.histogram(
        "vllm:inter_token_latency_seconds"
    )
    assert read.histogram("sglang:inter_token_latency_seconds") == (4, 4 * DECODE_S)
    assert read.histogram("sglang:time_to_first_token_seconds") == (1, PREFILL_S)
    assert read.histogram("sglang:e2e_request_latency_seconds") == (1, PREFILL_S + 4 * DECODE_S)
    assert read("sglang:prompt_tokens_total") == 8
    assert read("sglang:generation_tokens_total") == 5
    assert read("sglang:num_requests_total") == 1


@pytest.mark.parametrize("seed", range(4))
async def test_sums_agree_in_every_pass_of_a_random_load(seed):
    chance = random.Random(seed)
    async with running(num_gpu_blocks=40, max_num_seqs=4) as rig:
        rig.clock.on_sleep = lambda: assert_sums_agree(rig.read())
        clients = []
        for _ in range(30):
            after = chance.choice((0, 0, 1, 3))
            client = Client(after=after, then=lambda: None)
            client._then = functools.partial(give_up, rig, client) if after else None
            prompt = range(start := chance.randrange(4) * 4, start + chance.randrange(5, 40))
            clients.append(rig.submit(prompt, chance.randrange(1, 20), client=client))
            await asyncio.sleep(0)
        await served(*clients)
        await asyncio.sleep(0)
        read = rig.read()

    assert_sums_agree(read)
    assert sum(read.by("vllm:request_success_total", "finished_reason").values()) == 30
    assert read("vllm:generation_tokens_total") == sum(client.num_tokens for client in clients)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert read(f"vllm:{name}") == 0


def give_up(rig, client):
    rig.rank.cancel(client.stream)
    client.done.set()


def assert_sums_agree(read):
    ended = read.by("vllm:request_success_total", "finished_reason")
    waiting = read.by("vllm:num_requests_waiting_by_reason", "reason")
    sources = read.by("vllm:prompt_tokens_by_source_total", "source")
    cached = read.by("vllm:prompt_tokens_cached_by_source_total", "source")
    observed = sum(ended.values()) - ended["abort"]

    assert sum(waiting.values()) == read("vllm:num_requests_waiting")
    assert sum(sources.values()) == read("vllm:prompt_tokens_total")
    assert sum(cached.values()) == read("vllm:prompt_tokens_cached_total")
    assert min(sources.values()) >= 0
    for name in ("e2e_request_latency_seconds", "request_generation_tokens", "request_params_n"):
        assert read(f"vllm:{name}_count") == observed
    gaps = read("vllm:inter_token_latency_seconds_count")
    firsts = read("vllm:time_to_first_token_seconds_count")
    assert gaps + firsts == read("vllm:generation_tokens_total")


async def test_cancelled_newcomers_never_make_the_queue_negative():
    rig = Rig()
    clients = [rig.submit() for _ in range(3)]
    for client in clients[:2]:
        rig.rank.cancel(client.stream)

    assert num_waiting(rig.rank) == 0


async def test_cancelled_newcomers_hide_nobody_who_waits():
    async with running(max_num_seqs=2, num_gpu_blocks=8) as rig:
        seen = []

        def come_and_go():
            for client in [rig.submit() for _ in range(3)]:
                rig.rank.cancel(client.stream)
            seen.append(num_waiting(rig.rank))

        running_one = Client(after=1, then=come_and_go)
        first = rig.submit(range(20), max_tokens=9, client=running_one)
        await served(first, rig.submit(range(40, 60), max_tokens=9))

    assert seen == [1]


def test_throughput_is_the_mean_of_the_latest_seconds():
    class Rank:
        dp_rank = 0

    time_s, count = [0.0], [0]
    throughput = Throughput(lambda rank: count[0], lambda: time_s[0])
    rates = []
    for second in range(31):
        time_s[0] = float(second)
        count[0] = min(second, 20) * 10
        rates.append(throughput.tokens_per_s(Rank))

    assert rates[0] == 0
    assert rates[1:21] == pytest.approx([10] * 20)
    assert 0 < rates[22] < 10
    assert rates[-1] == 0
