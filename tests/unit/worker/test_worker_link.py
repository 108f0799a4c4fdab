"""A worker and its link, whatever ends the worker."""

import asyncio

import pytest

from mocker_worker.events.link import NoLink
from mocker_worker.events.nats_link import _end
from mocker_worker.serve import Worker


class RecordingLink(NoLink):
    def __init__(self):
        self.closed = False

    async def close(self):
        self.closed = True


async def test_the_link_is_closed_when_an_engine_fails(worker_config, monkeypatch):
    link = RecordingLink()
    monkeypatch.setattr(Worker, "_make_link", lambda worker: link)
    worker = Worker(worker_config())

    async def fail():
        raise RuntimeError("engine broke")

    monkeypatch.setattr(worker._ranks[0], "run", fail)
    async with asyncio.timeout(10):
        with pytest.raises(ExceptionGroup):
            await worker.run()

    assert link.closed


async def test_a_task_that_loses_a_cancellation_is_ended(monkeypatch):
    monkeypatch.setattr("mocker_worker.events.nats_link._CANCEL_AGAIN_S", 0.01)
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
    async with asyncio.timeout(10):
        await _end(task)

    assert cancellations == 2
