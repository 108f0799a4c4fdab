"""How the foreign programs are started."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONSUMERS = Path(__file__).parent / "consumers"
TIMEOUT_S = 100


@dataclass(frozen=True, slots=True)
class Judges:
    """The folder that `hack/judges.py install` prints."""

    folder: Path

    def python(self, judge: str) -> Path:
        """The interpreter that can import the judge."""
        return self.folder / judge / "bin" / "python"

    def promtool(self) -> Path:
        return self.folder / "promtool" / "promtool"

    def converse(self, judge: str, consumer: str, lines: Iterable[bytes]) -> list[Any]:
        """Give a consumer all its JSON lines, and return its answers."""
        command = [self.python(judge), CONSUMERS / f"{consumer}.py"]
        done = subprocess.run(
            command, input=b"\n".join(lines), capture_output=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{consumer} ended with {done.returncode}: {done.stderr!r}"
        return [json.loads(line) for line in done.stdout.splitlines()]

    def command(self, judge: str, consumer: str, *arguments: object) -> Sequence[str]:
        script = CONSUMERS / f"{consumer}.py"
        return [str(self.python(judge)), str(script), *map(str, arguments)]
