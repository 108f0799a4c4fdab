"""What can go wrong, in words that say what to do about it."""

from collections.abc import Sequence
from pathlib import Path


class TestbedError(Exception):
    """A failure whose message is all that the user needs."""


class Interrupted(TestbedError):
    """The user asked to stop; no further program may start."""


class Unavailable(TestbedError):
    """This machine cannot have what was asked for, however often one tries."""


class MissingProgram(Unavailable):
    """A program that is neither on the machine nor can be made here."""

    def __init__(self, name: str, *, needed_for: str, remedy: str) -> None:
        super().__init__(f"{name} is missing: it is needed for {needed_for}. {remedy}")


class CommandFailed(TestbedError):
    """A program that ended badly, with the end of what it wrote."""

    def __init__(self, argv: Sequence[str], outcome: str, *, log: Path | None, tail: str) -> None:
        shown = " ".join(argv[:12]) + (" ..." if len(argv) > 12 else "")
        where = f" (all of it: {log})" if log else ""
        lines = "\n".join(f"  | {line}" for line in tail.splitlines()) or "  | (it wrote nothing)"
        super().__init__(f"`{shown}` {outcome}; its last lines{where}:\n{lines}")
        self.tail = tail
