"""Lets clients disconnect at random for minutes, and looks at what the worker keeps of them.

    .venv/bin/python benchmarks/soak.py [--minutes 5] [--clients 64] [-- WORKER FLAGS]

At the end nothing may be running, waiting or in use, and memory must be where it was after the
first minute. Exit code 1 if not.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

from rude_clients import RudeClients
from worker_process import WorkerProcess, worker_process

IN_USE = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
)
_GROWTH_MIB = 3.0
"""What an allocator may keep; a leak of a kilobyte per request would be a hundred times as much."""


async def soak(worker: WorkerProcess, clients: RudeClients, count: int, minutes: float) -> float:
    """Run the load, tell of it every 30 s; return memory after the first fifth."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    load = asyncio.create_task(clients.run(count, until_s=began_s + minutes * 60))
    settled_mib = 0.0
    while not load.done():
        await asyncio.wait([load], timeout=min(30, minutes * 6))
        memory_mib = await asyncio.to_thread(worker.memory_mib)
        elapsed_s = loop.time() - began_s
        if not settled_mib and elapsed_s >= minutes * 12:
            settled_mib = memory_mib
        sent = clients.outcomes.total()
        print(f"  {elapsed_s:4.0f} s: {sent} requests, {memory_mib:.1f} MiB", flush=True)
    await load
    return settled_mib


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of the worker")
    arguments = parser.parse_args()
    flags = arguments.flags or ["--speedup-ratio", "50", "--num-gpu-blocks-override", "256"]
    with worker_process(*flags) as worker:
        clients = RudeClients("127.0.0.1", worker.port, seed=arguments.seed)
        settled_mib = asyncio.run(soak(worker, clients, arguments.clients, arguments.minutes))
        time.sleep(1)
        left = {name: worker.metric(name) for name in IN_USE}
        memory_mib = worker.memory_mib()
    for outcome, count in clients.outcomes.most_common():
        print(f"  {count:7} {outcome}")
    print(f"  left: {left}; memory {settled_mib:.1f} -> {memory_mib:.1f} MiB")
    return int(any(left.values()) or memory_mib > settled_mib + _GROWTH_MIB)


if __name__ == "__main__":
    sys.exit(main())
