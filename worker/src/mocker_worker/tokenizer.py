"""The built-in tokenizer: deterministic, reversible, nothing to download.

Ids 100..200, which the engine generates, are fixed words with a leading space. All other text is
cut into chunks of up to three UTF-8 bytes with ids from 512 on. Text that is appended changes the
last few tokens only, and generated text tokenizes back to the ids that it came from, so the next
turn of a chat finds its blocks in the prefix cache.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FIRST_WORD_ID = 100
WORDS = (
    "the of and to in is was for on that by with as are at from his it an were which be this had "
    "has also or not but one its their after new been who first two they have her she all other "
    "when time during there into more only over some most can between three such out later where "
    "under these about may well against while would could state until year part used both many "
    "being any each number since like people before then system made through within small river "
    "water field light night house north south green white"
).split()
_FIRST_CHUNK_ID = 512
_FIRST_OF_LENGTH = (
    0,
    _FIRST_CHUNK_ID,
    _FIRST_CHUNK_ID + 2**8,
    _FIRST_CHUNK_ID + 2**8 + 2**16,
)
"""Id of the chunk of zero bytes of each length."""
_LAST_CHUNK_ID = _FIRST_OF_LENGTH[3] + 2**24 - 1

TOKEN_TEXTS: Mapping[int, str] = {
    FIRST_WORD_ID + index: f" {word}" for index, word in enumerate(WORDS)
}
"""Text of every id that the engine generates."""
_WORD_IDS = {text: token_id for token_id, text in TOKEN_TEXTS.items()}
_WORD = re.compile(rf"( (?:{'|'.join(WORDS)})(?!\w))")


def tokenize(text: str) -> list[int]:
    """Return the token ids of `text`, each below 2**25."""
    token_ids: list[int] = []
    for index, piece in enumerate(_WORD.split(text)):
        if index % 2:
            token_ids.append(_WORD_IDS[piece])
        elif piece:
            token_ids.extend(_chunk_ids(piece.encode("utf-8", "surrogatepass")))
    return token_ids


def detokenize(token_ids: Iterable[int]) -> str:
    """Return the text of `token_ids`; what no text has as its tokens becomes U+FFFD."""
    data = b"".join(_token_bytes(token_id) for token_id in token_ids)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def can_be_generated(text: str) -> bool:
    """Whether `text` could occur in an answer: it has no character but a-z and the space."""
    return re.fullmatch("[a-z ]+", text) is not None


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    """Return the prompt of a chat given as (role, content) pairs.

    A conversation that goes on with the answer and further messages renders to a text that starts
    with this one.
    """
    turns = (f"<|{role}|>\n{content}<|end|>\n" for role, content in messages)
    return "".join(turns) + "<|assistant|>\n"


def tool_calls_text(tool_calls: Sequence[Any]) -> str:
    """Return how an assistant's earlier tool calls appear in the prompt."""
    return json.dumps(tool_calls, sort_keys=True, separators=(",", ":"))


def _chunk_ids(data: bytes) -> Iterable[int]:
    whole = len(data) // 3 * 3
    first = _FIRST_OF_LENGTH[3]
    yield from (
        first + (a << 16 | b << 8 | c)
        for a, b, c in zip(data[0:whole:3], data[1:whole:3], data[2:whole:3], strict=True)
    )
    if rest := data[whole:]:
        yield _FIRST_OF_LENGTH[len(rest)] + int.from_bytes(rest, "big")


def _token_bytes(token_id: int) -> bytes:
    if (text := TOKEN_TEXTS.get(token_id)) is not None:
        return text.encode()
    if not _FIRST_CHUNK_ID <= token_id <= _LAST_CHUNK_ID:
        return "\N{REPLACEMENT CHARACTER}".encode()
    length = next(n for n in (3, 2, 1) if token_id >= _FIRST_OF_LENGTH[n])
    return (token_id - _FIRST_OF_LENGTH[length]).to_bytes(length, "big")
