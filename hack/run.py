"""The story of `make run`: from the chart to a planner's decision, on the cluster of KUBECONFIG.

Every step is a command that a user could type; what it shows is read back from the cluster, the
clients and the event stream. The last line is one JSON object.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import openai
from nats.js.api import ConsumerConfig, DeliverPolicy

import chart
from kubectl import Kubectl, until
from mocker_planner.client import PlannerClient
from mocker_protocol.kv_events import BlockStored, RouterEvent, decode_router_event
from mocker_protocol.names import Component, WorkerType, dynamo_namespace

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = os.environ.get("MOCKER_NAMESPACE", "default")
NAME = "disaggregated"
EXAMPLE = ROOT / "examples/disaggregated.yaml"
PREFIX = "Tell me how a key-value cache block is stored, evicted and found again. " * 16
QUESTION = "Question {number}: which of its neighbours leaves the cache first, and why? "
REQUESTS = 8
MAX_TOKENS = 32


@dataclass(slots=True)
class Story:
    """Prints what happens, with the seconds since the start."""

    began: float = field(default_factory=time.monotonic)

    def tell(self, topic: str, text: str) -> None:
        """Print one step; lines after the first are indented."""
        first, *rest = text.rstrip().splitlines()
        print(f"[{time.monotonic() - self.began:6.1f} s] {topic:<11} {first}", flush=True)
        for line in rest:
            print(f"{'':24}{line}", flush=True)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the clients saw."""

    ok: int
    output_tokens: int
    mean_ttft_ms: float
    mean_itl_ms: float


async def chat(client: openai.AsyncOpenAI, model: str, number: int) -> tuple[int, float, float]:
    """Stream one completion; return its tokens, TTFT and mean gap between tokens in ms."""
    asked = time.monotonic()
    arrivals: list[float] = []
    tokens = 0
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PREFIX + QUESTION.format(number=number) * 8}],
        max_tokens=MAX_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            arrivals.append(time.monotonic())
        if chunk.usage:
            tokens = chunk.usage.completion_tokens
    gaps = max(len(arrivals) - 1, 1)
    return tokens, (arrivals[0] - asked) * 1e3, (arrivals[-1] - arrivals[0]) * 1e3 / gaps


async def send_requests(base_url: str, model: str) -> Traffic:
    """Send the requests side by side, all with one long common prefix."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(chat(client, model, number) for number in range(REQUESTS)), return_exceptions=True
        )
    good = [answer for answer in answers if not isinstance(answer, BaseException)]
    for answer in answers:
        if isinstance(answer, BaseException):
            print(f"request failed: {answer}", file=sys.stderr)
    if not good:
        raise SystemExit("no request was answered")
    count = len(good)
    return Traffic(
        ok=count,
        output_tokens=sum(tokens for tokens, _, _ in good),
        mean_ttft_ms=sum(ttft for _, ttft, _ in good) / count,
        mean_itl_ms=sum(itl for _, _, itl in good) / count,
    )


@asynccontextmanager
async def kv_events(nats_url: str, component: Component) -> AsyncIterator[list[RouterEvent]]:
    """Collect the component's KV events that are published while the block runs."""
    events: list[RouterEvent] = []
    connection = await nats.connect(nats_url)
    try:
        subscription = await connection.jetstream().subscribe(
            component.kv_event_subject,
            stream=component.kv_event_stream,
            ordered_consumer=True,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
        )
        collecting = asyncio.create_task(_collect(subscription, events), name="kv-events")
        yield events
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
    finally:
        await connection.close()


async def _collect(subscription: Any, events: list[RouterEvent]) -> None:  # noqa: ANN401
    async for message in subscription.messages:
        events.append(decode_router_event(message.data))


async def settled(events: list[RouterEvent]) -> None:
    """Wait until an event has come and none has followed for half a second, 10 s at most."""
    for _ in range(20):
        seen = len(events)
        await asyncio.sleep(0.5)
        if seen and len(events) == seen:
            return


def describe(events: list[RouterEvent]) -> str:
    """Return a readable summary of the events, and the first of them."""
    stored = [each.event for each in events if isinstance(each.event, BlockStored)]
    blocks = sum(len(event.blocks) for event in stored)
    workers = len({each.worker_id for each in events})
    lines = [f"{len(events)} events by {workers} prefill workers: {blocks} blocks stored"]
    for each in events[:3]:
        lines.append(f"worker {each.worker_id:016x} event {each.event_id}: {_one_line(each)}")
    return "\n".join(lines)


def _one_line(event: RouterEvent) -> str:
    match event.event:
        case BlockStored(parent_hash, blocks):
            parent = "none" if parent_hash is None else f"{parent_hash:016x}"
            return f"stored {len(blocks)} blocks after {parent}"
        case other:
            return str(other)


def next_target(prefill: int, decode: int) -> tuple[int, int]:
    """Return counts that differ from the present ones: one role up, the other down."""
    return (2, 2) if (prefill, decode) == (1, 3) else (1, 3)


def role(kubectl: Kubectl, name: str) -> dict[str, int]:
    """Return one role's part of the resource's status."""
    counts: dict[str, int] = kubectl.get("mockerdeployment", NAME)["status"]["roles"][name]
    return counts


@contextmanager
def failing_readably(kubectl: Kubectl) -> Any:  # noqa: ANN401 - a context manager's own type
    """Show what the cluster says when a step fails."""
    try:
        yield
    except BaseException:
        for command in (["get", "mockerdeployments,pods", "-o", "wide"], ["get", "events"]):
            done = subprocess.run(
                ["kubectl", "--namespace", kubectl.namespace, *command],
                capture_output=True,
                text=True,
            )
            print(done.stdout[-4000:], file=sys.stderr)
        raise


async def main() -> None:
    """Tell the story."""
    story, kubectl, system = Story(), Kubectl(NAMESPACE), Kubectl(chart.NAMESPACE)
    nodes = kubectl.get("nodes")["items"]
    version = nodes[0]["status"]["nodeInfo"]["kubeletVersion"]
    story.tell("cluster", f"{len(nodes)} node, Kubernetes {version}")
    story.tell("chart", chart.install())
    kubectl.run("apply", "--filename", str(EXAMPLE))
    story.tell("resource", f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}")
    with failing_readably(kubectl):
        kubectl.run("wait", f"mockerdeployment/{NAME}", "--for=condition=Ready", "--timeout=120s")
        story.tell("ready", kubectl.run("get", "mockerdeployments"))
        with (
            kubectl.forwarded(f"service/{NAME}-frontend", 8000) as http_port,
            system.forwarded(chart.NATS_SERVICE, 4222) as nats_port,
        ):
            result = await play(story, kubectl, http_port, nats_port)
    tell_what_next(story)
    print(json.dumps(result))


async def play(story: Story, kubectl: Kubectl, http_port: int, nats_port: int) -> dict[str, Any]:
    """Send requests and a decision; return what the last line holds."""
    resource = kubectl.get("mockerdeployment", NAME)
    model = resource["spec"]["model"]["name"]
    nats_url = f"nats://127.0.0.1:{nats_port}"
    component = Component(dynamo_namespace(NAMESPACE, NAME), WorkerType.PREFILL.component)
    async with kv_events(nats_url, component) as events:
        traffic = await send_requests(f"http://127.0.0.1:{http_port}/v1", model)
        story.tell(
            "requests",
            f"{REQUESTS} chat completions with the openai client, {traffic.ok} ok, "
            f"{traffic.output_tokens} tokens\n"
            f"mean time to first token {traffic.mean_ttft_ms:.0f} ms, "
            f"mean gap between tokens {traffic.mean_itl_ms:.1f} ms",
        )
        await settled(events)
    story.tell("kv events", describe(events))

    prefill, decode = role(kubectl, "prefill"), role(kubectl, "decode")
    target = next_target(prefill["replicas"], decode["replicas"])
    async with PlannerClient(nats_url) as planner:
        decision = await planner.decide(NAME, NAMESPACE, prefill=target[0], decode=target[1])
        story.tell(
            "decision", f"id {decision.decision_id}: prefill {target[0]}, decode {target[1]}"
        )
        sent = time.monotonic()
        await planner.wait(NAME, decision.decision_id, NAMESPACE, timeout_s=180)
        scaled = (await planner.status(NAME, NAMESPACE)).scaled_decision_id
    until(
        "the status shows the new counts", lambda: role(kubectl, "decode")["replicas"] == target[1]
    )
    story.tell(
        "scaled",
        f"acknowledged {time.monotonic() - sent:.1f} s later, new pods ready and old ones gone\n"
        + kubectl.run("get", "mockerdeployments"),
    )
    return {
        "ready": True,
        "requests_ok": traffic.ok,
        "output_tokens": traffic.output_tokens,
        "kv_events": len(events),
        "decision_id": decision.decision_id,
        "scaled_decision_id": scaled,
        "prefill_replicas": role(kubectl, "prefill")["replicas"],
        "decode_replicas": role(kubectl, "decode")["replicas"],
    }


def tell_what_next(story: Story) -> None:
    """Say what to type to go on by hand."""
    story.tell(
        "next",
        f"""all is left running; to go on by hand:
eval "$(python3 hack/cluster.py env)"
kubectl get mockerdeployments,pods
kubectl port-forward service/{NAME}-frontend 8000 &
curl -N localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
  -d '{{"messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 8, "stream": true}}'
kubectl -n {chart.NAMESPACE} port-forward {chart.NATS_SERVICE} 4222 &
.venv/bin/mocker-planner decide {NAME} --prefill 2 --decode 5 --wait
make down""",
    )


if __name__ == "__main__":
    asyncio.run(main())
