"""Measures the project's budgets on the cluster of KUBECONFIG and writes them to a JSON file.

Two kinds: ratios, where both sides run in turn on the same cluster and medians are compared, and
absolute figures of one process, read from its own /proc. Nothing here is a test: a figure over
its budget is printed as such and the exit code is 1.

    benchmarks/budgets.py [--runs 5] [--rest-s 300] [--only NAME] [--output FILE]
"""

import argparse
import asyncio
import json
import platform
import re
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hack"))

import chart
from kubectl import Kubectl, until
from mocker_planner.client import PlannerClient

RESULTS = Path(__file__).resolve().parent / "results.json"
OURS = "mocker.dev/deployment=bench"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured budget."""

    name: str
    unit: str
    value: float
    budget: float
    samples: dict[str, list[float]]

    @property
    def holds(self) -> bool:
        """Whether the budget was reached."""
        return self.value <= self.budget


def resource(name: str, *, prefill: int, decode: int, frontend: bool) -> dict[str, Any]:
    """A MockerDeployment that a planner scales."""
    return {
        "apiVersion": "mocker.dev/v1alpha1",
        "kind": "MockerDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "mock/model"},
            "prefill": {"replicas": prefill},
            "decode": {"replicas": decode},
            "frontend": {"enabled": frontend},
            "scaling": {"source": "planner"},
        },
    }


@contextmanager
def namespace() -> Iterator[Kubectl]:
    """A namespace of our own, deleted and waited for at the end."""
    whole, name = Kubectl("default"), f"bench-{uuid.uuid4().hex[:6]}"
    whole.run("create", "namespace", name)
    try:
        yield Kubectl(name)
    finally:
        whole.run("delete", "namespace", name, "--timeout=120s", timeout_s=150)


def ready_pods(kubectl: Kubectl, selector: str) -> int:
    """Pods that are Ready and not going."""
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for pod in kubectl.items("pods", selector)
        if "deletionTimestamp" not in pod["metadata"]
        for condition in pod["status"].get("conditions", [])
    )


def names(objects: list[dict[str, Any]]) -> list[str]:
    """Their metadata.name."""
    return [each["metadata"]["name"] for each in objects]


def settle(kubectl: Kubectl, selector: str, pods: int) -> None:
    """Wait until exactly so many pods are there, none of them going."""
    until(
        f"{pods} pods are left",
        lambda: len(kubectl.items("pods", selector)) == pods == ready_pods(kubectl, selector),
        timeout_s=120,
    )


def plain_copy(deployment: dict[str, Any], name: str) -> dict[str, Any]:
    """The same pods as a Deployment that no operator owns."""
    labels = {"bench": name}
    template = deployment["spec"]["template"]
    metadata = template["metadata"] | {"labels": labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": deployment["spec"]["replicas"],
            "selector": {"matchLabels": labels},
            "strategy": deployment["spec"]["strategy"],
            "template": template | {"metadata": metadata},
        },
    }


async def scale_by_decision(kubectl: Kubectl, planner: PlannerClient, decode: int) -> float:
    """Seconds from the decision in NATS to its acknowledgement."""
    began = time.monotonic()
    decision = await planner.decide("bench", kubectl.namespace, decode=decode)
    await planner.wait("bench", decision.decision_id, kubectl.namespace, timeout_s=120)
    return time.monotonic() - began


async def scale_plain(kubectl: Kubectl, replicas: int) -> float:
    """Seconds from `kubectl scale` to `kubectl rollout status`."""
    began = time.monotonic()
    for command in (["scale", f"--replicas={replicas}"], ["rollout", "status"]):
        await asyncio.to_thread(kubectl.run, *command, "deployment/plain")
    return time.monotonic() - began


async def decision_to_acknowledgement(runs: int) -> Figure:
    """1 -> 5 decode pods by a planner's decision against `kubectl scale`, in turn."""
    system = Kubectl(chart.NAMESPACE)
    ours: list[float] = []
    plain: list[float] = []
    with namespace() as kubectl, system.forwarded(chart.NATS_SERVICE, 4222) as port:
        kubectl.apply(json.dumps(resource("bench", prefill=1, decode=1, frontend=False)))
        kubectl.run("wait", "mockerdeployment/bench", "--for=condition=Ready", "--timeout=120s")
        child = kubectl.get("deployment/bench-decode")
        kubectl.apply(json.dumps(plain_copy(child, "plain")))
        kubectl.run("rollout", "status", "deployment/plain")
        async with PlannerClient(f"nats://127.0.0.1:{port}") as planner:
            for _ in range(runs):
                ours.append(await scale_by_decision(kubectl, planner, 5))
                await scale_by_decision(kubectl, planner, 1)
                plain.append(await scale_plain(kubectl, 5))
                await scale_plain(kubectl, 1)
                settle(kubectl, "bench=plain", 1)
    ratio = statistics.median(ours) / statistics.median(plain)
    samples = {"decision_s": ours, "kubectl_scale_s": plain}
    return Figure("decision_to_acknowledgement", "ratio", ratio, 1.15, samples)


async def apply_to_ready(runs: int) -> Figure:
    """`kubectl apply` of a resource against the slowest of its Deployments applied by hand."""
    ours: list[float] = []
    plain: list[float] = []
    with namespace() as kubectl:
        for _ in range(runs):
            began = time.monotonic()
            kubectl.apply(json.dumps(resource("bench", prefill=2, decode=2, frontend=True)))
            kubectl.run("wait", "mockerdeployment/bench", "--for=condition=Ready", "--timeout=2m")
            ours.append(time.monotonic() - began)
            children = kubectl.items("deployments", OURS)
            copies = [plain_copy(each, each["metadata"]["name"] + "-plain") for each in children]
            # The copies mount the originals' ConfigMaps, so the resource stays until they are done.
            began = time.monotonic()
            kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": copies}))
            for copy in copies:
                kubectl.run("rollout", "status", f"deployment/{copy['metadata']['name']}")
            plain.append(time.monotonic() - began)
            kubectl.run("delete", "mockerdeployment/bench", "--timeout=60s")
            kubectl.run("delete", "deployments", *names(copies), "--wait=false")
            until("no pod is left", lambda: not kubectl.items("pods"), timeout_s=120)
    ratio = statistics.median(ours) / statistics.median(plain)
    samples = {"resource_s": ours, "deployments_s": plain}
    return Figure("apply_to_ready", "ratio", ratio, 1.3, samples)


async def drift_to_repair(runs: int) -> Figure:
    """From the deletion or the edit of a child, as kubectl is back from it, to its repair."""
    deleted: list[float] = []
    edited: list[float] = []
    child = "deployment/bench-decode"
    with namespace() as kubectl:
        kubectl.apply(json.dumps(resource("bench", prefill=1, decode=1, frontend=False)))
        kubectl.run("wait", "mockerdeployment/bench", "--for=condition=Ready", "--timeout=120s")
        for _ in range(runs):
            settle(kubectl, OURS, 2)
            uid = kubectl.get(child)["metadata"]["uid"]
            kubectl.run("delete", child, "--wait=false")
            deleted.append(_seconds_until(lambda: kubectl.get(child)["metadata"]["uid"] != uid))  # noqa: B023 - called at once
            settle(kubectl, OURS, 2)
            kubectl.run("scale", child, "--replicas=4")
            edited.append(_seconds_until(lambda: kubectl.get(child)["spec"]["replicas"] == 1))
    samples = {"deleted_s": deleted, "edited_s": edited}
    return Figure("drift_to_repair", "s", max(*deleted, *edited), 2.0, samples)


def _seconds_until(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    until("the child is repaired", condition)
    return time.monotonic() - began


def process_of(kubectl: Kubectl, pod: str) -> tuple[float, float]:
    """Resident MiB and CPU seconds of the pod's program."""
    script = (
        "p=$(grep -l ^mocker- /proc/[0-9]*/comm | head -1); p=${p%/comm}; "
        "cat $p/status $p/stat; getconf CLK_TCK"
    )
    said = kubectl.run("exec", pod, "--", "sh", "-c", script)
    resident_kib = int(re.search(r"VmRSS:\s+(\d+)", said).group(1))  # type: ignore[union-attr]
    *_, stat, ticks = said.splitlines()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return resident_kib / 1024, (int(user) + int(system)) / int(ticks)


async def worker_process(runs: int) -> list[Figure]:
    """Memory and CPU of a worker that has just become ready."""
    resident: list[float] = []
    cpu: list[float] = []
    with namespace() as kubectl:
        kubectl.apply(json.dumps(resource("bench", prefill=1, decode=1, frontend=False)))
        kubectl.run("wait", "mockerdeployment/bench", "--for=condition=Ready", "--timeout=120s")
        for _ in range(runs):
            (pod,) = names(kubectl.items("pods", f"{OURS},mocker.dev/role=decode"))
            mib, seconds = process_of(kubectl, pod)
            resident.append(mib)
            cpu.append(seconds)
            kubectl.run("delete", "pod", pod, "--timeout=60s")
            kubectl.run("rollout", "status", "deployment/bench-decode")
    return [
        Figure("worker_resident", "MiB", max(resident), 60, {"resident_mib": resident}),
        Figure("worker_start_cpu", "s", statistics.median(cpu), 1.0, {"cpu_s": cpu}),
    ]


WRITES = re.compile(
    r'^apiserver_request_total\{(?=[^}]*resource="(?:mockerdeployments|deployments|services|'
    r'configmaps|events)")(?=[^}]*verb="(?:APPLY|PATCH|POST|PUT|DELETE)")(.*)\} (\S+)$'
)


def writes(kubectl: Kubectl) -> float:
    """Writes that the API server has counted on the kinds that the operator writes."""
    lines = kubectl.run("get", "--raw", "/metrics").splitlines()
    return sum(float(match.group(2)) for line in lines if (match := WRITES.match(line)))


async def operator_at_rest(count: int, rest_s: float) -> list[Figure]:
    """Writes and memory of an operator with many resources and nothing to do."""
    system = Kubectl(chart.NAMESPACE)
    with namespace() as kubectl:
        items = [
            resource(f"bench-{number}", prefill=0, decode=0, frontend=False)
            for number in range(count)
        ]
        kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        kubectl.run(
            "wait", "mockerdeployments", "--all", "--for=condition=Ready", "--timeout=600s",
            timeout_s=620,
        )  # fmt: skip
        before = _settled(lambda: writes(kubectl))
        began = time.monotonic()
        while (passed := time.monotonic() - began) < rest_s:
            print(f"\r  at rest for {passed:.0f} of {rest_s:.0f} s", end="", flush=True)
            await asyncio.sleep(min(10, rest_s - passed))
        print()
        after = writes(kubectl)
        (pod,) = [n for n in names(system.items("pods")) if n.startswith("mocker-operator-")]
        resident, _ = process_of(system, pod)
    return [
        Figure("operator_writes_at_rest", "writes", after - before, 0, {"seconds": [rest_s]}),
        Figure("operator_resident", "MiB", resident, 200, {"resources": [float(count)]}),
    ]


def _settled(read: Callable[[], float]) -> float:
    """Return a reading that 10 s have not changed."""
    last = read()
    while True:
        time.sleep(10)
        if (value := read()) == last:
            return value
        last = value


async def measure(options: argparse.Namespace) -> list[Figure]:
    """Run what was asked for, and say what it found as it goes."""
    plan: dict[str, Callable[[], Any]] = {
        "scale": lambda: decision_to_acknowledgement(options.runs),
        "ready": lambda: apply_to_ready(options.runs),
        "drift": lambda: drift_to_repair(options.runs),
        "worker": lambda: worker_process(options.runs),
        "rest": lambda: operator_at_rest(options.resources, options.rest_s),
    }
    figures: list[Figure] = []
    for name, run in plan.items():
        if options.only and name not in options.only:
            continue
        print(f"measuring {name} ...", flush=True)
        found = await run()
        for figure in found if isinstance(found, list) else [found]:
            figures.append(figure)
            verdict = "holds" if figure.holds else "NOT REACHED"
            print(
                f"  {figure.name:28} {figure.value:8.2f} {figure.unit:7} "
                f"budget {figure.budget:g}: {verdict}",
                flush=True,
            )
    return figures


def main() -> int:
    """Return 1 if a budget was not reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--resources", type=int, default=200)
    parser.add_argument("--rest-s", type=float, default=300)
    parser.add_argument("--only", nargs="*", choices=["scale", "ready", "drift", "worker", "rest"])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    chart.install()
    figures = asyncio.run(measure(options))
    report = {
        "machine": {"platform": platform.platform(), "python": platform.python_version()},
        "figures": [asdict(figure) | {"holds": figure.holds} for figure in figures],
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {options.output}")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
