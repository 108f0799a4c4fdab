"""The worker's link to the world beside HTTP, whether there is one or not."""

import asyncio
from typing import Protocol

from mocker_worker.events.sink import EventSink, NullSink


class Link(Protocol):
    """What a worker needs of NATS, or of nothing in its place."""

    @property
    def sink(self) -> EventSink:
        """Where the drivers put events."""
        ...

    @property
    def dropped_kv_events(self) -> int:
        """KV events that found no place in the queue."""
        ...

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start what runs in the background."""
        ...

    async def register(self, url: str) -> None:
        """Return when the worker is registered as ready; it stays so until `drain`."""
        ...

    def drain(self) -> None:
        """Register as draining."""
        ...

    async def close(self) -> None:
        """Delete the registration, publish what is queued, disconnect."""
        ...


class NoLink:
    """A worker on its own."""

    sink: EventSink = NullSink()
    dropped_kv_events = 0

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Nothing runs."""

    async def register(self, url: str) -> None:
        """Nobody is told."""

    def drain(self) -> None:
        """Nobody is told."""

    async def close(self) -> None:
        """Nothing is open."""
