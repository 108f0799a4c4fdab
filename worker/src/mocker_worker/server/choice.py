"""One of the answers to a request: from the engine's tokens to the text that a client sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mocker_worker.driver import TokenStream
from mocker_worker.engine import FinishReason
from mocker_worker.server.logprobs import TokenLogprob, of_drawn, of_random, of_scripted
from mocker_worker.server.requests import GenerationRequest, Prompt
from mocker_worker.server.scripts import Script
from mocker_worker.server.stops import StopMatcher
from mocker_worker.tokenizer import Tokenizer


class Piece(NamedTuple):
    """What one token adds to an answer."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob | None]
    """Empty unless they were asked for."""
    offset: int
    """Characters of the tokens before it."""
    finish_reason: str | None = None
    """Set on the last piece only."""
    stop_reason: str | int | None = None
    """The stop string or token that ended the answer."""
    prompt_token_ids: Sequence[int] = ()
    """Of the prompt that it echoes; they come before its own."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How the tokens of a request become text."""

    tokenizer: Tokenizer
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    include_stop: bool
    min_tokens: int
    num_logprobs: int | None
    hides_prompt: bool = False
    """Whether an echoed prompt is not shown as text, as its tokens are (as in vLLM)."""

    @classmethod
    def of(cls, request: GenerationRequest, tokenizer: Tokenizer) -> "TextOptions":
        """Take them from a request."""
        return cls(
            tokenizer,
            request.stops,
            frozenset(request.stop_token_ids or ()),
            bool(request.include_stop_str_in_output),
            request.min_tokens or 0,
            request.num_logprobs,
            bool(request.return_token_ids),
        )

    @property
    def is_plain(self) -> bool:
        """Whether every random token is just its own text."""
        return not self.stops and not self.stop_token_ids and self.num_logprobs is None


class ChoiceText:
    """Decodes tokens one by one, and ends at a stop string."""

    def __init__(
        self,
        options: TextOptions,
        script: Script,
        echo: Prompt | None = None,
        *,
        is_silent: bool = False,
    ) -> None:
        """Begin an answer.

        Args:
            options: Of the request.
            script: What the engine was told to say.
            echo: The prompt, if the answer begins with it.
            is_silent: Whether the answer is the prompt alone (`max_tokens` 0).
        """
        self.is_silent = is_silent
        self._options = options
        self._is_scripted = bool(script.token_ids)
        self._candidates = script.candidates
        self._tool = script.tool
        self._decoder = options.tokenizer.stream_decoder() if self._is_scripted else None
        self._matcher = (
            StopMatcher(options.stops, include=options.include_stop) if options.stops else None
        )
        self._echo = echo
        self._num_tokens = 0
        self._num_characters = 0

    @property
    def has_stops(self) -> bool:
        """Whether a stop string may end it."""
        return self._matcher is not None

    def push(self, token_id: int, finish_reason: FinishReason | None = None) -> Piece:
        """Take the next token; a piece with a finish reason is the last."""
        self._num_tokens += 1
        reason = None if finish_reason is None else str(finish_reason)
        stop_reason: str | int | None = None
        if finish_reason is FinishReason.STOP and token_id in self._options.stop_token_ids:
            stop_reason = token_id
        text = self._text_of(token_id, is_stop=stop_reason is not None)
        if reason is not None and self._decoder is not None:
            text += self._decoder.flush()
        length = len(text)
        if (matcher := self._matcher) is not None:
            text = matcher.push(text, may_stop=self._num_tokens > self._options.min_tokens)
            if matcher.matched is not None:
                reason, stop_reason = "stop", matcher.matched
            elif reason is not None:
                text += matcher.flush()
        if self._tool is not None and reason == "stop" and stop_reason is None:
            reason = self._tool.finish_reason
        if self.is_silent:
            return self._prompt_piece()._replace(finish_reason=reason)
        piece = Piece(text, (token_id,), self._logprobs(token_id), 0, reason, stop_reason)
        return self._placed(piece, length)

    def _placed(self, piece: Piece, length: int) -> Piece:
        """Put a piece behind the text so far, the first one behind the prompt if that is echoed.

        Args:
            piece: Of the next token.
            length: Characters of its token, of which some may be held back for a stop string.
        """
        offset = self._num_characters
        if self._echo is not None:
            prompt = self._prompt_piece()
            piece = piece._replace(
                text=prompt.text + piece.text,
                prompt_token_ids=prompt.prompt_token_ids,
                logprobs=[*prompt.logprobs, *piece.logprobs],
            )
        self._num_characters += length
        return piece._replace(offset=offset)

    def _logprobs(self, token_id: int) -> list[TokenLogprob]:
        if (num_top := self._options.num_logprobs) is None:
            return []
        if self._candidates:
            return [of_drawn(token_id, num_top, self._candidates)]
        return [(of_scripted if self._is_scripted else of_random)(token_id, num_top)]

    def _prompt_piece(self) -> Piece:
        assert self._echo is not None, "only asked for when there is a prompt to echo"
        echo, self._echo = self._echo, None
        text = self._options.tokenizer.decode(echo.token_ids) if echo.text is None else echo.text
        self._num_characters = len(text)
        if self._options.hides_prompt:
            text = ""
        logprobs: list[TokenLogprob | None] = []
        if (num_top := self._options.num_logprobs) is not None and echo.token_ids:
            logprobs = [None, *(of_random(item, num_top) for item in echo.token_ids[1:])]
        return Piece(text, (), logprobs, 0, prompt_token_ids=echo.token_ids)

    def _text_of(self, token_id: int, *, is_stop: bool) -> str:
        if is_stop and not self._options.include_stop:
            return ""
        if self._decoder is not None:
            return self._decoder.push(token_id)
        return self._options.tokenizer.generated_texts[token_id]


class Choice:
    """One answer; the engine's consumer, and what is known of it so far."""

    __slots__ = (
        "answer",
        "finish_reason",
        "index",
        "num_tokens",
        "pieces",
        "prompt",
        "script",
        "stream",
        "text",
        "token_ids",
    )

    def __init__(self, index: int, prompt: Prompt, script: Script, text: ChoiceText | None) -> None:
        self.index = index
        self.prompt = prompt
        self.script = script
        self.text = text
        """None if all there is to say of a token is its own text."""
        self.answer: ChoiceOwner | None = None
        self.stream: TokenStream | None = None
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.token_ids: list[int] = []
        """Of an answer that is sent as a whole."""
        self.pieces: list[Piece] = []
        """Of an answer that is sent as a whole and is not plain."""

    @property
    def may_stop(self) -> bool:
        """Whether its text may end it before the engine would."""
        return self.text is not None and self.text.has_stops

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were in the prefix cache."""
        return 0 if self.stream is None else self.stream.request.num_cached_tokens

    def take(self, token_ids: list[int], finish_reason: FinishReason | None) -> None:
        """Take tokens from the engine."""
        if self.finish_reason is None and self.answer is not None:
            self.answer.take(self, token_ids, finish_reason)

    def engine_stopped(self) -> None:
        """Learn that the engine gave the request up."""
        if self.answer is not None:
            self.answer.engine_stopped()

    def read(self, token_ids: Sequence[int], finish_reason: FinishReason | None) -> Iterator[Piece]:
        """Count tokens, each as its piece is given, up to the end of the answer.

        Only for a choice with `text`; a plain one has no pieces.
        """
        assert self.text is not None, "a plain choice has no pieces"
        last = len(token_ids) - 1
        for position, token_id in enumerate(token_ids):
            piece = self.text.push(token_id, finish_reason if position == last else None)
            self.num_tokens += not self.text.is_silent
            self.finish_reason = piece.finish_reason
            yield piece
            if piece.finish_reason is not None:
                return

    def count(self, num_tokens: int, finish_reason: FinishReason | None) -> None:
        """Count tokens of a plain choice."""
        self.num_tokens += num_tokens
        if finish_reason is not None:
            self.finish_reason = str(finish_reason)


class ChoiceOwner:
    """The answer that choices belong to."""

    def take(
        self, choice: Choice, token_ids: list[int], finish_reason: FinishReason | None
    ) -> None:
        """Take the next tokens of a choice that is not finished."""
        raise NotImplementedError

    def engine_stopped(self) -> None:
        """Learn that no more tokens will come."""
        raise NotImplementedError
