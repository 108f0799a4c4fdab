"""Whatever clients ask for and however they leave: nothing stays, and all sums agree."""

import asyncio
import logging
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvloop
from request_kinds import BLOCK_TOKENS, BLOCKS
from rude_clients import RudeClients
from waiting import until
from worker_accounts import Accounts

from mocker_worker.config import ServerOptions

DIALECTS = frozenset({"vllm", "vllm-legacy", "sglang"})
WORKERS = [("aggregated", 1), ("aggregated", 2), ("prefill", 1), ("decode", 1)]


class Rig:
    """A worker, clients of it, and what its metrics say while nothing is to be done."""

    def __init__(self, session, clients):
        self.clients = clients
        self._session = session
        self._start = None

    async def text(self, path):
        async with self._session.get(path) as response:
            return await response.text()

    async def at_rest(self):
        if self._start is None:
            self._start = Accounts(await self.text("/metrics"))

        async def accounts_at_rest():
            assert await self.text("/load") == '{"server_load": 0}'
            found = Accounts(await self.text("/metrics"))
            found.assert_at_rest(self._start)
            return found

        found = await until(accounts_at_rest)
        found.assert_sums_agree()
        return found


@asynccontextmanager
async def rig(run_worker, role, ranks, **args):
    args |= {"block_size": BLOCK_TOKENS, "num_gpu_blocks": BLOCKS}
    server = ServerOptions(metrics_dialects=DIALECTS)
    async with run_worker(server=server, worker_type=role, dp_size=ranks, **args) as worker:
        url = worker.listening.result()
        port = int(url.rpartition(":")[2])
        clients = RudeClients("127.0.0.1", port, seed=7, role=role, ranks=ranks)
        async with aiohttp.ClientSession(url) as session:
            yield Rig(session, clients)


async def serve_all_kinds(run_worker, role, ranks, **args):
    async with rig(run_worker, role, ranks, **args) as worker:
        await worker.at_rest()
        await worker.clients.run(24, requests=120)
        after_rude_ones = await worker.at_rest()
        given = await worker.clients.behave(24, requests=120)
        after_polite_ones = await worker.at_rest()
        after_polite_ones.assert_served(after_rude_ones, given)
        return worker.clients.outcomes, given


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("speedup", [0, 5])
@pytest.mark.parametrize(("role", "ranks"), WORKERS)
def test_clients_that_leave_when_they_like_leave_nothing_behind(
    run_worker, caplog, role, ranks, speedup, caching
):
    """The short form of `benchmarks/soak.py`; a write to a closed connection once ended all."""
    args = {
        "speedup_ratio": speedup,
        "enable_prefix_caching": caching,
        "scheduling_policy": "priority" if caching else "fcfs",
    }
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcomes, given = runner.run(serve_all_kinds(run_worker, role, ranks, **args))

    assert outcomes.total() == 240
    assert outcomes["left in the middle"] > 25
    assert {"answered 200", "answered 400", "answered 501"} <= outcomes.keys()
    assert min(given.reasons["stop"], given.reasons["length"]) > 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
