"""Measures what a live worker's streams cost, and how true their times are.

    .venv/bin/python benchmarks/streaming.py [cpu] [prompts] [time] [metrics] [rivals] [--rounds 5]

cpu      CPU seconds of the worker per 1,000 output tokens, against a write loop of the same HTTP
         library that emits as many bytes (live/bare_stream.py), in turns on the same machine:
         256 connections, prompts of 128 tokens, answers of 64, no simulated delay
prompts  CPU milliseconds of a request with a prompt of 32,768 tokens: text, and token ids
time     gaps between tokens of 256 streams at speedup 1 against the modelled pass, for a minute,
         beside those of a loop that does nothing but send (live/bare_pacer.py)
metrics  CPU milliseconds of a scrape, 50 a second
rivals   the load of `cpu` on the worker, llm-d-inference-sim, and Dynamo's mocker and frontend, all
         in turns; on fresh connections, where Dynamo's frontend does not stall, and on ones kept
         alive. The rivals are compiled and installed at first (live/rivals.py); one that cannot be
         had is left out, and one whose answers have not 64 tokens is refused, with the reason

A figure over its budget is printed as such, and the exit code is 1. CPU is what the scheduler
accounts (/proc/<pid>/task/*/schedstat), so other programs disturb it little; still, let nothing
else run. Figures go to benchmarks/streaming.json.
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent / "live"))

from race import results, run_rounds
from rivals import contestants
from stream_client import Load, Tally, chat_body

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "streaming.json"
WORKER = [sys.executable, "-m", "mocker_worker.cli", "serve", "--no-nats", "--port", "0"]
CONNECTIONS, PROMPT_WORDS, ANSWER_TOKENS = 256, 119, 64
"""119 words and the chat's markup are 128 tokens."""
LONG_PROMPT_TOKENS = 32_768
TEXT_WORDS = 7_900
"""Different words in a text, each one token."""
RIVALS = "rivals, "
"""How the names of their figures begin."""


@dataclass(frozen=True)
class Figure:
    """One measured budget."""

    name: str
    unit: str
    value: float
    budget: float | None
    """None: for orientation only."""
    samples: list[float]


@dataclass(frozen=True)
class Server:
    """A server under load."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """Return its CPU seconds so far, all threads together."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def get(self, path: str) -> bytes:
        """Return the body of a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return bytes(answer.read())


@contextmanager
def running(command: list[str]) -> Iterator[Server]:
    """Run a server that says on which port it listens."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE.parent
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"listening on http://[^:]*:(\d+)", line):
                server = Server(int(found[1]), process.pid)
                _until_ready(server)
                yield server
                return
        raise RuntimeError(f"{command} did not start")
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(30)


def _until_ready(server: Server) -> None:
    for _ in range(500):
        try:
            server.get("/health")
        except OSError as error:
            if getattr(error, "code", None) == 404:  # the yardstick has no probes
                return
        else:
            return
        time.sleep(0.02)
    raise RuntimeError("the server did not become ready")


def drive(load: Load) -> Tally:
    """Run a load in a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tally = runner.run(load.run())
    if tally.failures:
        raise RuntimeError(f"answers failed: {dict(tally.failures)}")
    return tally


def cpu_per_1000_tokens(server: Server, requests: int, *, is_fresh: bool = False) -> float:
    """Return CPU seconds of the server per 1,000 tokens under the load of the budget."""
    before_s = server.cpu_s()
    drive(
        Load(
            server.port,
            lambda number: chat_body(number, PROMPT_WORDS, ANSWER_TOKENS),
            connections=CONNECTIONS,
            requests=requests,
            is_fresh=is_fresh,
        )
    )
    return (server.cpu_s() - before_s) / requests / ANSWER_TOKENS * 1000


def measure_cpu(rounds: int, requests: int) -> Iterator[Figure]:
    """Compare the worker with the write loop, in turns."""
    worker = [*WORKER, "--speedup-ratio", "0", "--max-num-seqs", str(CONNECTIONS)]
    with running(worker) as ours:
        event_bytes, head_bytes = sizes(ours)
        bare = [
            sys.executable,
            str(HERE / "live/bare_stream.py"),
            str(event_bytes),
            str(head_bytes),
        ]
        with running([*bare, "--turns"]) as turning, running(bare) as straight:
            servers = {"worker": ours, "turn per token": turning, "no turns": straight}
            samples: dict[str, list[float]] = {name: [] for name in servers}
            for server in servers.values():  # warms up
                cpu_per_1000_tokens(server, requests // 4)
            for number in range(rounds):
                for name, server in servers.items():
                    samples[name].append(cpu_per_1000_tokens(server, requests))
                print(f"  round {number + 1}: " + _row(samples), flush=True)
            fresh = [cpu_per_1000_tokens(ours, requests, is_fresh=True) for _ in range(3)]
    for name, values in samples.items():
        yield Figure(f"CPU per 1,000 tokens: {name}", "s", statistics.median(values), None, values)
    median = statistics.median(fresh)
    yield Figure("CPU per 1,000 tokens: worker, fresh connections", "s", median, None, fresh)
    for name, budget in (("turn per token", 1.3), ("no turns", None)):
        pairs = zip(samples["worker"], samples[name], strict=True)
        ratios = [a / b for a, b in pairs]
        value = statistics.median(ratios)
        yield Figure(f"CPU against a write loop, {name}", "", value, budget, ratios)


def sizes(server: Server) -> tuple[int, int]:
    """Return the mean length of an event, and what its head has beyond the yardstick's."""
    body = chat_body(1, PROMPT_WORDS, ANSWER_TOKENS)
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/chat/completions", data=body
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        events = answer.read().split(b"\n\n")[:-2]
        head = sum(len(name) + len(value) + 4 for name, value in answer.getheaders())
    bare_head = 200
    return round(sum(map(len, events)) / len(events)) + 2, max(head - bare_head, 0)


def _row(samples: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {values[-1]:.5f} s" for name, values in samples.items())


def measure_prompts(rounds: int) -> Iterator[Figure]:
    """Send prompts of 32,768 tokens, one after the other, none of which is cached."""
    args = ["--speedup-ratio", "0", "--max-num-batched-tokens", "65536"]
    kinds = {"text": _text_body, "token ids": _ids_body}
    with running([*WORKER, *args]) as server:
        for kind, body in kinds.items():
            samples = []
            for number in range(rounds + 1):
                bodies = [body(number * 100 + k) for k in range(20)]
                before_s = server.cpu_s()
                _post_all(server, bodies)
                samples.append((server.cpu_s() - before_s) / len(bodies) * 1000)
            value = statistics.median(samples[1:])
            yield Figure(f"prompt of 32,768 tokens, {kind}", "ms CPU", value, 4.0, samples[1:])


def _text_body(number: int) -> bytes:
    words = random.Random(number).choices(range(TEXT_WORDS), k=LONG_PROMPT_TOKENS)
    return json.dumps({"prompt": " ".join(f"w{k}" for k in words), "max_tokens": 1}).encode()


def _ids_body(number: int) -> bytes:
    token_ids = random.Random(number).choices(range(100_000), k=LONG_PROMPT_TOKENS)
    return json.dumps({"prompt": token_ids, "max_tokens": 1}).encode()


def _post_all(server: Server, bodies: list[bytes]) -> None:
    """Send requests on one connection, one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for data in bodies:
        connection.request("POST", "/v1/completions", data)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == HTTPStatus.OK, answer.reason
    connection.close()


def measure_time(seconds: float) -> Iterator[Figure]:
    """Compare gaps between tokens with the modelled pass, and the clock with the passes' sum."""
    yield _idle_sleeper(min(seconds, 20.0))
    for streams in (32, CONNECTIONS):
        yield from _gaps(streams, seconds)


def _idle_sleeper(seconds: float) -> Figure:
    """Measure how late this machine wakes a process that does nothing else."""
    late_ms, next_s = [], time.monotonic()
    for _ in range(int(seconds / 0.015)):
        next_s += 0.015
        time.sleep(max(next_s - time.monotonic(), 0))
        late_ms.append((time.monotonic() - next_s) * 1000)
    errors_ms = sorted(abs(b - a) for a, b in pairwise(late_ms))
    return Figure(
        "gap of an idle sleeper on this machine, p99",
        "ms",
        _percentile(errors_ms, 99),
        None,
        [_percentile(errors_ms, q) for q in _PERCENTILES],
    )


def _gaps(streams: int, seconds: float) -> Iterator[Figure]:
    timing = HERE / "live/fixed_pass.json"
    pass_ms = json.loads(timing.read_text())["timing_model"]["decode_ms"]
    pacer = [sys.executable, str(HERE / "live/bare_pacer.py"), str(streams), str(pass_ms)]
    bare = _paced(pacer, streams, pass_ms, seconds)
    ours = _paced([*WORKER, "--extra-engine-args", str(timing)], streams, pass_ms, seconds)
    bare_p99, p99 = (_percentile(paced.errors_ms, 99) for paced in (bare, ours))
    name = f"{streams} streams: gap between tokens off the pass, p99"
    yield Figure(name, "ms", p99, 1.0, ours.percentiles_ms())
    yield Figure(f"{name}, bare pacer", "ms", bare_p99, None, bare.percentiles_ms())
    name = f"{streams} streams: drift over {ours.seconds:.0f} s"
    drifts_ms = ours.drifts_ms
    yield Figure(
        name, "ms", abs(statistics.median(drifts_ms)), 2.0, [min(drifts_ms), max(drifts_ms)]
    )
    yield Figure(f"{streams} streams: CPU of the worker", "cores", ours.cores, None, [ours.cores])


@dataclass(frozen=True)
class _Paced:
    """How streams kept to their pass."""

    errors_ms: list[float]
    """What gaps are off the pass, in ascending order."""
    drifts_ms: list[float]
    """Of each stream, over all its gaps."""
    seconds: float
    cores: float

    def percentiles_ms(self) -> list[float]:
        return [_percentile(self.errors_ms, q) for q in _PERCENTILES]


def _paced(command: list[str], streams: int, pass_ms: float, seconds: float) -> _Paced:
    tokens = int(seconds * 1000 / pass_ms)
    with running(command) as server:
        load = Load(
            server.port,
            lambda number: chat_body(number, 16, tokens),
            connections=streams,
            requests=streams,
            keeps_times=True,
        )
        before_s = server.cpu_s()
        tally = drive(load)
        used_s = server.cpu_s() - before_s
    errors_ms, drifts_ms = [], []
    # From when the last stream has begun, as passes with prompts take longer, to the first end.
    began_s = max(times[1] for times in tally.arrivals_s.values()) + 0.2
    ended_s = min(times[-3] for times in tally.arrivals_s.values())
    for times in tally.arrivals_s.values():
        steady = [at_s for at_s in times if began_s <= at_s <= ended_s]
        errors_ms += [abs((b - a) * 1000 - pass_ms) for a, b in pairwise(steady)]
        drifts_ms.append((steady[-1] - steady[0]) * 1000 - pass_ms * (len(steady) - 1))
    errors_ms.sort()
    return _Paced(errors_ms, drifts_ms, ended_s - began_s, used_s / tally.wall_s)


_PERCENTILES = (50, 90, 99, 99.9)
"""Of the samples that a figure of gaps keeps."""


def _percentile(ascending: list[float], q: float) -> float:
    return round(ascending[int(q / 100 * (len(ascending) - 1))], 3)


def measure_metrics(scrapes: int) -> Iterator[Figure]:
    """Scrape 50 times a second on one connection, as Prometheus does."""
    samples = []
    with running(WORKER) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        size = 0
        for _ in range(3):
            costs_s = {}
            for path in ("/metrics", "/version"):
                before_s, next_s = server.cpu_s(), time.monotonic()
                for _ in range(scrapes):
                    connection.request("GET", path)
                    size = max(size, len(connection.getresponse().read()))
                    next_s += 0.02
                    time.sleep(max(next_s - time.monotonic(), 0))
                costs_s[path] = server.cpu_s() - before_s
            samples.append((costs_s["/metrics"] - costs_s["/version"]) / scrapes * 1000)
        connection.close()
    value = statistics.median(samples)
    yield Figure(f"scrape of {size // 1000} kB beyond /version", "ms CPU", value, 1.0, samples)


def measure_rivals(rounds: int, requests: int) -> Iterator[Figure]:
    """Compare the worker with what one would use instead, in turns."""
    with contestants(lambda name, why: print(f"  left out: {name}: {why}", flush=True)) as servers:
        rows = run_rounds(servers, rounds, requests, lambda line: print(f"  {line}", flush=True))
    for row in rows:
        if row.refusal:
            print(f"  {row.name}: REFUSED: {row.refusal}", flush=True)
    for name, unit, samples in results(rows):
        yield Figure(f"{RIVALS}{name}", unit, statistics.median(samples), None, samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["cpu", "prompts", "time", "metrics", "rivals"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    measures = {
        "cpu": lambda: measure_cpu(arguments.rounds, arguments.requests),
        "prompts": lambda: measure_prompts(arguments.rounds),
        "time": lambda: measure_time(arguments.seconds),
        "metrics": lambda: measure_metrics(200),
        "rivals": lambda: measure_rivals(arguments.rounds, arguments.requests // 2),
    }
    figures = []
    for name in arguments.what:
        print(f"{name}:", flush=True)
        for figure in measures[name]():
            figures.append(figure)
            print(f"  {_told(figure)}", flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if "rivals" in arguments.what:  # who is left out now keeps no figure of another day
        known = {name: figure for name, figure in known.items() if not name.startswith(RIVALS)}
    known |= {figure.name: asdict(figure) for figure in figures}
    known["machine"] = {"cpus": os.cpu_count(), "at": time.strftime("%Y-%m-%d %H:%M")}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    return int(any(f.budget is not None and f.value > f.budget for f in figures))


def _told(figure: Figure) -> str:
    text = f"{figure.name}: {figure.value:.4g} {figure.unit}"
    if figure.budget is None:
        return text
    verdict = "within" if figure.value <= figure.budget else "OVER"
    return f"{text} ({verdict} {figure.budget:g})"


if __name__ == "__main__":
    sys.exit(main())
