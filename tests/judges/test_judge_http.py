"""What speaks to a worker's HTTP server without knowing it: schemathesis and promtool."""

import asyncio
import re
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import aiohttp
import pytest
from judge_programs import TIMEOUT_S
from metrics import scraped

SETTINGS = Path(__file__).parent / "data" / "schemathesis.toml"
LEFT_OUT = (
    "ignored_auth",  # the worker has no key
    "negative_data_rejection",  # unknown fields and headers are accepted, as vLLM accepts them
    "positive_data_acceptance",  # limits of the engine, such as its ranks, are not in the schema
)
LINT = 3
"""promtool's exit code when it could read everything and would like something to be different."""
VLLM_NAMES = {
    'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix',
    "vllm:avg_generation_throughput_toks_per_s metric names should not contain abbreviated units",
    "vllm:avg_prompt_throughput_toks_per_s metric names should not contain abbreviated units",
}
"""What promtool dislikes about names that are not ours to choose, colons apart."""
REQUEST = {"model": "mock", "prompt": "to be", "max_tokens": 4}


@pytest.mark.parametrize("examples", [30])
async def test_schemathesis_finds_no_undeclared_answer_and_no_crash(programs, judges, examples):
    worker = await programs.worker("--no-nats", "--speedup-ratio", 0)
    command = [
        *(judges.python("schemathesis"), "-m", "schemathesis.cli", "--config-file", SETTINGS),
        *("run", f"{worker.url}/openapi.json", "--phases", "examples,coverage,fuzzing"),
        *("--checks", "all", "--exclude-checks", ",".join(LEFT_OUT)),
        *("--max-examples", examples, "--generation-deterministic", "--no-color"),
    ]
    said, code = await output(command, cwd=programs.folder)
    assert code == 0, said[-5000:]
    assert int(re.search(r"(\d+) generated", said)[1]) > 500
    assert worker.process.returncode is None
    async with aiohttp.ClientSession(worker.url) as http:
        scrape = await scraped(http)
        assert scrape.total("vllm:num_requests_running") == 0
        assert scrape.total("vllm:num_requests_waiting") == 0
        async with http.post("/v1/completions", json=REQUEST) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "dialects", ["vllm", "vllm,vllm-legacy", "sglang", "vllm,vllm-legacy,sglang"]
)
async def test_promtool_has_nothing_to_say_but_about_names_of_vllm(programs, judges, dialects):
    worker = await programs.worker(
        *("--no-nats", "--speedup-ratio", 0, "--data-parallel-size", 2),
        *("--metrics-dialects", dialects),
    )
    async with aiohttp.ClientSession(worker.url) as http:
        for _ in range(2):  # before the first request, and after it
            async with http.get("/metrics") as answer:
                text = await answer.read()
            said, code = await output([judges.promtool(), "check", "metrics"], stdin=text)
            assert code in (0, LINT), said
            complaints = set(said.splitlines()) - VLLM_NAMES
            assert [text for text in complaints if not only_about_the_colon(text)] == []
            async with http.post("/v1/completions", json=REQUEST) as answer:
                assert answer.status == 200


def only_about_the_colon(complaint):
    """The prefixes of vLLM and SGLang have colons, which are meant for recording rules."""
    return re.fullmatch(r"(vllm|sglang):\w+ metric names should not contain ':'", complaint)


async def output(command, *, stdin=None, cwd=None):
    """What a program writes, and its exit code."""
    running = await asyncio.create_subprocess_exec(
        *map(str, command), stdin=PIPE, stdout=PIPE, stderr=STDOUT, cwd=cwd
    )
    said, _ = await asyncio.wait_for(running.communicate(stdin), TIMEOUT_S)
    return said.decode(), running.returncode
