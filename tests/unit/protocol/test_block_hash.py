"""Block hashes against the constants that Dynamo's own unit tests use."""

from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import (
    BlockHash,
    Xxh3Chain,
    chained,
    hash_blocks,
    local_hash,
    local_seed,
)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=64)


def test_the_worked_example_with_blocks_of_four():
    assert list(hash_blocks(range(1, 9), 4)) == [
        BlockHash(14643705804678351452, 14643705804678351452),
        BlockHash(16777012769546811212, 4945711292740353085),
    ]


def test_the_worked_example_with_blocks_of_sixty_four():
    first, second = hash_blocks(range(128), 64)
    assert first.local == first.sequence == 3480597578098033343
    assert second == BlockHash(3318286205056455972, 2575318956255022795)


def test_a_partial_block_has_no_hash():
    assert len(list(hash_blocks(range(1, 8), 4))) == 1
    assert list(hash_blocks([], 4)) == []


@given(TOKENS)
def test_hashing_in_two_parts_continues_the_chain(tokens):
    whole = list(hash_blocks(tokens, 4))
    if len(whole) >= 2:
        rest = list(hash_blocks(tokens[4:], 4, parent=whole[0].sequence))
        assert rest == whole[1:]


@given(TOKENS)
def test_each_block_chains_its_local_hash_to_its_predecessor(tokens):
    parent = None
    for index, block in enumerate(hash_blocks(tokens, 4)):
        assert block.local == local_hash(tokens[index * 4 : index * 4 + 4])
        assert block.sequence == chained(parent, block.local)
        parent = block.sequence


def test_a_cache_salt_seeds_the_local_hashes_as_in_dynamo() -> None:
    """Local hashes from `compute_block_hash_for_seq(..., cache_namespace="tenant")` of 1.6.1."""
    first, second = hash_blocks(range(1, 9), 4, cache_salt="tenant")
    assert first == BlockHash(17621909411505482860, 17621909411505482860)
    assert second == BlockHash(2865997321390064198, chained(first.sequence, second.local))


def test_an_empty_cache_salt_is_none() -> None:
    assert local_seed("") == local_seed(None) == 1337
    assert hash_blocks(range(8), 4, cache_salt="") == hash_blocks(range(8), 4)


@given(TOKENS, st.text(max_size=8), st.lists(st.integers(1, 5), max_size=8))
def test_a_chain_that_grows_in_pieces_gives_what_one_call_gives(tokens, salt, pieces):
    chain, start, blocks = Xxh3Chain(4, salt), 0, []
    for count in [*pieces, len(tokens)]:
        piece = tokens[start : start + 4 * count]
        blocks += chain.extend(piece)
        start += len(piece) - len(piece) % 4
    assert blocks == hash_blocks(tokens, 4, cache_salt=salt)
