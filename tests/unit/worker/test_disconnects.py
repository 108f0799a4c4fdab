import asyncio

from rude_clients import RudeClients
from waiting import until
from worker_process import worker_process

IN_USE = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
)


def until_nothing_is_in_use(worker):
    async def is_idle():
        used = {name: worker.metric(name) for name in IN_USE}
        assert not any(used.values()), used
        return True

    asyncio.run(until(is_idle))


def test_clients_that_leave_when_they_like_leave_nothing_behind():
    """The short form of `benchmarks/soak.py`; a write to a closed connection once ended all."""
    flags = ("--block-size", "16", "--num-gpu-blocks-override", "512", "--speedup-ratio")
    for speedup in ("0", "200"):
        with worker_process(*flags, speedup) as worker:
            clients = RudeClients("127.0.0.1", worker.port, seed=7)
            asyncio.run(clients.run(32, requests=400))
            until_nothing_is_in_use(worker)

            assert clients.outcomes.total() >= 400
            assert clients.outcomes["answered 200"] > 50
            assert clients.outcomes["left in the middle"] > 50
            assert not [name for name in clients.outcomes if name.startswith("answered 5")]
            assert worker.metric("vllm:request_success_total") > 100
