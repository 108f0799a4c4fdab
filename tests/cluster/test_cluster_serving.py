"""From `kubectl apply` to answered requests: readiness, columns, streams, events, pod security."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import nats
import yaml
from nats.js.api import ConsumerConfig, DeliverPolicy

from kubectl import Kubectl
from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.kv_events import BlockStored, RouterEvent, decode_router_event
from mocker_protocol.names import Component, worker_id_from_uid

ROOT = Path(__file__).parent.parent.parent
PROMPT = [{"role": "user", "content": "a prompt that is long enough to fill some blocks " * 8}]


def metrics(kubectl: Kubectl, pod: str) -> list[str]:
    """Lines of a pod's /metrics, read through the API server."""
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{pod}:8000/proxy/metrics"
    return kubectl.run("get", "--raw", path).splitlines()


def metric(kubectl: Kubectl, pod: str, name: str) -> float:
    """Sum of a family's series."""
    lines = [line for line in metrics(kubectl, pod) if line.startswith(f"{name}{{")]
    return sum(float(line.split()[-1]) for line in lines)


def test_the_example_becomes_ready_and_its_columns_say_so(kubectl: Kubectl) -> None:
    kubectl.apply((ROOT / "examples/disaggregated.yaml").read_text())
    kubectl.run("wait", "mockerdeployment/disaggregated", "--for=condition=Ready", "--timeout=90s")
    header, row = kubectl.run("get", "mockerdeployments").splitlines()
    assert header.split() == ["NAME", "READY", "PREFILL", "DECODE", "ENDPOINT", "AGE"]
    endpoint = f"http://disaggregated-frontend.{kubectl.namespace}.svc:8000/v1"
    assert row.split()[:5] == ["disaggregated", "True", "2/2", "2/2", endpoint]


def test_waiting_for_readiness_does_not_return_before_the_new_spec_is_running(deploy: Any) -> None:
    deployment = deploy()
    patch = {"spec": {"engine": {"numGpuBlocks": 777}}}
    deployment.kubectl.run(
        "patch", "mockerdeployment", "mock", "--type=merge", "--patch", json.dumps(patch)
    )
    # kubectl compares `observedGeneration` with the generation that its own patch made.
    deployment.wait_ready()
    for role in ("prefill", "decode"):
        for pod in deployment.running_pods(role):
            lines = metrics(deployment.kubectl, pod)
            (info,) = [line for line in lines if line.startswith("vllm:cache_config_info{")]
            assert 'num_gpu_blocks="777"' in info


async def test_a_stream_carries_one_chunk_per_token_and_ends_with_usage(deploy: Any) -> None:
    deployment = deploy()
    async with deployment.client() as client:
        stream = await client.chat.completions.create(
            model="mock/model",
            messages=PROMPT,
            max_tokens=23,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    tokens = [c for c in chunks if c.choices and c.choices[0].delta.content]
    assert len(tokens) == 23
    assert tokens[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 23


async def test_prefill_runs_on_a_prefill_worker_and_decode_on_a_decode_worker(deploy: Any) -> None:
    deployment = deploy()
    async with deployment.client() as client:
        answer = await client.chat.completions.create(
            model="mock/model", messages=PROMPT, max_tokens=17
        )
    assert answer.usage.completion_tokens == 17
    (prefill,), (decode,) = deployment.running_pods("prefill"), deployment.running_pods("decode")
    kubectl = deployment.kubectl
    assert metric(kubectl, prefill, "vllm:generation_tokens_total") == 1
    assert metric(kubectl, prefill, "vllm:prompt_tokens_total") == answer.usage.prompt_tokens
    assert metric(kubectl, decode, "vllm:generation_tokens_total") == 17


async def test_only_prefill_workers_publish_events_and_the_events_name_the_prompts_blocks(
    deploy: Any, nats_url: str
) -> None:
    deployment = deploy(prefill=2, decode=2)
    prompt = list(range(1000, 1000 + 16 * 5 + 3))
    async with deployment.client() as client:
        for _ in range(4):
            await client.completions.create(model="mock/model", prompt=prompt, max_tokens=4)
    namespace = f"{deployment.kubectl.namespace}-mock"
    events = await kv_events(nats_url, Component(namespace, "prefill"), at_least=4)
    worker_ids = {worker_id_from_uid(p["metadata"]["uid"]) for p in deployment.pods("prefill")}
    assert {event.worker_id for event in events} == worker_ids
    for worker_id in worker_ids:
        of_worker = [event for event in events if event.worker_id == worker_id]
        assert [event.event_id for event in of_worker] == list(range(len(of_worker)))
        stored = [b for e in of_worker if isinstance(e.event, BlockStored) for b in e.event.blocks]
        assert stored == list(hash_blocks(prompt, 16))
    assert await kv_events(nats_url, Component(namespace, "backend"), at_least=0) == []


async def kv_events(nats_url: str, component: Component, *, at_least: int) -> list[RouterEvent]:
    """All events of a component so far, once there are at least so many."""
    connection = await nats.connect(nats_url)
    try:
        context = connection.jetstream()
        for _ in range(200):
            try:
                info = await context.stream_info(component.kv_event_stream)
            except nats.js.errors.NotFoundError:
                if at_least == 0:
                    return []
                await asyncio.sleep(0.05)
                continue
            if info.state.messages >= at_least:
                break
            await asyncio.sleep(0.05)
        if info.state.messages == 0:
            return []
        subscription = await context.subscribe(
            component.kv_event_subject,
            stream=component.kv_event_stream,
            ordered_consumer=True,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL),
        )
        messages = [await subscription.next_msg(timeout=5) for _ in range(info.state.messages)]
        return [decode_router_event(message.data) for message in messages]
    finally:
        await connection.close()


def test_workers_have_no_token_and_cannot_write_their_root(deploy: Any) -> None:
    deployment = deploy()
    (pod,) = deployment.running_pods("decode")
    script = (
        "import os\n"
        "assert not os.path.exists('/var/run/secrets/kubernetes.io/serviceaccount/token')\n"
        "assert os.getuid() != 0\n"
        "try:\n    open('/written', 'w')\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    said = deployment.kubectl.run("exec", pod, "--", "python3", "-c", script)
    assert said.strip() == "Read-only file system"


async def test_an_aggregated_deployment_answers_through_its_frontend(kubectl: Kubectl) -> None:
    kubectl.apply((ROOT / "examples/aggregated.yaml").read_text())
    kubectl.run("wait", "mockerdeployment/aggregated", "--for=condition=Ready", "--timeout=90s")
    with kubectl.forwarded("service/aggregated-frontend", 8000) as port:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}", raise_for_status=True) as session,
            session.post("/v1/completions", json={"prompt": "hello", "max_tokens": 5}) as answer,
        ):
            usage = (await answer.json())["usage"]
    assert usage["completion_tokens"] == 5


def test_a_spec_that_the_schema_can_judge_is_refused_by_the_api_server(kubectl: Kubectl) -> None:
    resource = yaml.safe_load((ROOT / "examples/disaggregated.yaml").read_text())
    resource["spec"]["decode"]["replicas"] = -1
    done = subprocess.run(
        ["kubectl", "--namespace", kubectl.namespace, "apply", "--filename=-"],
        input=yaml.safe_dump(resource),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "spec.decode.replicas" in done.stderr
