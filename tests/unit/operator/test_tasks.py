import asyncio
import contextlib

from mocker_operator.tasks import end


async def test_a_task_that_loses_cancellations_is_ended():
    lost = 0

    async def deaf():
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await end([task])
    assert task.cancelled()


async def test_the_error_of_a_task_that_ends_otherwise_stays_with_it():
    async def failing():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise ValueError("too late")

    task = asyncio.create_task(failing())
    await asyncio.sleep(0)
    await end([task])
    assert isinstance(task.exception(), ValueError)
