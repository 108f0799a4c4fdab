"""The story of `make run`: from the chart to a planner's decision, on the cluster of KUBECONFIG.

Every step is a command that a user could type; what it shows is read back from the cluster, the
clients and the event stream. The last line is one JSON object. The exit code is 1 unless every
request was answered, events were seen and the decision was acknowledged.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import openai
from nats.js.api import ConsumerConfig, DeliverPolicy

import chart
from kubectl import Kubectl, KubectlError, NotYet, until
from mocker_planner.client import PlannerClient
from mocker_planner.errors import PlannerError
from mocker_protocol.kv_events import BlockStored, RouterEvent, decode_router_event
from mocker_protocol.names import Component, WorkerType, dynamo_namespace

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = os.environ.get("MOCKER_NAMESPACE", "default")
NAME = "disaggregated"
EXAMPLE = ROOT / "examples/disaggregated.yaml"
PREFIX = (
    "Run {run}. " + "Tell me how a key-value cache block is stored, evicted and found again. " * 16
)
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


class StoryFailed(Exception):
    """A step did not do what it should; the text says which."""


# What a cluster, a client or a program may do to the story; anything else is a fault in it.
_FAILURES = (
    StoryFailed,
    KubectlError,
    NotYet,
    PlannerError,
    nats.errors.Error,
    openai.OpenAIError,
    subprocess.SubprocessError,
    OSError,
)


def prompt(run: str, number: int) -> str:
    """One request's text: a prefix that all of a run share, and its own question.

    `run` comes first, so the blocks of an earlier run are no hits and events are published again.
    """
    return PREFIX.format(run=run) + QUESTION.format(number=number) * 8


async def chat(client: openai.AsyncOpenAI, model: str, text: str) -> tuple[int, float, float]:
    """Stream one completion; return its tokens, TTFT and mean gap between tokens in ms."""
    asked = time.monotonic()
    arrivals: list[float] = []
    tokens = 0
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
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
    run = uuid.uuid4().hex
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(chat(client, model, prompt(run, number)) for number in range(REQUESTS)),
            return_exceptions=True,
        )
    good = [answer for answer in answers if not isinstance(answer, BaseException)]
    for answer in answers:
        if isinstance(answer, BaseException):
            print(f"request failed: {answer}", file=sys.stderr)
    if not good:
        raise StoryFailed("no request was answered")
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


def is_ready(kubectl: Kubectl) -> bool:
    """Whether the resource's Ready condition is true."""
    conditions = kubectl.get("mockerdeployment", NAME)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@contextmanager
def failing_readably(*namespaces: Kubectl) -> Iterator[None]:
    """Show what the cluster says when a step fails."""
    try:
        yield
    except Exception:
        for kubectl in namespaces:
            for kinds in ("mockerdeployments", "pods", "events"):
                with suppress(KubectlError):
                    print(kubectl.run("get", kinds, "-o", "wide")[-4000:], file=sys.stderr)
        raise


def shortcomings(result: dict[str, Any]) -> list[str]:
    """What keeps the result (the last line's object) from being a success."""
    checks = {
        "the resource is not Ready": result["ready"],
        f"not all {REQUESTS} requests were answered": result["requests_ok"] == REQUESTS,
        "no KV event was seen": result["kv_events"] > 0,
        "the acknowledgement is of another decision": (
            result["scaled_decision_id"] == result["decision_id"]
        ),
    }
    return [what for what, holds in checks.items() if not holds]


def main() -> int:
    """Tell the story; return the exit code."""
    try:
        result = asyncio.run(tell())
    except _FAILURES as error:
        print(f"run.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    missing = shortcomings(result)
    for what in missing:
        print(f"run.py: {what}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if missing else 0


async def tell() -> dict[str, Any]:
    """Tell the story; return what the last line holds."""
    story, kubectl, system = Story(), Kubectl(NAMESPACE), Kubectl(chart.NAMESPACE)
    with failing_readably(kubectl, system):
        nodes = kubectl.get("nodes")["items"]
        version = nodes[0]["status"]["nodeInfo"]["kubeletVersion"]
        story.tell("cluster", f"{len(nodes)} node, Kubernetes {version}")
        story.tell("chart", chart.install())
        kubectl.run("apply", "--filename", str(EXAMPLE))
        story.tell("resource", f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}")
        kubectl.run("wait", f"mockerdeployment/{NAME}", "--for=condition=Ready", "--timeout=120s")
        story.tell("ready", kubectl.run("get", "mockerdeployments"))
        with (
            kubectl.forwarded(f"service/{NAME}-frontend", 8000) as http_port,
            system.forwarded(chart.NATS_SERVICE, 4222) as nats_port,
        ):
            result = await play(story, kubectl, http_port, nats_port)
    tell_what_next(story)
    return result


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
        "ready": is_ready(kubectl),
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
    sys.exit(main())
