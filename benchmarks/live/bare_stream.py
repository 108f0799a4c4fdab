"""The yardstick of `streaming.py`: aiohttp on uvloop that writes prepared events, and no engine.

    bare_stream.py EVENT_BYTES HEAD_BYTES [--turns]

Answers each POST with as many events as `max_tokens` says, and an opening one, each EVENT_BYTES
long, one `write` per event; HEAD_BYTES pad the response's head to the size of the real one. With
`--turns` the loop turns once after each write, as it must where tokens come one by one. Prints
its port.
"""

import asyncio
import json
import sys

import uvloop
from aiohttp import web


async def main(event_bytes: int, head_bytes: int, turns: bool) -> None:
    event = b"data: " + b"x" * (event_bytes - 8) + b"\n\n"
    padding = "x" * head_bytes

    async def answer(http: web.Request) -> web.StreamResponse:
        body = json.loads(await http.read())
        response = web.StreamResponse(headers={"X-Padding": padding})
        response.content_type = "text/event-stream"
        response.headers["Cache-Control"] = "no-cache"
        await response.prepare(http)
        for _ in range(body["max_tokens"] + 1):
            await response.write(event)
            if turns:
                await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"listening on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(main(int(sys.argv[1]), int(sys.argv[2]), "--turns" in sys.argv))
