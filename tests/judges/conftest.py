"""Foreign programs from `hack/judges.py`, and the servers that they want to see.

Every judge runs as a process of its own on the Python of its own environment; the scripts in
`consumers` are what is run there. Nothing here downloads anything.
"""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from judge_programs import Judges
from programs import Programs

JUDGES = ("aiperf", "dynamo-0.7.0", "dynamo-1.6.1", "promtool", "schemathesis")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.judges)


@pytest.fixture(scope="session")
def judges() -> Judges:
    folder = Path(os.environ.get("MOCKER_JUDGES", "/nonexistent"))
    if missing := [name for name in JUDGES if not (folder / name).is_dir()]:
        _not_here(f"{', '.join(missing)}: not installed: run `make test`, or set MOCKER_JUDGES")
    return Judges(folder)


@pytest.fixture
async def programs(judges: Judges, tmp_path: Path) -> AsyncIterator[Programs]:
    """Starts what a test needs, and ends it afterwards."""
    running = Programs(tmp_path, judges)
    yield running
    await running.stop()


def _not_here(reason: str) -> None:
    if os.environ.get("CI") == "true" or os.environ.get("MOCKER_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
