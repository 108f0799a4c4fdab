"""A model's own tokenizer, from a Hugging Face `tokenizer.json`.

Needs the package `tokenizers` (the extra `tokenizer`). Chats are rendered as for the built-in
tokenizer: chat templates are programs in Jinja, and no mock needs them to be its own. Encoding a
long prompt costs tens of milliseconds, so the built-in tokenizer is the one for load tests.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mocker_worker.tokenizer import (
    TOKEN_TEXTS,
    BuiltinTokenizer,
    StreamDecoder,
    Tokenizer,
    render_chat,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HfModel

_FILE_NAME = "tokenizer.json"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenizerUnusable(ValueError):
    """The tokenizer that was asked for cannot be loaded."""


def load_tokenizer(path: Path | None) -> Tokenizer:
    """Return the tokenizer at `path`, or the built-in one for None.

    Args:
        path: A tokenizer.json, or a directory with one.

    Raises:
        TokenizerUnusable: naming the flag and the remedy.
    """
    if path is None:
        return BuiltinTokenizer()
    file = path / _FILE_NAME if path.is_dir() else path
    try:
        from tokenizers import Tokenizer as Model
    except ImportError as error:
        raise TokenizerUnusable(
            f"--tokenizer {path}: needs the package tokenizers; install mocker[tokenizer], or "
            "leave the flag out for the built-in tokenizer"
        ) from error
    try:
        data = file.read_bytes()
    except OSError as error:
        raise TokenizerUnusable(
            f"--tokenizer {path}: cannot be read: {error}; name a tokenizer.json or its directory"
        ) from error
    try:
        model = Model.from_buffer(data)
    except Exception as error:  # the package raises nothing more precise
        raise TokenizerUnusable(
            f"--tokenizer {file}: is not a tokenizer.json of the package tokenizers: {error}"
        ) from error
    return HfTokenizer(model)


class HfTokenizer:
    """Wraps a loaded tokenizer; special tokens have no text."""

    def __init__(self, model: "HfModel") -> None:
        self._model = model
        model.no_padding()
        model.no_truncation()
        self.generated_texts: Mapping[int, str] = {
            token_id: self._visible(token_id) or text for token_id, text in TOKEN_TEXTS.items()
        }
        """Where a token alone is no visible text, as bytes are not, the built-in one's word."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, lone surrogates as `?`."""
        clean = text.encode("utf-8", "replace").decode() if not text.isascii() else text
        return self._model.encode(clean, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; unknown ones have none."""
        return self._model.decode(token_ids)

    def token_text(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it; empty for an unknown one."""
        return self._model.id_to_token(token_id) or ""

    def decoded_text(self, token_id: int) -> str:
        """Return what answers at random show for a token, else its own text or spelling."""
        made_up = self.generated_texts.get(token_id)
        return made_up or self._inside(token_id) or self.token_text(token_id)

    def has_token(self, token_id: int) -> bool:
        """Whether the vocabulary has this id."""
        return self._model.id_to_token(token_id) is not None

    def stream_decoder(self) -> StreamDecoder:
        """Return a decoder for one answer."""
        return _HfStream(self)

    def render_chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        tools: Sequence[Any] = (),
        opens_answer: bool = True,
    ) -> str:
        """Return the prompt of a chat, in the form of the built-in tokenizer."""
        return render_chat(messages, tools=tools, opens_answer=opens_answer)

    def _inside(self, token_id: int) -> str:
        """Return what a token adds inside of a text, where many decoders keep its space."""
        alone = self.decode((token_id,))
        return self.decode((token_id, token_id))[len(alone) :]

    def _visible(self, token_id: int) -> str | None:
        text = self._inside(token_id)
        is_visible = text.strip() and _REPLACEMENT not in text and text.strip().isprintable()
        return text if is_visible else None


class _HfStream:
    """Decodes a window of the latest tokens, since a token's text can depend on those before it."""

    def __init__(self, tokenizer: HfTokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        """Tokens whose text is out, then those whose text is not."""
        self._num_out = 0
        self._out = ""
        """Text of the first `_num_out` tokens of the window."""

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._out):
            return ""
        new = text[len(self._out) :]
        del self._window[: self._num_out]
        self._num_out = len(self._window)
        self._out = self._tokenizer.decode(self._window)
        return new

    def flush(self) -> str:
        text = self._tokenizer.decode(self._window)[len(self._out) :]
        self._window, self._num_out, self._out = [], 0, ""
        return text
