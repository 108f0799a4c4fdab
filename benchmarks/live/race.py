"""Measures several servers in turn under one load, each on its own CPU account.

Everything is checked before it counts: each server is asked for as many prompt tokens and answer
tokens as the others, every answer under load must say so too, and none may fail. What does not
hold makes no row but a refusal.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import uvloop
from rivals import OURS, Contestant, LeftOut, ask, chat_body
from stream_client import Load, Tally

PROMPT_TOKENS, ANSWER_TOKENS, CONNECTIONS = 128, 64, 256
_LOAD_TIMEOUT_S = 300.0
CONNECTION_KINDS = {"fresh connections": True, "connections kept alive": False}
"""Whether each request has a connection of its own."""


@dataclass
class Row:
    """One server on connections of one kind, a sample a round."""

    server: str
    connections: str
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Per 1,000 output tokens, by part of the server."""
    tokens_per_s: list[float] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    """None else than zeros: a round with failed answers makes the row a refused one."""
    refusal: str = ""

    @property
    def name(self) -> str:
        """Kind of connections, and server."""
        return f"{self.connections}: {self.server}"

    def totals_s(self) -> list[float]:
        """Return CPU seconds of all parts together, by round."""
        return [sum(parts) for parts in zip(*self.cpu_s.values(), strict=True)]


def fit_prompt(server: Contestant) -> int:
    """Return how many words are `PROMPT_TOKENS` of this server, whose answers are checked.

    Raises:
        LeftOut: It answers with another number of tokens than all others.
    """
    markup = ask(server.port, chat_body(0, 100, ANSWER_TOKENS)).prompt_tokens - 100
    words = PROMPT_TOKENS - markup
    usage = ask(server.port, chat_body(0, words, ANSWER_TOKENS))
    if usage.prompt_tokens != PROMPT_TOKENS:
        raise LeftOut(f"{words} words are {usage.prompt_tokens} tokens, not {PROMPT_TOKENS}")
    if usage.completion_tokens != ANSWER_TOKENS or usage.text_events != ANSWER_TOKENS:
        raise LeftOut(
            f"an answer of {ANSWER_TOKENS} tokens has {usage.completion_tokens} by its usage "
            f"and {usage.text_events} events with text"
        )
    return words


def run_rounds(
    servers: Sequence[Contestant], rounds: int, requests: int, told: Callable[[str], None]
) -> list[Row]:
    """Measure all servers in turn, each round begun by another one."""
    rows = {(s.name, kind): Row(s.name, kind) for kind in CONNECTION_KINDS for s in servers}
    words: dict[str, int] = {}
    for server in servers:
        try:
            words[server.name] = fit_prompt(server)
        except (LeftOut, OSError) as reason:
            for kind in CONNECTION_KINDS:
                rows[server.name, kind].refusal = str(reason)
            told(f"{server.name}: refused: {reason}")
    sent = 0
    for number in range(-1, rounds):  # the first round warms up
        count = requests if number >= 0 else max(requests // 4, 1)
        for kind in CONNECTION_KINDS:
            for place in range(len(servers)):
                server = servers[(number + place) % len(servers)]
                row = rows[server.name, kind]
                if row.refusal:
                    continue
                prompts = range(sent + 1, sent + 1 + count)  # so that none is sent twice
                _sample(server, row, prompts, words[server.name], counts=number >= 0)
                sent += count
                told(_told(row, number))
    return list(rows.values())


def _sample(server: Contestant, row: Row, prompts: range, words: int, *, counts: bool) -> None:
    load = Load(
        server.port,
        lambda number: chat_body(prompts.start + number, words, ANSWER_TOKENS),
        connections=CONNECTIONS,
        requests=len(prompts),
        is_fresh=CONNECTION_KINDS[row.connections],
    )
    load.expects = b'"completion_tokens":%d' % ANSWER_TOKENS
    try:
        before_s = server.cpu_s()
        tally = drive(load)
        after_s = server.cpu_s()
    except TimeoutError:
        row.refusal = f"no end within {_LOAD_TIMEOUT_S:.0f} s"
        return
    except FileNotFoundError:
        row.refusal = "one of its processes has ended"
        return
    row.refusal = fault(tally, len(prompts))
    if not row.refusal and counts:
        tokens = len(prompts) * ANSWER_TOKENS
        for part, end_s in after_s.items():
            row.cpu_s[part].append((end_s - before_s[part]) / tokens * 1000)
        row.tokens_per_s.append(tokens / tally.wall_s)
        row.failures.append(tally.failures.total())


def fault(tally: Tally, requests: int) -> str:
    """Return why a load does not count; empty if every answer had all its tokens."""
    if tally.failures:
        kinds = ", ".join(f"{count} times {kind}" for kind, count in tally.failures.most_common())
        return f"{tally.failures.total()} of {requests} answers failed: {kinds}"
    if tally.answers != requests:
        return f"{tally.answers} answers to {requests} requests"
    if tally.events < requests * ANSWER_TOKENS:
        return f"{tally.events} events for {requests * ANSWER_TOKENS} tokens"
    return ""


def drive(load: Load) -> Tally:
    """Run a load in a loop of its own, which ends however the server behaves."""

    async def run() -> Tally:
        async with asyncio.timeout(_LOAD_TIMEOUT_S):
            return await load.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _told(row: Row, number: int) -> str:
    if row.refusal:
        return f"{row.name}: refused: {row.refusal}"
    if number < 0:
        return f"warm-up: {row.name}"
    parts = " + ".join(f"{part} {values[-1]:.5f}" for part, values in row.cpu_s.items())
    return f"round {number + 1}: {row.name}: {parts} s, {row.tokens_per_s[-1]:.0f} tokens/s"


def results(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[float]]]:
    """Yield name, unit and samples of all that was measured, and ours divided by the others'.

    A row that was refused has none.
    """
    fit = [row for row in rows if not row.refusal]
    for row in fit:
        if len(row.cpu_s) > 1:
            for part, samples in row.cpu_s.items():
                yield f"{row.name}, {part}: CPU per 1,000 tokens", "s", samples
        yield f"{row.name}: CPU per 1,000 tokens", "s", row.totals_s()
        yield f"{row.name}: tokens", "1/s", row.tokens_per_s
        yield f"{row.name}: failed answers", "", row.failures
    for ours in (row for row in fit if row.server == OURS):
        for other in fit:
            if other.connections == ours.connections and other is not ours:
                pairs = zip(ours.totals_s(), other.totals_s(), strict=True)
                yield f"{ours.name}: CPU against {other.server}", "", [a / b for a, b in pairs]
