"""NVIDIA's load generator: what it measures from outside is what the worker's metrics say."""

import asyncio
import json
import logging
import os
import subprocess
from asyncio.subprocess import PIPE

import aiohttp
import pytest
from judge_programs import TIMEOUT_S
from metrics import scraped

log = logging.getLogger(__name__)

REQUESTS = 18
REQUESTS_PER_S = 0.6
"""At even distances, so that the client is never busy with one answer when the next begins."""
INPUT_TOKENS, OUTPUT_TOKENS = 100, 96
TIMING = {"type": "fixed", "prefill_ms": 800.0, "decode_ms": 25.0}
"""Long enough for what client, server and kernel take between a pass and a timestamp to be less
than the agreement that is asked for. At most half of the time is spent in prefill passes."""
AGREEMENT = 0.02
LATENCIES = {
    "time_to_first_token": "vllm:time_to_first_token_seconds",
    "inter_token_latency": "vllm:inter_token_latency_seconds",
    "request_latency": "vllm:e2e_request_latency_seconds",
}


@pytest.fixture(scope="module")
def tokenizer(judges, tmp_path_factory):
    """A Hugging Face cache with the tokenizer `judges/words`, and the tokenizer's folder in it."""
    cache = tmp_path_factory.mktemp("huggingface")
    command = judges.command("aiperf", "make_tokenizer", cache)
    made = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert made.returncode == 0, made.stderr
    return cache, made.stdout.strip()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_aiperf_agrees_with_the_metrics(programs, judges, tokenizer, tmp_path, endpoint):
    """It counts the completions' tokens itself, and takes the chat's counts from the answers."""
    cache, folder = tokenizer
    arguments = tmp_path / "engine.json"
    arguments.write_text(json.dumps({"timing_model": TIMING}))
    flags = ["--no-nats", "--extra-engine-args", arguments]
    counting = ["--use-server-token-count"]
    if endpoint == "completions":
        flags += ["--tokenizer", folder]
        counting = []
    worker = await programs.worker(*flags)
    aiperf = [
        *(judges.python("aiperf"), "-m", "aiperf", "profile", "--model", "mock"),
        *("--url", worker.url, "--endpoint-type", endpoint, "--streaming"),
        *("--tokenizer", "judges/words", *counting, "--random-seed", 1),
        *("--isl", INPUT_TOKENS, "--isl-stddev", 0, "--osl", OUTPUT_TOKENS, "--osl-stddev", 0),
        *("--request-rate", REQUESTS_PER_S, "--arrival-pattern", "constant"),
        *("--extra-inputs", "ignore_eos:true", "--request-count", REQUESTS),
        *("--workers-max", 1, "--record-processor-service-count", 1, "--ui", "none"),
        *("--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", tmp_path / "results"),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(cache)}
    running = await asyncio.create_subprocess_exec(
        *map(str, aiperf), env={**os.environ, **offline}, stdout=PIPE, stderr=PIPE, cwd=tmp_path
    )
    said, _ = await asyncio.wait_for(running.communicate(), TIMEOUT_S)
    assert running.returncode == 0, said.decode()[-3000:]
    results = json.loads((tmp_path / "results/profile_export_aiperf.json").read_text())

    async with aiohttp.ClientSession(worker.url) as http:
        scrape = await scraped(http)
    assert results["request_count"]["avg"] == REQUESTS
    assert scrape.total("vllm:generation_tokens_total") == REQUESTS * OUTPUT_TOKENS
    assert results["total_output_tokens"]["avg"] == REQUESTS * OUTPUT_TOKENS
    prompt_tokens = scrape.total("vllm:prompt_tokens_total")
    assert results["total_isl"]["avg"] == prompt_tokens >= REQUESTS * INPUT_TOKENS
    for name, histogram in LATENCIES.items():
        measured, told = results[name]["avg"], scrape.mean(histogram) * 1000
        log.info("%s %s: %.2f ms, the worker %.2f", endpoint, name, measured, told)
        assert measured == pytest.approx(told, rel=AGREEMENT), name
