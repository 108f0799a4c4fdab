"""Block hashes against the constants that Dynamo's own unit tests use."""

from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import BlockHash, chained, hash_blocks, local_hash

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
