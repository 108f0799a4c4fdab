"""Consumers of KV events that know only what was published: models of a router's view."""

from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored


class StrictCache:
    """One rank as a strict consumer sees it; what a correct publisher never sends fails."""

    def __init__(self):
        self.parents = {}
        """Parent of each cached block by sequence hash."""
        self.next_id = None

    def apply(self, event_id, event):
        if self.next_id is not None and event_id != self.next_id:
            told = f"{event_id} comes instead of {self.next_id}: {event}"
            assert event_id > self.next_id, told
            assert event == AllBlocksCleared(), told
        self.next_id = event_id + 1
        match event:
            case AllBlocksCleared():
                self.parents.clear()
            case BlockStored(parent, blocks):
                assert parent is None or parent in self.parents, "stored before its parent"
                for block in blocks:
                    assert block.sequence not in self.parents, "stored twice"
                    self.parents[block.sequence] = parent
                    parent = block.sequence
            case BlockRemoved(hashes):
                for item in hashes:
                    del self.parents[item]

    @property
    def blocks(self):
        return set(self.parents)


class RouterCache:
    """One rank as Dynamo 1.6's router sees it: what it cannot use it skips."""

    def __init__(self):
        self.blocks = set()
        self.next_id = None

    def apply(self, event_id, event):
        if self.next_id is not None:
            if event_id < self.next_id:
                return
            if event_id > self.next_id:
                self.blocks.clear()
        self.next_id = event_id + 1
        match event:
            case AllBlocksCleared():
                self.blocks.clear()
            case BlockStored(parent, blocks) if parent is None or parent in self.blocks:
                self.blocks.update(block.sequence for block in blocks)
            case BlockRemoved(hashes):
                self.blocks.difference_update(hashes)


def blocks_of(stored):
    """Return the sequence hashes of a snapshot."""
    return {block.sequence for event in stored for block in event.blocks}
