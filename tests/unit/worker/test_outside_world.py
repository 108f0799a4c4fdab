"""A worker and its outside world, whatever ends the worker."""

import asyncio

import pytest
from waiting import PATIENCE_S

from mocker_worker.events.ending import end
from mocker_worker.events.outside import OutsideWorld
from mocker_worker.serve import Worker


async def test_the_outside_world_is_closed_when_an_engine_fails(worker_config, monkeypatch):
    closed = []

    async def close(outside):
        closed.append(outside)

    monkeypatch.setattr(OutsideWorld, "close", close)
    worker = Worker(worker_config())

    async def fail():
        raise RuntimeError("engine broke")

    monkeypatch.setattr(worker._ranks[0], "run", fail)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ExceptionGroup):
            await worker.run()

    assert closed == [worker._outside]


async def test_a_worker_that_tells_nobody_makes_no_kv_events(worker_config):
    worker = Worker(worker_config())

    assert not worker._outside.wants_kv_events
    assert not worker._engines[0].args.publishes_kv_events
    assert worker.config.args.publishes_kv_events
    counts = worker._outside.counts()
    assert (list(counts.transports), counts.dropped_passes, counts.dropped_loads) == ([], 0, 0)


async def test_a_task_that_loses_a_cancellation_is_ended(monkeypatch):
    monkeypatch.setattr("mocker_worker.events.ending._CANCEL_AGAIN_S", 0.01)
    cancellations = 0

    async def lose_one():
        nonlocal cancellations
        while cancellations < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations += 1

    task = asyncio.create_task(lose_one())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await end(task)

    assert cancellations == 2
