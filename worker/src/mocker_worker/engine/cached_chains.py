"""The contents of a cache as chains: what a consumer that lost events needs to be right again."""

from collections import defaultdict
from collections.abc import Iterable

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.kv_events import BlockStored
from mocker_worker.engine.block_pool import BlockContent


def chains(contents: Iterable[BlockContent]) -> list[BlockStored]:
    """Arrange contents as runs, parents before children; each content is in exactly one run."""
    children: dict[int | None, list[BlockHash]] = defaultdict(list)
    for content in contents:
        children[content.parent].append(content.block_hash)
    stored: list[BlockStored] = []
    branches: list[tuple[int | None, BlockHash]] = [(None, block) for block in children[None]]
    while branches:
        parent, block = branches.pop()
        run = [block]
        while len(following := children.get(run[-1].sequence, [])) == 1:
            run.append(following[0])
        stored.append(BlockStored(parent, tuple(run)))
        branches += [(run[-1].sequence, child) for child in following]
    return stored
