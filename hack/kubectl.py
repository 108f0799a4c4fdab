"""kubectl as a Python value: the few calls that the story, the tests and the benchmarks share.

Everything goes through the real kubectl, so what these programs do a user can type.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class KubectlError(Exception):
    """kubectl exited non-zero; `stderr` is what it said."""

    def __init__(self, arguments: tuple[str, ...], stderr: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: {stderr.strip()}")
        self.stderr = stderr


class NotYet(Exception):
    """A condition did not come true in time; the text says what was seen last."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in one namespace, with KUBECONFIG from the environment."""

    namespace: str

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Run kubectl and return what it printed.

        Raises:
            KubectlError: if it exits non-zero.
        """
        done = subprocess.run(
            ["kubectl", "--namespace", self.namespace, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if done.returncode:
            raise KubectlError(arguments, done.stderr)
        return done.stdout

    def get(self, *arguments: str) -> Any:  # noqa: ANN401 - whatever the API server answers
        """Return `kubectl get ... -o json`, parsed."""
        return json.loads(self.run("get", *arguments, "--output=json"))

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind."""
        items: list[dict[str, Any]] = self.get(kind, f"--selector={selector}")["items"]
        return items

    def apply(self, manifest: str) -> str:
        """Apply YAML or JSON text."""
        return self.run("apply", "--filename=-", stdin=manifest)

    @contextmanager
    def forwarded(self, target: str, port: int) -> Iterator[int]:
        """Forward a free loopback port to `target` (such as `service/x`) and yield its number."""
        command = ["kubectl", "--namespace", self.namespace, "port-forward", target, f":{port}"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                match = _FORWARDING.search(said)
                if match is None:
                    raise KubectlError(("port-forward", target), said + process.stdout.read())
                yield int(match.group(1))
            finally:
                process.terminate()
                # What is left in the pipe would block kubectl's exit.
                process.communicate(timeout=10)


def until(what: str, condition: Callable[[], T | None], *, timeout_s: float = 60) -> T:
    """Ask `condition` every 50 ms until it returns a true value, and return that.

    A KubectlError counts as not yet: objects come and go while tests look at them.

    Raises:
        NotYet: after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            last = value = condition()
            if value:
                return value
        except KubectlError as error:
            last = error
        if time.monotonic() > deadline:
            raise NotYet(f"not within {timeout_s:g} s: {what}; last seen: {last}")
        time.sleep(0.05)
