"""A frontend ends, whatever its discovery does with a cancellation."""

import asyncio
from dataclasses import replace

import pytest
from waiting import PATIENCE_S

from mocker_frontend.config import FrontendConfig
from mocker_frontend.serve import Frontend

CONFIG = FrontendConfig(
    host="127.0.0.1",
    port=0,
    model_name="mock",
    nats_url="nats://127.0.0.1:1",
    drain_grace_s=0.0,
)


class Discovery:
    """Loses its first cancellation, as a watch of NATS may."""

    def __init__(self):
        self.cancellations = 0

    async def run(self, registry, *, on_listed, **options):
        on_listed()
        while self.cancellations < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancellations += 1


@pytest.fixture
def discovery(monkeypatch):
    discovery = Discovery()
    monkeypatch.setattr("mocker_frontend.serve.discover", discovery.run)
    monkeypatch.setattr("mocker_frontend.serve._CANCEL_AGAIN_S", 0.01)
    return discovery


async def test_a_discovery_that_loses_a_cancellation_does_not_hold_up_the_end(discovery):
    frontend = Frontend(CONFIG)
    running = asyncio.create_task(frontend.run())
    await frontend.listening
    frontend.request_stop()
    async with asyncio.timeout(PATIENCE_S):
        await running
    assert discovery.cancellations == 2


async def test_a_port_that_is_in_use_ends_the_frontend(discovery):
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as taken:
        port = taken.sockets[0].getsockname()[1]
        frontend = Frontend(replace(CONFIG, port=port))
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ExceptionGroup):
                await frontend.run()
