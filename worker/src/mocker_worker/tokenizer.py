"""What turns text into tokens and back, and the tokenizer that is built in.

The built-in one is deterministic, reversible and needs no download. Ids 100..200, which the engine
generates, are fixed words with a leading space. Words of lower-case letters and digits take one
token per five characters, all other text one per three bytes of UTF-8. Text that is appended
changes the last few tokens only, and generated text tokenizes back to the ids that it came from,
so the next turn of a chat finds its blocks in the prefix cache.
"""

import codecs
import contextlib
import json
import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol

FIRST_WORD_ID = 100
WORDS = (
    "the of and to in is was for on that by with as are at from his it an were which be this had "
    "has also or not but one its their after new been who first two they have her she all other "
    "when time during there into more only over some most can between three such out later where "
    "under these about may well against while would could state until year part used both many "
    "being any each number since like people before then system made through within small river "
    "water field light night house north south green white"
).split()
TOKEN_TEXTS: Mapping[int, str] = {
    FIRST_WORD_ID + index: f" {word}" for index, word in enumerate(WORDS)
}
"""Text of every id that the engine generates."""

_WORD_IDS = {word: FIRST_WORD_ID + index for index, word in enumerate(WORDS)}
_GROUP_CHARACTERS = 5
_FIRST_OF_LENGTH = tuple(sum(36**k for k in range(1, n)) for n in range(_GROUP_CHARACTERS + 2))
"""Number of the first group of each length; groups are numbers to the base 36."""
_FIRST_SPACED_ID = 2**10
"""A space and a group of letters and digits."""
_FIRST_PLAIN_ID = 2**26
"""A group without the space."""
_LEADING_WORD = re.compile(r"[a-z0-9]{1,20}(?!\w)")
"""Longer ones are cut into bytes, so that a character more cannot change many tokens."""
_SPACES = re.compile("(  +)")
"""Two or more; this form is the one that is searched fast."""
_SPACE_BEFORE_TEXT = re.compile(r" (?! |\Z)")
_SECTION_CHARACTERS = 4000
_MAX_MEMO_PIECES = 2**14
_MAX_MEMO_CHARACTERS = 24
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


class StreamDecoder(Protocol):
    """Decodes the tokens of one answer as they come."""

    def push(self, token_id: int) -> str:
        """Return the text that is certain by now; empty inside of a character."""

    def flush(self) -> str:
        """Return what is left at the end; all texts together are those of `Tokenizer.decode`."""


class Tokenizer(Protocol):
    """Text to tokens and back."""

    generated_texts: Mapping[int, str]
    """Text of every id that the engine invents, for answers at random: never empty."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; unknown ones become U+FFFD or nothing."""

    def token_text(self, token_id: int) -> str:
        """Return how the vocabulary spells one token."""

    def decoded_text(self, token_id: int) -> str:
        """Return the text that one token is inside of an answer, for log probabilities."""

    def has_token(self, token_id: int) -> bool:
        """Whether a token has this id; asked of very many at once."""

    def stream_decoder(self) -> StreamDecoder:
        """Return a decoder for one answer."""

    def render_chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        tools: Sequence[Any] = (),
        opens_answer: bool = True,
    ) -> str:
        """Return the prompt of a chat; see the function of this name."""


class BuiltinTokenizer:
    """The tokenizer of this module; ids are below 2**31."""

    generated_texts = TOKEN_TEXTS

    def __init__(self) -> None:
        self._memo = _Memo()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`; there are no special tokens.

        Pieces between spaces are looked up in C loops, below 0.1 microseconds per word. A section
        of the text at a time, as its words are still in the processor's cache then.
        """
        end = _space_before_text(text, 0)
        token_ids = _piece_ids(text[:end], spaced=False)
        while end < len(text):
            start = end + 1
            end = _space_before_text(text, start + _SECTION_CHARACTERS)
            token_ids += self._memo.lookup(text[start:end])
        return token_ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of `token_ids`; what no text has as its tokens becomes U+FFFD."""
        return b"".join(map(_token_bytes, token_ids)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """Return the text of one token; bytes that are no character become U+FFFD."""
        return self.decode((token_id,))

    def decoded_text(self, token_id: int) -> str:
        """Return the same: texts and vocabulary are one here."""
        return self.decode((token_id,))

    def has_token(self, token_id: int) -> bool:
        """Take any id: those that no text has are shown as U+FFFD."""
        return True

    def stream_decoder(self) -> StreamDecoder:
        """Return a decoder for one answer."""
        return _BuiltinStream()

    def render_chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        tools: Sequence[Any] = (),
        opens_answer: bool = True,
    ) -> str:
        """Return the prompt of a chat."""
        return render_chat(messages, tools=tools, opens_answer=opens_answer)


class _Memo(dict[str, tuple[int, ...]]):
    """Tokens of pieces that follow a space; forgets all when there are too many."""

    def __init__(self) -> None:
        super().__init__()
        self._single = dict(_WORD_IDS)
        """Those that are one token."""

    def lookup(self, section: str) -> Iterable[int]:
        """Return the tokens of pieces with a space between any two, and one before the first."""
        words = section.split(" ")
        if len(words) > 1:  # itemgetter returns no tuple for one
            with contextlib.suppress(KeyError):
                token_ids: tuple[int, ...] = itemgetter(*words)(self._single)
                return token_ids
        pieces = _pieces(section) if "" in words else words
        return chain.from_iterable(map(self.__getitem__, pieces))

    def __missing__(self, piece: str) -> tuple[int, ...]:
        token_ids = tuple(_piece_ids(piece, spaced=True))
        if len(piece) > _MAX_MEMO_CHARACTERS:
            return token_ids
        if len(self) >= _MAX_MEMO_PIECES:
            self.clear()
            self._single = dict(_WORD_IDS)
        self[piece] = token_ids
        if len(token_ids) == 1 and piece:  # the empty one stands between two spaces
            self._single[piece] = token_ids[0]
        return token_ids


class _BuiltinStream:
    """Looks words up; other tokens may end inside of a character."""

    __slots__ = ("_pending", "_utf8")

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = False

    def push(self, token_id: int) -> str:
        text = None if self._pending else TOKEN_TEXTS.get(token_id)
        if text is None:
            text = self._utf8.decode(_token_bytes(token_id))
            self._pending = bool(self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        self._pending = False
        return self._utf8.decode(b"", final=True)


def render_chat(
    messages: Sequence[tuple[str, str]],
    *,
    tools: Sequence[Any] = (),
    opens_answer: bool = True,
) -> str:
    """Return the prompt of a chat given as (role, content) pairs.

    A conversation that goes on with the answer and further messages renders to a text that starts
    with this one. Tools stand in front, so that chats with the same ones share their blocks.

    Args:
        messages: Oldest first.
        tools: What the assistant may call, as JSON; the order of keys does not matter.
        opens_answer: Whether the text ends where the assistant's answer begins.
    """
    turns = [f"<|{role}|>\n{content}<|end|>\n" for role, content in messages]
    if tools:
        turns.insert(0, f"<|tools|>\n{_tools_text(tools)}<|end|>\n")
    return "".join(turns) + ("<|assistant|>\n" if opens_answer else "")


def tool_calls_text(tool_calls: Sequence[Any]) -> str:
    """Return how an assistant's earlier tool calls appear in the prompt."""
    return json.dumps(tool_calls, sort_keys=True, separators=(",", ":"))


def _tools_text(tools: Sequence[Any]) -> str:
    """Return one line of JSON per tool, in letters as they are: templates of models do both."""
    return "\n".join(json.dumps(tool, sort_keys=True, ensure_ascii=False) for tool in tools)


def _space_before_text(text: str, start: int) -> int:
    """Return where the first space from `start` on is that something else follows, or the end."""
    found = _SPACE_BEFORE_TEXT.search(text, start)
    return found.start() if found else len(text)


def _pieces(text: str) -> list[str]:
    """Split at every space before something else; other spaces belong to the piece before them."""
    if text.endswith(" "):
        stripped = text.rstrip(" ")
        pieces = _pieces(stripped)
        pieces[-1] += " " * (len(text) - len(stripped))
        return pieces
    if "  " not in text:
        return text.split(" ")
    *parts, last = _SPACES.split(text)
    pieces = []
    for section, spaces in zip(parts[::2], parts[1::2], strict=True):
        pieces += section.split(" ")
        pieces[-1] += spaces[1:]
    return pieces + last.split(" ")


def _piece_ids(piece: str, *, spaced: bool) -> list[int]:
    """Return the tokens of text between two spaces, with or without the one before it."""
    lead = _LEADING_WORD.match(piece)
    if lead is None:
        return _chunk_ids(f" {piece}" if spaced else piece)
    word = lead[0]
    known = _WORD_IDS.get(word) if spaced else None
    token_ids = _group_ids(word, spaced) if known is None else [known]
    return token_ids + _chunk_ids(piece[len(word) :])


def _group_ids(word: str, spaced: bool) -> list[int]:
    groups = [word[i : i + _GROUP_CHARACTERS] for i in range(0, len(word), _GROUP_CHARACTERS)]
    token_ids = [_FIRST_PLAIN_ID + _FIRST_OF_LENGTH[len(g)] + int(g, 36) for g in groups]
    if spaced:
        token_ids[0] += _FIRST_SPACED_ID - _FIRST_PLAIN_ID
    return token_ids


def _chunk_ids(text: str) -> list[int]:
    """Return one id per three bytes: their four characters of base64, read as one number."""
    quads = b2a_base64(text.encode("utf-8", "surrogatepass"), newline=False)
    return memoryview(quads).cast("I").tolist()


def _token_bytes(token_id: int) -> bytes:
    if (text := TOKEN_TEXTS.get(token_id)) is not None:
        return text.encode()
    if token_id < _FIRST_SPACED_ID or token_id >= 2**31:
        return _REPLACEMENT
    if token_id < _FIRST_PLAIN_ID:
        group = _group(token_id - _FIRST_SPACED_ID)
        return b" " + group if group else _REPLACEMENT
    return _group(token_id - _FIRST_PLAIN_ID) or _chunk(token_id)


def _group(number: int) -> bytes | None:
    for length in range(_GROUP_CHARACTERS, 0, -1):
        rest = number - _FIRST_OF_LENGTH[length]
        if 0 <= rest < 36**length:
            return _base36(rest, length)
    return None


def _base36(number: int, length: int) -> bytes:
    digits = bytearray()
    for _ in range(length):
        number, digit = divmod(number, 36)
        digits.append(b"0123456789abcdefghijklmnopqrstuvwxyz"[digit])
    return bytes(reversed(digits))


def _chunk(token_id: int) -> bytes:
    try:
        quad = token_id.to_bytes(4, "little")
        data = a2b_base64(quad, strict_mode=True)
    except Base64Error:
        return _REPLACEMENT
    return data if b2a_base64(data, newline=False) == quad else _REPLACEMENT
