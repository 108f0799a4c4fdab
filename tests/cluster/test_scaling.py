"""A planner's decisions on a real cluster: pods, acknowledgements, drained streams."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
import openai
from waiting import PATIENCE_S

from kubectl import until
from mocker_planner.client import PlannerClient
from mocker_protocol import decisions
from mocker_protocol.decisions import DeploymentKey

DECIDE = Path(sys.executable).parent / "mocker-planner"


def counts(deployment: Any) -> tuple[int, int]:
    """Pods of both roles, terminating ones too."""
    return len(deployment.pods("prefill")), len(deployment.pods("decode"))


async def test_a_decision_is_acknowledged_when_new_pods_are_ready_and_old_ones_are_gone(
    deploy: Any, planner: PlannerClient
) -> None:
    deployment = deploy(prefill=2, decode=1)
    namespace = deployment.kubectl.namespace
    decision = await planner.decide("mock", namespace, prefill=1, decode=3)
    await planner.wait("mock", decision.decision_id, namespace, timeout_s=90)
    assert counts(deployment) == (1, 3)
    ready = [
        condition["status"]
        for role in ("prefill", "decode")
        for pod in deployment.pods(role)
        for condition in pod["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert ready == ["True"] * 4


def test_the_command_line_decides_and_waits(deploy: Any, nats_url: str) -> None:
    deployment = deploy()
    command = [str(DECIDE), "decide", "mock", "-n", deployment.kubectl.namespace, "--wait"]
    command += ["--prefill", "1", "--decode", "2", "--nats-url", nats_url, "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(deployment.running_pods("decode")) == 2
    assert json.loads(done.stdout.splitlines()[-1])["decision_id"] == 0


async def test_a_role_left_out_is_left_alone_and_zero_is_legal(
    deploy: Any, planner: PlannerClient
) -> None:
    deployment = deploy(prefill=1, decode=2)
    namespace = deployment.kubectl.namespace
    decision = await planner.decide("mock", namespace, prefill=0)
    await planner.wait("mock", decision.decision_id, namespace, timeout_s=90)
    assert counts(deployment) == (0, 2)
    async with deployment.client() as client:
        answer = await client.completions.create(model="mock/model", prompt="hi", max_tokens=3)
    assert answer.usage.completion_tokens == 3


async def test_a_decision_out_of_bounds_is_clamped_and_still_acknowledged(
    deploy: Any, planner: PlannerClient
) -> None:
    deployment = deploy(decode_bounds={"minReplicas": 1, "maxReplicas": 2})
    namespace = deployment.kubectl.namespace
    decision = await planner.decide("mock", namespace, decode=50)
    await planner.wait("mock", decision.decision_id, namespace, timeout_s=90)
    assert len(deployment.running_pods("decode")) == 2
    assert deployment.condition("ScalingActive")["reason"] == "Clamped"
    until("an event says so", lambda: "DecisionClamped" in deployment.events())


async def test_rubbish_in_the_bucket_is_ignored_with_an_event(
    deploy: Any, planner: PlannerClient, nats_url: str
) -> None:
    deployment = deploy()
    namespace = deployment.kubectl.namespace
    connection = await nats.connect(nats_url)
    bucket = await connection.jetstream().key_value(decisions.BUCKET)
    await bucket.put(DeploymentKey(namespace, "mock").decision, b"{rubbish")
    await connection.close()
    until("an event says so", lambda: "DecisionIgnored" in deployment.events())
    assert counts(deployment) == (1, 1)
    decision = await planner.decide("mock", namespace, decode=2)
    await planner.wait("mock", decision.decision_id, namespace, timeout_s=90)
    assert counts(deployment) == (1, 2)


SLOW_DECODE = {"timing": {"fixed": {"prefillMs": 5, "decodeMs": 100}}, "blockSize": 16}


async def test_a_stream_of_thirty_seconds_is_finished_by_the_pod_that_must_go(
    deploy: Any, planner: PlannerClient
) -> None:
    deployment = deploy(decode=2, engine=SLOW_DECODE)
    namespace = deployment.kubectl.namespace
    async with deployment.client() as client:
        # Two streams, one on each decode worker: whichever goes, one of them is on it.
        first_tokens = asyncio.Queue[int]()
        streams = [
            asyncio.create_task(stream_tokens(client, 300, first_tokens), name=f"stream-{n}")
            for n in range(2)
        ]
        for _ in streams:
            await asyncio.wait_for(first_tokens.get(), PATIENCE_S)
        decision = await planner.decide("mock", namespace, decode=1)
        until("one pod is going", lambda: len(deployment.running_pods("decode")) == 1)
        late = await stream_tokens(client, 5, asyncio.Queue())
        assert (await planner.status("mock", namespace)).scaled_decision_id is None
        assert await asyncio.gather(*streams) == [300, 300]
    assert late == 5
    await planner.wait("mock", decision.decision_id, namespace, timeout_s=90)
    assert len(deployment.pods("decode")) == 1


async def stream_tokens(
    client: openai.AsyncOpenAI, max_tokens: int, started: asyncio.Queue[int]
) -> int:
    """Stream a completion and return its number of chunks with text."""
    stream = await client.completions.create(
        model="mock/model", prompt="count", max_tokens=max_tokens, stream=True
    )
    tokens = 0
    async for chunk in stream:
        tokens += bool(chunk.choices and chunk.choices[0].text)
        if tokens == 1:
            started.put_nowait(1)
    return tokens


async def test_no_client_sees_an_error_while_workers_come_and_go(
    deploy: Any, planner: PlannerClient
) -> None:
    deployment = deploy(prefill=2, decode=3)
    namespace = deployment.kubectl.namespace
    async with deployment.client() as client:
        stop = asyncio.Event()
        load = [asyncio.create_task(keep_asking(client, stop), name=f"load-{n}") for n in range(8)]
        for prefill, decode in ((1, 1), (2, 3)):
            decision = await planner.decide("mock", namespace, prefill=prefill, decode=decode)
            await planner.wait("mock", decision.decision_id, namespace, timeout_s=90)
        stop.set()
        answered = await asyncio.gather(*load)
    assert min(answered) > 0


async def keep_asking(client: openai.AsyncOpenAI, stop: asyncio.Event) -> int:
    answered = 0
    while not stop.is_set():
        answer = await client.completions.create(
            model="mock/model", prompt=f"request {answered}", max_tokens=30
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 30
        answered += 1
    return answered
