"""A stream of server-sent events on its way from a worker to a client: pure bytes in, bytes out.

Events are counted, not parsed; the bytes pass as they are, cut at event boundaries. Only the
closing usage chunk (the one with no choices) is read, and withheld if the client did not ask.
"""

from dataclasses import dataclass

import msgspec

_END = b"\n\n"
_DONE = b"data: [DONE]"
_THEN_DONE = _END + _DONE  # an answer may say the mark, but no JSON string holds a line break
_ERROR = b'data: {"error"'
_NO_CHOICES = (b'"choices":[]', b'"choices": []')


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Details(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _WithUsage(msgspec.Struct):
    usage: _Details | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Sequence lengths in tokens, as the worker counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that the worker had in its cache; None if it does not say."""


def read_usage(payload: bytes) -> Usage | None:
    """Return the `usage` of a JSON answer or chunk; None if it has none."""
    try:
        usage = msgspec.json.decode(payload, type=_WithUsage).usage
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    cached_tokens = None if details is None else details.cached_tokens
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached_tokens)


class EventStream:
    """Passes events through, counts those that carry tokens and keeps the usage."""

    def __init__(self, *, hide_usage: bool, opening_events: int = 0) -> None:
        """Expect a stream; each choice of a chat opens with an event that has no token."""
        self._hide_usage = hide_usage
        self._opening_events = opening_events
        self._partial = b""
        self.token_events = 0
        """Events so far that are neither opening, usage, error nor end mark: one per token."""
        self.usage: Usage | None = None
        self.done = False
        """Whether the end mark has passed: without it the worker broke off."""
        self.failed = False
        """Whether the worker has said that something went wrong."""

    def feed(self, data: bytes) -> bytes:
        """Take what the worker sent; return the whole events to pass on."""
        if self._partial:
            data = self._partial + data
        end = data.rfind(_END) + len(_END)
        if end < len(_END):
            self._partial = data
            return b""
        self._partial, events = data[end:], data[:end] if end < len(data) else data
        count = events.count(_END)
        opening = min(count, self._opening_events)
        self._opening_events -= opening
        self.token_events += count - opening
        return self._close(events)

    def _close(self, events: bytes) -> bytes:
        """Look after the events that end a stream; all others pass unseen."""
        if _THEN_DONE in events or events.startswith(_DONE):
            self.done = True
            self.token_events -= 1
        if _ERROR in events:
            self.failed = True
            self.token_events -= 1
        for mark in _NO_CHOICES:
            at = events.find(mark)
            if at >= 0:
                return self._take_usage(events, at)
        return events

    def _take_usage(self, events: bytes, at: int) -> bytes:
        previous = events.rfind(_END, 0, at)
        start = 0 if previous < 0 else previous + len(_END)
        end = events.index(_END, at) + len(_END)
        usage = read_usage(events[start:end].partition(b"data:")[2])
        if usage is None:
            return events
        self.usage = usage
        self.token_events -= 1
        return events[:start] + events[end:] if self._hide_usage else events

    def finish(self) -> bytes:
        """Return what is left when the worker has ended: an end mark without its empty line.

        Half an event is none, and would spoil the one that says so.
        """
        rest, self._partial = self._partial, b""
        if not rest.startswith(_DONE):
            return b""
        self.done = True
        return _DONE + _END

    @property
    def ended(self) -> bool:
        """Whether the worker has said how the stream ends."""
        return self.done or self.failed
