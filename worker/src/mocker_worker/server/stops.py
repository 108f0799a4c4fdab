"""Finds stop strings in text that comes in pieces (vLLM's rule: nothing after one is sent)."""

from collections.abc import Sequence


class StopMatcher:
    """Holds back what may be the beginning of a stop string, unless that is part of the answer.

    Of several stop strings the one that ends first wins, then the one that is named first.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        """Say what to look for.

        Args:
            stops: Strings, none empty.
            include: Whether the text that is passed on ends with the stop string.
        """
        self._stops = stops
        self._include = include
        self._tail = ""
        """The latest text, in which a stop string may have begun."""
        self._longest_tail = max(map(len, stops)) - 1
        self.matched: str | None = None
        """The stop string that was found."""

    def push(self, piece: str, *, may_stop: bool = True) -> str:
        """Take the next piece of text; return what can be passed on.

        Args:
            piece: Text; ignored once a stop string was found.
            may_stop: Whether a stop string that ends in this piece counts.
        """
        if self.matched is not None:
            return ""
        text = self._tail + piece
        passed_on = len(self._tail) if self._include else 0
        if may_stop and (found := self._find(text)) is not None:
            end, self.matched = found
            self._tail = ""
            return text[passed_on : end if self._include else end - len(self.matched)]
        tail_from = max(len(text) - self._longest_tail, 0)
        self._tail = text[tail_from:]
        return text[passed_on:] if self._include else text[:tail_from]

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._tail = "" if self._include else self._tail, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        """Return the end of the first stop string that ends behind the tail, and the string."""
        found = []
        for stop in self._stops:
            start = text.find(stop, max(len(self._tail) - len(stop) + 1, 0))
            if start >= 0:
                found.append((start + len(stop), stop))
        return min(found, default=None, key=lambda match: match[0])
