"""vLLM's block hashes against published vectors, and against CBOR written out by hand."""

import struct
import subprocess
import sys
from array import array
from collections.abc import Sequence
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.vllm_block_hash import NONE_HASH, Sha256CborChain

EDGES = [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1]
TOKENS = st.lists(st.sampled_from(EDGES) | st.integers(0, 2**32 - 1), max_size=64)


def head(major: int, value: int) -> bytes:
    """The shortest head of a CBOR item (RFC 8949, 4.2.1)."""
    if value < 24:
        return bytes([major << 5 | value])
    for code, form, top in ((24, ">B", 8), (25, ">H", 16), (26, ">I", 32)):
        if value < 1 << top:
            return bytes([major << 5 | code]) + struct.pack(form, value)
    raise AssertionError(value)


def cbor_of_block(parent: bytes, tokens: Sequence[int], salt: str | None) -> bytes:
    ids = head(4, len(tokens)) + b"".join(head(0, token) for token in tokens)
    keys = b"\xf6"
    if salt:
        text = salt.encode()
        keys = head(4, 1) + head(3, len(text)) + text
    return head(4, 3) + head(2, len(parent)) + parent + ids + keys


def expected(tokens: Sequence[int], block_size: int, salt: str | None) -> list[int]:
    digest, hashes = NONE_HASH, []
    for end in range(block_size, len(tokens) + 1, block_size):
        block = tokens[end - block_size : end]
        digest = sha256(cbor_of_block(digest, block, None if hashes else salt)).digest()
        hashes.append(int.from_bytes(digest[-8:], "big"))
    return hashes


def test_the_published_vectors() -> None:
    assert NONE_HASH.hex().startswith("9bd96a485ad84efd")
    assert [block.sequence for block in Sha256CborChain(16).extend(range(32))] == [
        2233398808101521225,
        17911472383915781900,
    ]


def test_the_salt_is_the_extra_key_of_the_first_block_alone() -> None:
    first = sha256(b"\x83\x58\x20" + NONE_HASH + b"\x84\x01\x02\x03\x04" + b"\x81\x66tenant")
    second = sha256(b"\x83\x58\x20" + first.digest() + b"\x84\x05\x06\x07\x08" + b"\xf6")
    assert [block.sequence for block in Sha256CborChain(4, "tenant").extend(range(1, 9))] == [
        int.from_bytes(digest.digest()[-8:], "big") for digest in (first, second)
    ]


def test_an_empty_salt_is_none() -> None:
    assert Sha256CborChain(4, "").extend(range(8)) == Sha256CborChain(4).extend(range(8))


@given(TOKENS, st.text(max_size=30), st.integers(2, 30))
def test_every_block_is_hashed_from_its_canonical_cbor(tokens, salt, block_size) -> None:
    blocks = Sha256CborChain(block_size, salt).extend(array("I", tokens))
    assert [block.sequence for block in blocks] == expected(tokens, block_size, salt)


@given(TOKENS, st.none() | st.text(max_size=8))
def test_local_hashes_are_dynamos(tokens, salt) -> None:
    ours = Sha256CborChain(4, salt).extend(tokens)
    theirs = hash_blocks(tokens, 4, cache_salt=salt)
    assert [block.local for block in ours] == [block.local for block in theirs]


@given(TOKENS, st.lists(st.integers(1, 5), max_size=8))
def test_a_chain_that_grows_in_pieces_gives_what_one_call_gives(tokens, pieces) -> None:
    chain, start, blocks = Sha256CborChain(4, "s"), 0, []
    for count in [*pieces, len(tokens)]:
        piece = tokens[start : start + 4 * count]
        blocks += chain.extend(piece)
        start += len(piece) - len(piece) % 4
    assert blocks == Sha256CborChain(4, "s").extend(tokens)


def test_cbor_is_loaded_only_where_it_is_asked_for() -> None:
    program = (
        "import sys; from mocker_protocol.engine_args import parse_engine_args as parse; "
        "from mocker_worker.engine import EngineCore; EngineCore(parse({})); "
        "assert 'cbor2' not in sys.modules; "
        "EngineCore(parse({'prefix_caching_hash_algo': 'sha256_cbor'})); "
        "assert 'cbor2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
