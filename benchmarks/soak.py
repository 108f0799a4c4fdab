"""Lets clients ask for anything and disconnect at random for minutes; looks at what workers keep.

    .venv/bin/python benchmarks/soak.py [--minutes 5] [--clients 64] [-- WORKER FLAGS]

Without flags four workers share the clients: all roles, two ranks, with time and without, with
prefix caching and without. At the end nothing may be running, waiting or in use, every gauge must
be where it was at the start, all sums must agree with each other and with what polite clients were
given, and memory must be where it was after the first fifth. Exit code 1 if not.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

from request_kinds import BLOCK_TOKENS, BLOCKS
from rude_clients import RudeClients
from waiting import until
from worker_accounts import Accounts
from worker_process import WorkerProcess, worker_process

WORKERS = (
    ("--speedup-ratio", "50"),
    ("--speedup-ratio", "0", "--data-parallel-size", "2", "--no-enable-prefix-caching"),
    ("--speedup-ratio", "0", "--is-prefill-worker"),
    ("--speedup-ratio", "50", "--is-decode-worker", "--no-enable-prefix-caching"),
)
_ROOM = ("--num-gpu-blocks-override", f"{BLOCKS}", "--block-size", f"{BLOCK_TOKENS}")
_POLITE_REQUESTS = 500
_GROWTH_MIB = 3.0
"""What an allocator may keep; a leak of a kilobyte per request would be a hundred times as much."""


class Soak:
    """One worker under its share of the load."""

    def __init__(self, worker: WorkerProcess, flags: Sequence[str], *, seed: int) -> None:
        self._worker = worker
        self._name = " ".join(flags)
        self._start = Accounts(worker.get("/metrics"))
        roles = [role for role in ("prefill", "decode") if f"--is-{role}-worker" in flags]
        self._clients = RudeClients(
            "127.0.0.1",
            worker.port,
            seed=seed,
            role=[*roles, "aggregated"][0],
            ranks=len(self._start.engines),
        )

    async def run(self, count: int, minutes: float) -> bool:
        """Run the load, tell of it every 30 s; return whether nothing was left of it."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        load = asyncio.create_task(self._clients.run(count, until_s=began_s + minutes * 60))
        settled_mib = 0.0
        while not load.done():
            await asyncio.wait([load], timeout=min(30, minutes * 6))
            memory_mib = self._worker.memory_mib()
            elapsed_s = loop.time() - began_s
            if not settled_mib and elapsed_s >= minutes * 12:
                settled_mib = memory_mib
            sent = self._clients.outcomes.total()
            print(f"  {elapsed_s:4.0f} s: {sent} requests, {memory_mib:.1f} MiB", flush=True)
        await load
        wrong = await self._judge(count)
        memory_mib = self._worker.memory_mib()
        if memory_mib > settled_mib + _GROWTH_MIB:
            wrong = f"{wrong} memory has grown".strip()
        outcomes = ", ".join(f"{n} {name}" for name, n in self._clients.outcomes.most_common())
        print(f"{self._name}\n  {outcomes}")
        print(f"  memory {settled_mib:.1f} -> {memory_mib:.1f} MiB; {wrong or 'nothing is left'}")
        return not wrong

    async def _judge(self, count: int) -> str:
        """Return what is wrong with the metrics; empty if nothing is."""
        try:
            rude = await self._at_rest()
            given = await self._clients.behave(count, requests=_POLITE_REQUESTS)
            (await self._at_rest()).assert_served(rude, given)
        except AssertionError as error:
            return f"{error}"
        return ""

    async def _at_rest(self) -> Accounts:
        async def found() -> Accounts:
            accounts = Accounts(await asyncio.to_thread(self._worker.get, "/metrics"))
            accounts.assert_at_rest(self._start)
            return accounts

        accounts = await until(found)
        accounts.assert_sums_agree()
        return accounts


async def soak_all(soaks: Sequence[Soak], clients: int, minutes: float) -> bool:
    """Run all at once; return whether nothing was left of any."""
    share = max(clients // len(soaks), 1)
    return all(await asyncio.gather(*(soak.run(share, minutes) for soak in soaks)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of the worker")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        soaks = [
            Soak(stack.enter_context(worker_process(*_ROOM, *flags)), flags, seed=arguments.seed)
            for flags in ([arguments.flags] if arguments.flags else WORKERS)
        ]
        is_clean = asyncio.run(soak_all(soaks, arguments.clients, arguments.minutes))
    return int(not is_clean)


if __name__ == "__main__":
    sys.exit(main())
