"""Consumers of other projects, by their stated rules, against real sockets and a real engine."""

import asyncio
import contextlib

import pytest
import zmq
from waiting import until
from zmq_consumers import (
    AiBrix,
    ArrayDecoder,
    KvCacheManager,
    RandomWorker,
    Refused,
    Router,
    consumer_context,
    running,
)

from mocker_protocol.zmq_events import EventFormat
from mocker_worker.events.zmq_options import ZmqOptions

FORMATS = list(EventFormat)


@pytest.fixture
def context():
    with consumer_context() as context:
        yield context


def options(**changes):
    return ZmqOptions(**{"endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"} | changes)


@pytest.mark.parametrize("form", FORMATS)
async def test_a_router_that_is_there_from_the_start_knows_the_whole_cache(context, form):
    worker = RandomWorker(options=options(format=form))
    router = Router(context, worker.sources[0])
    async with running(worker.publisher, router):
        await worker.until_subscribed(lambda: router.heard)
        for _ in range(30):
            worker.serve(10)
            await asyncio.sleep(0)
        await until(lambda: router.prefixes == worker.cached())
        assert len(worker.cached()) > 40
        assert worker.publisher.dropped_events == 0


@pytest.mark.parametrize("consumer", [Router, AiBrix])
async def test_a_late_subscriber_catches_up_by_a_replay_from_zero(context, consumer):
    worker = RandomWorker(options=options(format=EventFormat.ARRAY))
    worker.hub.start()
    worker.serve(200)
    late = consumer(context, worker.sources[0])
    async with running(worker.publisher, late):
        await until(lambda: late.prefixes == worker.cached())
        assert late.replays == [0]
        await worker.until_subscribed(lambda: late.heard)
        worker.serve(20)
        await until(lambda: late.prefixes == worker.cached())


@pytest.mark.parametrize("resynchronized", [False, True])
async def test_who_asks_for_more_than_is_kept_is_told_anew(context, resynchronized):
    worker = RandomWorker(options=options(buffer_steps=200))
    worker.hub.start()
    worker.serve(100)
    if resynchronized:
        worker.hub.resynchronize(0)
    told = worker.hub.resynchronizations
    assert worker.publisher.published_events > 400
    routers = [Router(context, worker.sources[0]) for _ in range(3)]
    async with running(worker.publisher, *routers):
        for router in routers:
            await until(lambda router=router: router.prefixes == worker.cached())
    assert worker.hub.resynchronizations == max(told, 1), "once for all"


async def test_a_snapshot_that_cannot_be_kept_is_not_made_for_everyone_who_asks(context):
    worker = RandomWorker(options=options(buffer_steps=2))
    worker.hub.start()
    worker.serve(50)
    routers = [Router(context, worker.sources[0]) for _ in range(3)]
    async with running(worker.publisher):
        for router in routers:
            with contextlib.suppress(Refused):
                await router.replay(0)
            router.close()
    assert worker.hub.resynchronizations == 1


async def test_a_lost_message_is_asked_for_when_the_next_one_comes(context):
    worker = RandomWorker()
    router = Router(context, worker.sources[0])
    async with running(worker.publisher, router):
        await worker.until_subscribed(lambda: router.heard)
        await until(lambda: router.last == worker.publisher.published_events - 1)
        lost = router.last + 3
        router.lose = {lost, lost + 1}
        worker.serve(100)
        await until(lambda: router.prefixes == worker.cached())
        assert not router.lose
        assert lost in router.replays


async def test_a_publisher_that_starts_anew_is_told_by_its_sequence(context):
    first = RandomWorker(seed=1)
    router = Router(context, first.sources[0])
    async with running(router):
        async with running(first.publisher):
            await first.until_subscribed(lambda: router.heard)
            first.serve(200)
            await until(lambda: router.prefixes == first.cached())
            await first.publisher.flush(1.0)
        again = options(
            endpoint=first.sources[0]["endpoint"].replace("127.0.0.1", "*"),
            replay_endpoint=first.sources[0]["replay_endpoint"].replace("127.0.0.1", "*"),
        )
        second = RandomWorker(seed=2, options=again)
        async with running(second.publisher):
            second.hub.start()
            await second.until_subscribed(lambda: router.resets)
            second.serve(20)
            await until(lambda: router.prefixes == second.cached())
            assert second.cached() != first.cached()


async def test_every_rank_publishes_on_its_own_socket(context):
    worker = RandomWorker(dp_size=2)
    assert [source["data_parallel_rank"] for source in worker.sources] == [0, 1]
    routers = [Router(context, source) for source in worker.sources]
    async with running(worker.publisher, *routers):
        for rank, router in enumerate(routers):
            await worker.until_subscribed(lambda router=router: router.heard, rank)
        worker.serve(100, dp_rank=0)
        worker.serve(100, dp_rank=1)
        for rank, router in enumerate(routers):
            await until(lambda rank=rank, router=router: router.prefixes == worker.cached(rank))
        assert worker.cached(0) != worker.cached(1)


async def test_workers_connect_to_a_central_subscriber_that_binds(context):
    manager = KvCacheManager(context)
    port = manager.socket.bind_to_random_port("tcp://127.0.0.1")
    workers = [
        RandomWorker(
            seed=number,
            options=ZmqOptions(
                endpoint=f"tcp://127.0.0.1:{port}",
                topic="kv@{pod_ip}:{port}@{model}",
                format=EventFormat.ARRAY,
            ),
            pod_ip=f"10.0.0.{number}",
            port=8000,
        )
        for number in (1, 2)
    ]
    async with running(manager, *(worker.publisher for worker in workers)):
        for number, worker in enumerate(workers, 1):
            pod = f"10.0.0.{number}:8000"
            await worker.until_subscribed(lambda pod=pod: manager.prefixes(pod) is not None)
            worker.serve(150)
        for number, worker in enumerate(workers, 1):
            pod = f"10.0.0.{number}:8000"
            await until(lambda p=pod, w=worker: manager.prefixes(p) == w.cached())
        assert manager.dropped == 0


async def test_an_indexer_without_replay_is_right_if_it_was_there_from_the_start(context):
    worker = RandomWorker(
        options=options(format=EventFormat.ARRAY, topic="kv@{pod_name}@{model}"), pod_name="pod-1"
    )
    manager = KvCacheManager(context)
    manager.socket.connect(worker.sources[0]["endpoint"])
    async with running(worker.publisher, manager):
        await worker.until_subscribed(lambda: manager.prefixes("pod-1") is not None)
        worker.serve(300)
        await until(lambda: manager.prefixes("pod-1") == worker.cached())


async def test_ipc_works_like_tcp(context, tmp_path):
    worker = RandomWorker(
        dp_size=2,
        options=ZmqOptions(
            endpoint=f"ipc://{tmp_path}/events", replay_endpoint=f"ipc://{tmp_path}/replay"
        ),
    )
    assert worker.sources[1]["endpoint"] == f"ipc://{tmp_path}/events_dp1"
    router = Router(context, worker.sources[1])
    async with running(worker.publisher, router):
        await worker.until_subscribed(lambda: router.heard, 1)
        worker.serve(50, dp_rank=1)
        await until(lambda: router.prefixes == worker.cached(1))


@pytest.mark.parametrize("form", FORMATS)
async def test_a_resynchronization_carries_the_tokens_again(context, form):
    worker = RandomWorker(options=options(format=form))
    router = Router(context, worker.sources[0])
    async with running(worker.publisher, router):
        await worker.until_subscribed(lambda: router.heard)
        worker.serve(100)
        worker.hub.resynchronize(0)
        await until(lambda: router.prefixes == worker.cached())
        assert len(router.prefixes) > 40
        assert worker.publisher.dropped_events == 0


async def test_at_the_end_every_rank_is_empty(context):
    worker = RandomWorker()
    router = Router(context, worker.sources[0])
    async with running(worker.publisher, router):
        await worker.until_subscribed(lambda: router.heard)
        worker.serve(50)
        await until(lambda: router.prefixes == worker.cached())
        worker.hub.withdraw()
        await worker.publisher.flush(1.0)
        await until(lambda: router.prefixes == set())


async def test_maps_are_refused_by_those_who_know_arrays_only(context):
    worker = RandomWorker(options=options(topic="kv@a@b", format=EventFormat.MAP))
    with context.socket(zmq.SUB) as socket:
        socket.subscribe("")
        socket.connect(worker.sources[0]["endpoint"])
        async with running(worker.publisher):
            heard = asyncio.ensure_future(socket.recv_multipart())
            await worker.until_subscribed(heard.done)
            with pytest.raises(Refused):
                ArrayDecoder().apply(heard.result()[2])
