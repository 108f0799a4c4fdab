"""How a consumer that goes on running is asked: a JSON line in, a JSON line out."""

import asyncio
import json
import os
import sys


def converse(answer_with):
    """Run `answer_with()`, a coroutine that gives the function that answers, until stdin ends."""
    asyncio.run(_converse(answer_with))


async def _converse(answer_with):
    answer = await answer_with()
    _say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        _say(await answer(**json.loads(line)))
    os._exit(0)  # some versions crash in the destructors of their threads


def _say(value):
    print(json.dumps(value), flush=True)


def scores(by_rank):
    """{(worker, rank): blocks} as JSON can have it."""
    return {f"{worker}/{rank}": blocks for (worker, rank), blocks in by_rank.items() if blocks}
