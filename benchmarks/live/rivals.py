"""The servers that `streaming.py rivals` measures: our worker, and what one would use instead.

Each is run as its own manual has it, without delays, with room for 256 sequences, and a tokenizer
of one word a token. `hack/judges.py` has the rivals' versions and puts them into the cache; one
that this machine cannot have is left out, with the reason.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
OURS = "worker"
MODEL = "bench"
SEQUENCES = 256
WORDS = "the of and to in is was for on that by with as are at from his it an were".split()
_START_TIMEOUT_S = 60.0
_INSTALL_TIMEOUT_S = 3600.0
_VOCABULARY = 4096
"""Words of the model for Dynamo, whose mocker answers with the ids 1000 to 1999."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class LeftOut(Exception):
    """A server that cannot be measured here, and why."""


@dataclass(frozen=True)
class Contestant:
    """A running server: where it listens, and its processes."""

    name: str
    port: int
    parts: dict[str, int]
    """Process ids by what the processes are."""

    def cpu_s(self) -> dict[str, float]:
        """Return CPU seconds so far by part, threads that have ended included."""
        return {part: cpu_s(pid) for part, pid in self.parts.items()}


@dataclass(frozen=True)
class Usage:
    """What a server says of one answer, and how many events with text came."""

    prompt_tokens: int
    completion_tokens: int
    text_events: int


def cpu_s(pid: int) -> float:
    """Return user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def chat_body(number: int, words: int, max_tokens: int) -> bytes:
    """Return a chat that every server takes; each number below 3,200,000 has its own prompt."""
    own = [WORDS[number // 20**k % 20] for k in range(5)]
    rest = [WORDS[(number + k * k) % 20] for k in range(5, words)]
    body = {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": " ".join(own + rest)}],
    }
    return json.dumps(body).encode()


def ask(port: int, body: bytes) -> Usage:
    """Send one request and read its stream.

    Raises:
        OSError: The server is not there, or refuses.
        LeftOut: It does not say how many tokens there were.
    """
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return read_stream(answer.read())


def read_stream(stream: bytes) -> Usage:
    """Return what the events of one chat tell."""
    lines = [line for line in stream.splitlines() if line.startswith(b"data: {")]
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    texts = sum(1 for event in events for choice in event["choices"] if _text(choice))
    for event in events:
        if usage := event.get("usage"):
            return Usage(usage["prompt_tokens"], usage["completion_tokens"], texts)
    raise LeftOut("its streams have no usage")


def _text(choice: dict[str, dict[str, str | None]]) -> str | None:
    return choice["delta"].get("content")


@contextmanager
def contestants(left_out: Callable[[str, str], None]) -> Iterator[list[Contestant]]:
    """Run all servers that this machine can have; tell of the others."""
    starts: dict[str, Callable[[_Place], Contestant]] = {
        OURS: _worker,
        "worker with KV events": _worker_with_events,
        "llm-d-inference-sim": _llm_d,
        "Dynamo": _dynamo,
    }
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rivals-"))
        running = []
        for name, start in starts.items():
            place = _Place(name, Path(folder) / name.replace(" ", "-"))
            stack.callback(place.close)
            try:
                running.append(start(place))
            except LeftOut as reason:
                place.close()
                left_out(name, str(reason))
        yield running


class _Place:
    """Where one server's processes are started and ended."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.name = name
        self.folder = folder
        self.port = _free_port()
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(self, *command: object, env: dict[str, str] | None = None) -> int:
        """Start a process that writes into a file; return its id."""
        log = self.folder / f"{len(self._processes)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=os.environ | (env or {}),
            )
        self._processes.append((process, log))
        return process.pid

    def ready(self, **parts: int) -> Contestant:
        """Wait until it answers.

        Raises:
            LeftOut: A process has ended, or none answers.
        """
        body, seen = chat_body(1, 16, 1), "nothing"
        for _ in range(int(_START_TIMEOUT_S / 0.1)):
            for process, log in self._processes:
                if process.poll() is not None:
                    said = log.read_text(errors="replace")[-600:]
                    raise LeftOut(f"it ended with code {process.returncode}: {said}")
            try:
                ask(self.port, body)
            except urllib.error.HTTPError as error:
                seen = f"{error}: {error.read(300).decode(errors='replace')}"
            except OSError as error:
                seen = str(error)
            else:
                return Contestant(self.name, self.port, parts)
            time.sleep(0.1)
        raise LeftOut(f"it did not answer within {_START_TIMEOUT_S:.0f} s: {seen}")

    def close(self) -> None:
        """End all processes, the last one first."""
        while self._processes:
            process, _ = self._processes.pop()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _worker(place: _Place, *arguments: str) -> Contestant:
    pid = place.run(
        *(sys.executable, "-m", "mocker_worker.cli", "serve", "--no-nats"),
        *("--host", "127.0.0.1", "--port", place.port, "--model-name", MODEL),
        *("--speedup-ratio", 0, "--max-num-seqs", SEQUENCES, "--drain-grace-s", 0),
        *arguments,
    )
    return place.ready(worker=pid)


def _worker_with_events(place: _Place) -> Contestant:
    """Publish KV events on ZMQ, as Dynamo's mocker does unasked."""
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:0"}
    return _worker(place, "--kv-events-config", json.dumps(events))


def _llm_d(place: _Place) -> Contestant:
    """Run the simulator with its defaults: no delay, no KV cache."""
    pid = place.run(
        installed("llm-d-inference-sim") / "llm-d-inference-sim",
        *("--port", place.port, "--model", MODEL, "--force-dummy-tokenizer"),
        *("--max-num-seqs", SEQUENCES, "--max-model-len", 4096),
    )
    return place.ready(server=pid)


def _dynamo(place: _Place) -> Contestant:
    """Run mocker and frontend with their defaults, but find each other by files, not by etcd.

    So there are neither NATS nor etcd: requests go over TCP, events over ZMQ, in turn.
    """
    python = installed("rival-dynamo-1.6.1") / "bin" / "python"
    model = place.folder / "model"
    write_model(model)
    env = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(place.folder / "discovery"),
        "DYN_LOG": "error",
        "HF_HUB_OFFLINE": "1",
    }
    mocker = place.run(
        *(python, "-m", "dynamo.mocker", "--model-path", model, "--model-name", MODEL),
        *("--speedup-ratio", 0, "--max-num-seqs", SEQUENCES),
        env=env,
    )
    frontend = place.run(
        *(python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1"),
        *("--http-port", place.port),
        env=env,
    )
    return place.ready(mocker=mocker, frontend=frontend)


def installed(name: str) -> Path:
    """Return the folder of a rival, which is put into the cache if it is not there.

    Raises:
        LeftOut: This machine cannot have it.
    """
    command = [sys.executable, str(REPOSITORY / "hack" / "judges.py"), "install", name]
    try:
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LeftOut(f"not installed within {_INSTALL_TIMEOUT_S:.0f} s") from error
    if answer.returncode != 0:
        raise LeftOut(answer.stdout.strip() or "it could not be installed")
    return Path(answer.stdout.strip().splitlines()[-1])


def write_model(folder: Path) -> None:
    """Write what a frontend reads of a Hugging Face model, with a word, a token."""
    folder.mkdir()
    words = ["<unk>", *WORDS]
    words += [f"w{number}" for number in range(len(words), _VOCABULARY)]
    model = {
        "type": "WordLevel",
        "vocab": {word: number for number, word in enumerate(words)},
        "unk_token": "<unk>",
    }
    tokenizer = dict.fromkeys(
        ("truncation", "padding", "normalizer", "post_processor", "decoder"), None
    )
    splitter = {"type": "WhitespaceSplit"}
    tokenizer |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": splitter, "model": model}
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<unk>",
            "chat_template": template,
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": 4096,
            "eos_token_id": 0,
        },
        "generation_config.json": {"eos_token_id": 0},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
