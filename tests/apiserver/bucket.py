"""A planner's hand on the bucket."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from nats.js import JetStreamContext
from nats.js.errors import BucketNotFoundError, KeyNotFoundError
from nats.js.kv import KeyValue
from waiting import until
from world import World

from mocker_protocol.decisions import BUCKET


class Bucket:
    def __init__(self, context: JetStreamContext, values: KeyValue, world: World) -> None:
        self._context = context
        self._values, self._key = values, f"{world.namespace}.demo"

    async def decide(self, decision_id: int, **counts: int) -> None:
        await self.put(json.dumps({"decision_id": decision_id, **counts}).encode())

    async def put(self, payload: bytes) -> None:
        await self._values.put(self._key, payload)

    async def delete(self) -> None:
        await self._values.delete(self._key)

    async def destroy(self) -> None:
        """Delete the whole bucket."""
        await self._context.delete_key_value(BUCKET)

    async def acknowledged(self) -> int | None:
        try:
            entry = await self._values.get(f"{self._key}.scaled")
        except KeyNotFoundError:
            return None
        scaled: int = json.loads(entry.value or b"")["scaled_decision_id"]
        return scaled

    async def acknowledgements(self) -> int:
        """Revision of the acknowledgement: it grows with each."""
        return (await self._values.get(f"{self._key}.scaled")).revision or 0

    async def is_acknowledged(self, decision_id: int) -> None:
        async def written() -> bool:
            return await self.acknowledged() == decision_id

        await until(written)


@asynccontextmanager
async def open_bucket(url: str, world: World) -> AsyncIterator[Bucket]:
    """Open the bucket that the operator has made."""
    client = await nats.connect(url)
    try:
        context = client.jetstream()

        async def exists() -> KeyValue | None:
            try:
                return await context.key_value(BUCKET)
            except BucketNotFoundError:
                return None

        values = await until(exists)
        assert values is not None
        yield Bucket(context, values, world)
    finally:
        await client.close()
