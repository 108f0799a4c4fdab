"""Programs that are run, and stopped when the user stops us.

Every child has a session of its own, so Ctrl-C reaches it only through `stop_children`, which
leaves it time to clean up after itself. Safe to use from several threads.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from testbed.errors import CommandFailed, Interrupted

_TAIL_LINES = 25
_GRACE_S = 15.0

_children: set[subprocess.Popen[bytes]] = set()
_guard = threading.Lock()
_stopping = threading.Event()


def run(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
) -> None:
    """Run a program with all that it writes appended to `log`.

    Raises:
        CommandFailed: It ended with another status than 0, or not within `timeout_s`.
    """
    with log.open("ab") as out:
        start = out.tell()
        out.write(f"$ {' '.join(argv)}\n".encode())
        out.flush()
        with _child(argv, stdout=out, stderr=out, env=env, cwd=cwd) as child:
            outcome = _outcome(child, timeout_s)
    if outcome:
        raise CommandFailed(argv, outcome, log=log, tail=_tail(log, start))


def output(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 60.0,
) -> str:
    """Run a program and return its standard output; its standard error is kept for a failure."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _child(argv, stdout=out, stderr=err, env=env, cwd=cwd) as child:
            outcome = _outcome(child, timeout_s)
        out.seek(0)
        err.seek(0)
        text = out.read().decode(errors="replace")
        if outcome:
            raise CommandFailed(
                argv, outcome, log=None, tail=_last(err.read().decode(errors="replace") or text)
            )
    return text


def succeeds(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> bool:
    """Whether a program exists and ends with status 0 in time."""
    try:
        output(argv, env=env, timeout_s=timeout_s)
    except (CommandFailed, FileNotFoundError):
        return False
    return True


def pipe(
    source: Sequence[str], sink: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
) -> None:
    """Run `source | sink`; both must end with status 0."""
    with log.open("ab") as out:
        start = out.tell()
        out.write(f"$ {' '.join(source)} | {' '.join(sink)}\n".encode())
        out.flush()
        with _child(source, stdout=subprocess.PIPE, stderr=out, env=env) as left:
            with _child(sink, stdin=left.stdout, stdout=out, stderr=out, env=env) as right:
                assert left.stdout is not None
                left.stdout.close()  # so that the source notices a sink that died
                sink_outcome = _outcome(right, None)
            source_outcome = _outcome(left, None)
    for argv, outcome in ((sink, sink_outcome), (source, source_outcome)):
        if outcome:
            raise CommandFailed(argv, outcome, log=log, tail=_tail(log, start))


@contextmanager
def background(
    argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Keep a program running for the length of the block, then end it."""
    with log.open("ab") as out, _child(argv, stdout=out, stderr=out, env=env) as child:
        yield child


def stop_children() -> None:
    """Refuse every further start and end what runs, politely first."""
    _stopping.set()
    with _guard:
        running = list(_children)
    for child in running:
        _signal_group(child, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(child.poll() is None for child in running):
        time.sleep(0.1)
    for child in running:
        if child.poll() is None:
            _signal_group(child, signal.SIGKILL)


def allow_cleanup() -> None:
    """Let programs start again after `stop_children`, for what must be undone."""
    _stopping.clear()


@contextmanager
def _child(
    argv: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    if _stopping.is_set():
        raise Interrupted("stopped")
    child = subprocess.Popen(
        argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, start_new_session=True
    )
    with _guard:
        _children.add(child)
    try:
        yield child
    finally:
        _end(child)
        with _guard:
            _children.discard(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        _signal_group(child, signal.SIGTERM)
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            _signal_group(child, signal.SIGKILL)
            child.wait()


def _outcome(child: subprocess.Popen[bytes], timeout_s: float | None) -> str:
    try:
        status = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return f"did not end within {timeout_s:g} s"
    if _stopping.is_set():
        raise Interrupted("stopped")
    return f"ended with status {status}" if status else ""


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _tail(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return _last(file.read().decode(errors="replace"))


def _last(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])
