"""Reads the KV events of components back from NATS: the `events` command."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy
from nats.js.errors import NotFoundError

from mocker_protocol.event_plane import KV_EVENTS_TOPIC, decode_envelope, decode_router_events
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    RouterEvent,
    decode_router_event,
)
from mocker_protocol.names import Component
from mocker_worker.config import NatsFormat

_POLL_S = 0.5


class Seen(NamedTuple):
    """One event of a component, or a message that is none; `event` is None then."""

    component: str
    event: RouterEvent | None
    document: object
    """What was on the wire, as JSON could say it."""


class EventReader:
    """Reads the events of components, in order within each."""

    def __init__(
        self,
        show: Callable[[Seen], bool],
        *,
        nats_format: NatsFormat = NatsFormat.JETSTREAM,
        from_start: bool,
        follow: bool,
    ) -> None:
        """Say what to read.

        Args:
            show: Takes an event; returns False when it has seen enough.
            nats_format: How the events go to NATS.
            from_start: Begin with the oldest event kept, not with the next one.
            follow: Wait for streams and go on for ever, instead of ending when everything stored
                was read.

        Raises:
            ValueError: for events that were before, on the event plane.
        """
        if nats_format is NatsFormat.EVENT_PLANE and (from_start or not follow):
            raise ValueError(
                "the event plane keeps no events: --from-start and --no-follow are for "
                f"--format {NatsFormat.JETSTREAM}"
            )
        self._show = show
        self._read = (
            self._read_plane if nats_format is NatsFormat.EVENT_PLANE else self._read_stream
        )
        self._from_start = from_start
        self._follow = follow
        self._readers: list[asyncio.Task[None]] = []

    async def run(self, url: str, components: Sequence[Component]) -> None:
        """Read until there is nothing more to see.

        Raises:
            OSError: if NATS cannot be reached, or has no JetStream where that is needed.
        """
        address = url.rpartition("@")[2]
        try:
            client = await nats.connect(
                url, allow_reconnect=self._follow, max_reconnect_attempts=1, connect_timeout=3
            )
        except (nats.errors.Error, TimeoutError) as error:
            raise OSError(f"cannot reach NATS at {address}: {str(error) or 'timeout'}") from error
        try:
            await self._read_all(client, components)
        except* (nats.errors.Error, TimeoutError) as errors:
            failed = errors.exceptions[0]
        else:
            return
        finally:
            await client.close()
        raise OSError(f"cannot read from NATS at {address}: {str(failed) or type(failed).__name__}")

    async def _read_all(self, client: Client, components: Sequence[Component]) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._readers = [
                tasks.create_task(self._read(client, component), name=component.component)
                for component in components
            ]

    async def _read_stream(self, client: Client, component: Component) -> None:
        jetstream, name = client.jetstream(), component.kv_event_stream
        stored = await self._stored_events(jetstream, name)
        if not self._follow and (stored == 0 or not self._from_start):
            return
        policy = DeliverPolicy.ALL if self._from_start else DeliverPolicy.NEW
        subscription = await jetstream.subscribe(
            f"{name}.*", stream=name, ordered_consumer=True, deliver_policy=policy
        )
        async for message in subscription.messages:
            self._see(component, _parse(message.data), _json_document(message.data))
            if not self._follow and message.metadata.num_pending == 0:
                return

    async def _read_plane(self, client: Client, component: Component) -> None:
        subscription = await client.subscribe(component.endpoint_subject(KV_EVENTS_TOPIC))
        async for message in subscription.messages:
            try:
                payload = decode_envelope(message.data).payload
                events = decode_router_events(payload)
                documents: Sequence[object] = msgspec.msgpack.decode(payload)
            except ValueError:
                self._see(component, None, message.data.decode("utf-8", "replace"))
                continue
            for event, document in zip(events, documents, strict=True):
                self._see(component, event, document)

    def _see(self, component: Component, event: RouterEvent | None, document: object) -> None:
        if not self._show(Seen(component.component, event, document)):
            for reader in self._readers:
                reader.cancel()

    async def _stored_events(self, jetstream: JetStreamContext, stream: str) -> int:
        while True:
            try:
                return (await jetstream.stream_info(stream)).state.messages
            except NotFoundError:
                if not self._follow:
                    return 0
            await asyncio.sleep(_POLL_S)


def _parse(payload: bytes) -> RouterEvent | None:
    try:
        return decode_router_event(payload)
    except ValueError:
        return None


def _json_document(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return payload.decode("utf-8", "replace")


def as_text(seen: Seen) -> str:
    """Return a line for people: hashes in hex, blocks as `sequence/local`."""
    if seen.event is None:
        return f"{seen.component} not a KV event: {str(seen.document)[:80]!r}"
    event = seen.event
    head = f"{seen.component} worker={event.worker_id:016x} rank={event.dp_rank}"
    return f"{head} id={event.event_id} {_describe(event)}"


def as_json(seen: Seen) -> str:
    """Return one JSON object: the event as it is on the wire, and its component."""
    document = {"component": seen.component, "router_event": seen.document}
    # MessagePack of others may hold what JSON cannot say.
    return json.dumps(document, default=repr, skipkeys=True)


def _describe(event: RouterEvent) -> str:
    match event.event:
        case BlockStored(parent, blocks):
            names = " ".join(f"{block.sequence:016x}/{block.local:016x}" for block in blocks)
            after = "-" if parent is None else f"{parent:016x}"
            return f"stored blocks={len(blocks)} parent={after} {names}"
        case BlockRemoved(hashes):
            names = " ".join(f"{item:016x}" for item in hashes)
            return f"removed blocks={len(hashes)} {names}"
        case AllBlocksCleared():
            return "cleared"
