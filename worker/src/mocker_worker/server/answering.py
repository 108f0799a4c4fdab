"""Answers under way: whole ones are collected, streams are written as the tokens come.

A stream's events go from the engine's driver straight to the connection: waking a task per token
would cost more than everything else. aiohttp writes the head of the response and its end.
"""

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import HttpVersion11, web

from mocker_worker.driver import EngineStopped
from mocker_worker.engine import FinishReason
from mocker_worker.server.answers import DONE, AnswerFormat, PlainEvents, Usage
from mocker_worker.server.choice import Choice, ChoiceOwner

Finish = Callable[[Choice], None]
"""Tells the engine that a choice has ended, maybe by a stop string."""


class Answer(ChoiceOwner):
    """The choices of one request, and the wait for them."""

    def __init__(self, choices: Sequence[Choice], finish: Finish) -> None:
        self.choices = choices
        self._finish = finish
        self._num_open = len(choices)
        self._is_stopped = False
        self._waiter: asyncio.Future[None] | None = None
        for choice in choices:
            choice.answer = self

    @property
    def is_finished(self) -> bool:
        """Whether all choices have ended."""
        return not self._num_open

    def engine_stopped(self) -> None:
        """Learn that no more tokens will come."""
        self._is_stopped = True
        self._wake()

    def usage(self) -> Usage:
        """Return the token counts so far; a prompt counts once, however many answers it has."""
        prompts = {id(choice.prompt): choice for choice in reversed(self.choices)}.values()
        return Usage(
            sum(len(choice.prompt.token_ids) for choice in prompts),
            sum(choice.num_tokens for choice in self.choices),
            sum(choice.num_cached_tokens for choice in prompts),
        )

    async def _wait(self) -> None:
        """Wait until something woke the waiter.

        Raises:
            EngineStopped: when no more tokens will come.
        """
        self._waiter = asyncio.get_running_loop().create_future()
        if not self._is_stopped:
            await self._waiter
        if self._is_stopped:
            raise EngineStopped

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, choice: Choice) -> None:
        """Count a choice that has ended, maybe before the engine would have ended it."""
        self._num_open -= 1
        self._finish(choice)


class WholeAnswer(Answer):
    """Collects its choices."""

    def take(
        self, choice: Choice, token_ids: list[int], finish_reason: FinishReason | None
    ) -> None:
        """Collect tokens; wakes the waiter with the last one of all."""
        if choice.text is not None:
            choice.pieces += choice.read(token_ids, finish_reason)
        else:
            choice.token_ids += token_ids
            choice.count(len(token_ids), finish_reason)
        if choice.finish_reason is not None:
            self._end(choice)
            if self.is_finished:
                self._wake()

    async def wait(self) -> None:
        """Wait for all tokens.

        Raises:
            EngineStopped: if they will never come.
        """
        while not self.is_finished:
            await self._wait()


class StreamedAnswer(Answer):
    """Writes server-sent events, one per token."""

    def __init__(
        self,
        choices: Sequence[Choice],
        finish: Finish,
        answer_format: AnswerFormat,
        *,
        continuous_usage: bool,
        breaks: bool = False,
    ) -> None:
        """Begin an answer.

        Args:
            choices: What is answered.
            finish: Is told of each that has ended.
            answer_format: Of the events.
            continuous_usage: Whether each of them carries the usage so far.
            breaks: Whether only one token is ever told, since the stream is to break.
        """
        super().__init__(choices, finish)
        self._format = answer_format
        self._continuous_usage = continuous_usage
        self._breaks = breaks
        self._is_broken = False
        self._early: list[bytes] = []
        """Events from before the head of the response was written."""
        self._late: list[bytes] = []
        """The events that end the stream."""
        self._plain: dict[int, PlainEvents] = {}
        self._write: Callable[[bytes], None] | None = None

    def take(
        self, choice: Choice, token_ids: list[int], finish_reason: FinishReason | None
    ) -> None:
        """Write the events of some tokens, once `begin` has run."""
        if self._write is None:
            self._take_early(choice, token_ids, finish_reason)
            return
        events = self._events(choice, token_ids, finish_reason)
        if self.is_finished:
            self._late.append(events)
            self._wake()
        elif events:  # an empty chunk would end the response
            self._write(events)

    def _take_early(
        self, choice: Choice, token_ids: list[int], finish_reason: FinishReason | None
    ) -> None:
        if self._is_broken:
            return
        if self._breaks:
            self._is_broken, token_ids, finish_reason = True, token_ids[:1], None
        self._early.append(self._events(choice, token_ids, finish_reason))
        self._wake()

    async def first_tokens(self) -> None:
        """Wait for the first token of any choice.

        Raises:
            EngineStopped: if none will come.
        """
        while not self._early:
            await self._wait()

    async def begin(self, http: web.Request, response: web.StreamResponse) -> None:
        """Write the head and what there is; from then on tokens are written as they come."""
        await response.prepare(http)
        early, self._early = self._early, []
        events = b"".join(early)
        if self.is_finished:
            self._late.append(events)
            return
        await response.write(events)
        self._write = _writer(http)
        events = b"".join(self._early)  # came while the head was written
        if self.is_finished:
            self._late.append(events)
        elif events:
            self._write(events)

    async def end(self, *, include_usage: bool) -> bytes:
        """Wait for the last token; return all that is not written yet.

        Raises:
            EngineStopped: if it will never come.
        """
        while not self.is_finished:
            await self._wait()
        if include_usage:
            self._late.append(self._format.usage(self.usage()))
        return b"".join([*self._late, DONE])

    def _events(
        self, choice: Choice, token_ids: list[int], finish_reason: FinishReason | None
    ) -> bytes:
        opening = b""
        if choice.num_tokens == 0:
            opening = self._format.opening(choice, self._usage_of(choice))
            if choice.text is None:
                self._plain[choice.index] = self._format.plain(choice)
        if choice.text is not None:
            events = b"".join(
                [
                    self._format.piece(choice, piece, self._usage_of(choice))
                    for piece in choice.read(token_ids, finish_reason)
                ]
            )
        else:
            choice.count(len(token_ids), finish_reason)
            events = self._plain[choice.index].of(token_ids, finish_reason)
        if choice.finish_reason is not None:
            self._end(choice)
        return opening + events

    def _usage_of(self, choice: Choice) -> Usage | None:
        if not self._continuous_usage:
            return None
        prompt_tokens = len(choice.prompt.token_ids)
        return Usage(prompt_tokens, choice.num_tokens, choice.num_cached_tokens)


def _writer(http: web.Request) -> Callable[[bytes], None]:
    """Return what writes to the connection, in chunks of HTTP/1.1 where it has them.

    What comes after the client has left is dropped: its handler is about to be cancelled.
    """
    transport = http.transport
    if transport is None:
        raise ConnectionResetError("the client has left")
    is_closing, write = transport.is_closing, transport.write
    form = b"%x\r\n%b\r\n" if http.version >= HttpVersion11 else None

    def write_if_open(data: bytes) -> None:
        if not is_closing():
            write(data if form is None else form % (len(data), data))

    return write_if_open
