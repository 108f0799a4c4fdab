"""The cache folder: finished artefacts, locks, logs, and a place for half-made things.

An artefact's path carries the versions and a hash of the recipe it was made by, so what is there
is never stale. It appears by a rename only, so what is there is never half-made.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.console import Console
from testbed.process import allow_cleanup, stop_children

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_FILES = REPOSITORY / "hack" / "node"
_STALE_SCRATCH_S = 24 * 3600.0
# Two cores build one thing well; the second lane fills the waits for downloads and for linkers.
_LANES = 2


def cache_folder(environ: dict[str, str]) -> Path:
    """$MOCKER_CACHE, else `mocker-testbed` below the user's cache folder."""
    if own := environ.get("MOCKER_CACHE"):
        return Path(own).absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "mocker-testbed"


def recipe_hash(*parts: object) -> str:
    """Twelve hex digits over JSON values and, for each Path, the files at or below it.

    Names and the executable bit count, as they reach the image; times and owners do not.
    """
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, Path):
            digest.update(json.dumps(part, sort_keys=True).encode() + b"\0")
            continue
        files = sorted(part.rglob("*")) if part.is_dir() else [part]
        for file in (f for f in files if f.is_file() and "__pycache__" not in f.parts):
            name = file.relative_to(part) if part.is_dir() else file.name
            runs = bool(file.stat().st_mode & 0o100)
            digest.update(f"{name}\0{runs}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where things are made: the cache folder and the console that tells about it."""

    cache: Path
    console: Console

    @classmethod
    def at(cls, cache: Path, console: Console) -> "Workshop":
        """Open the cache, making its folders, and sweep out what killed runs left half-made."""
        for folder in ("artefacts", "locks", "logs", "scratch"):
            (cache / folder).mkdir(parents=True, exist_ok=True)
        for left in (cache / "scratch").iterdir():
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _STALE_SCRATCH_S:
                    shutil.rmtree(left, ignore_errors=True)
        return cls(cache, console)

    def artefact(self, *names: str) -> Path:
        """The path of a finished artefact."""
        return self.cache.joinpath("artefacts", *names)

    def log(self, name: str) -> Path:
        """A log file that begins empty."""
        path = self.cache / "logs" / f"{name.replace(' ', '-')}.log"
        path.write_bytes(b"")
        return path

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder on the cache's file system that is gone afterwards."""
        folder = Path(tempfile.mkdtemp(dir=self.cache / "scratch"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock across processes and threads; says so when it has to wait."""
        with (self.cache / "locks" / f"{name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with self.console.step(f"wait for another run that holds {name}"):
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def ensure(self, target: Path, title: str, make: Callable[[Path, Path], None]) -> Path:
        """Return `target`, made by `make(unfinished path, log file)` if it is not there yet."""
        if target.exists():
            return target
        with self.lock(target.name):
            if target.exists():
                return target
            with self.console.step(title), self.scratch() as scratch:
                make(scratch / target.name, self.log(title))
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(scratch / target.name, target)
        return target


def in_lanes(tasks: Iterable[Callable[[], object]]) -> None:
    """Run tasks two at a time in the order given; the first failure ends them all and is raised."""
    pool = ThreadPoolExecutor(_LANES, thread_name_prefix="lane")
    try:
        done, _ = wait([pool.submit(task) for task in tasks], return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        stop_children()
        raise
    finally:
        pool.shutdown()
        allow_cleanup()
