"""Finds stop strings in text that comes in pieces (vLLM's rule: nothing after one is sent)."""

from collections.abc import Sequence


class StopMatcher:
    """Holds back what may be the beginning of a stop string.

    Of several stop strings that end with the same piece, the one that begins first wins.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        """Say what to look for.

        Args:
            stops: Strings, none empty.
            include: Whether the text that is passed on ends with the stop string.
        """
        self._stops = stops
        self._include = include
        self._held = ""
        self._longest = max(map(len, stops))
        self.matched: str | None = None
        """The stop string that was found."""

    def push(self, piece: str, *, may_stop: bool = True) -> str:
        """Take the next piece of text; return what can be passed on.

        Args:
            piece: Text; ignored once a stop string was found.
            may_stop: False while an answer is shorter than it must be.
        """
        if self.matched is not None:
            return ""
        text = self._held + piece
        if may_stop and (found := self._find(text)) is not None:
            start, self.matched = found
            self._held = ""
            return text[: start + len(self.matched) if self._include else start]
        keep = self._longest - 1
        if not may_stop or keep == 0:
            self._held = ""
            return text
        self._held = text[-keep:]
        return text[: -len(self._held)]

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        found = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found, default=None)
