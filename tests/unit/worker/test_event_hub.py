"""Numbers of KV events: one sequence per rank, the same on every transport."""

import pytest

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from mocker_worker.events.hub import MAX_EVENT_BLOCKS, KvEventHub

CLEARED = AllBlocksCleared()


def stored(first, count=1, parent=None, tokens=(), salt=None):
    blocks = tuple(BlockHash(value, value) for value in range(first, first + count))
    return BlockStored(parent, blocks, tokens, salt)


SNAPSHOT = [stored(70), stored(80, 2)]


class Transport:
    """Takes everything down; asks for a rank anew at the call of this number."""

    name = "recording"

    def __init__(self):
        self.calls = []
        self.asks = lambda call: None

    @property
    def events(self):
        return [event for call in self.calls for event in call]

    def publish(self, events):
        self.calls.append(list(events))
        self.asks(len(self.calls))


@pytest.fixture
def transports():
    return [Transport(), Transport()]


@pytest.fixture
def hub(transports):
    hub = KvEventHub(lambda rank: SNAPSHOT if rank == 0 else [], 2)
    for transport in transports:
        hub.attach(transport)
    return hub


def test_every_transport_gets_the_same_numbers_per_rank(hub, transports):
    hub.start()
    hub.publish(1, [stored(1), stored(2)])
    hub.publish(0, [stored(3)])

    expected = [
        (0, 0, CLEARED),
        (1, 0, CLEARED),
        (1, 1, stored(1)),
        (1, 2, stored(2)),
        (0, 1, stored(3)),
    ]
    assert [transport.events for transport in transports] == [expected, expected]


def test_a_rank_that_is_told_anew_goes_on_with_its_numbers_everywhere(hub, transports):
    hub.publish(0, [stored(1)])
    hub.resynchronize(0)

    for transport in transports:
        assert transport.calls[-1] == [(0, 1, CLEARED), (0, 2, SNAPSHOT[0]), (0, 3, SNAPSHOT[1])]
    assert hub.resynchronizations == 1


def test_a_transport_that_asks_while_it_is_told_disturbs_no_order(hub, transports):
    first, second = transports
    first.asks = lambda call: hub.resynchronize(0) if call == 1 else None
    hub.publish(0, [stored(1)])

    assert first.events == second.events
    assert [event.event_id for event in second.events] == [0, 1, 2, 3]
    assert second.events[1].event == CLEARED


def test_two_transports_that_ask_at_once_get_one_answer(hub, transports):
    for transport in transports:
        transport.asks = lambda call: hub.resynchronize(0) if call == 1 else None
    hub.publish(0, [stored(1)])

    assert hub.resynchronizations == 1


def test_nothing_comes_after_the_withdrawal(hub, transports):
    hub.publish(0, [stored(1)])
    hub.withdraw()
    hub.publish(0, [stored(2)])

    assert transports[0].events == [(0, 0, stored(1)), (0, 1, CLEARED), (1, 0, CLEARED)]


def test_a_withdrawal_that_a_transport_lost_is_told_again(hub, transports):
    hub.publish(0, [stored(1)])
    hub.withdraw()
    hub.resynchronize(0)

    assert [event for event in transports[0].events if event.dp_rank == 0] == [
        (0, 0, stored(1)),
        (0, 1, CLEARED),
        (0, 2, CLEARED),
    ]


def test_without_a_transport_nothing_is_made():
    hub = KvEventHub(lambda rank: pytest.fail("nobody asked"), 1)
    hub.start()
    hub.publish(0, [stored(1)])
    hub.withdraw()


def test_a_long_chain_is_told_in_parts_that_hang_together(hub, transports):
    count = 2 * MAX_EVENT_BLOCKS + 1
    hub.publish(0, [stored(0, count, parent=5, tokens=range(2 * count), salt="s")])

    parts = [event.event for event in transports[0].events]
    assert [event.event_id for event in transports[0].events] == [0, 1, 2]
    assert sum((part.blocks for part in parts), ()) == stored(0, count).blocks
    assert [part.parent_hash for part in parts] == [
        5,
        parts[0].blocks[-1].sequence,
        parts[1].blocks[-1].sequence,
    ]
    assert [token for part in parts for token in part.token_ids] == list(range(2 * count))
    assert len(parts[0].token_ids) == 2 * MAX_EVENT_BLOCKS
    assert {part.cache_salt for part in parts} == {"s"}


def test_a_long_removal_is_told_in_parts(hub, transports):
    hashes = tuple(range(MAX_EVENT_BLOCKS + 1))
    hub.publish(0, [BlockRemoved(hashes)])

    parts = [event.event.block_hashes for event in transports[0].events]
    assert sum(parts, ()) == hashes
    assert len(parts) == 2


@pytest.fixture
def hub_of_07(transports):
    """A hub with a consumer that takes `cleared` of one rank for the whole worker."""
    caches = {0: [stored(70), stored(80, 2)], 1: [stored(90)]}
    hub = KvEventHub(lambda rank: caches[rank], 2)
    hub.attach(transports[0], cleared_takes_all_ranks=True)
    hub.attach(transports[1])
    return hub


def test_where_cleared_takes_all_ranks_all_are_told_anew_together(hub_of_07, transports):
    hub_of_07.resynchronize(1)

    for transport in transports:
        assert transport.calls == [
            [
                (0, 0, CLEARED),
                (1, 0, CLEARED),
                (0, 1, stored(70)),
                (0, 2, stored(80, 2)),
                (1, 1, stored(90)),
            ]
        ]
    assert hub_of_07.resynchronizations == 2


def test_where_cleared_takes_all_ranks_a_reset_of_one_tells_the_others_anew(hub_of_07, transports):
    hub_of_07.publish(0, [CLEARED])

    events = transports[0].events
    assert events[0] == (0, 0, CLEARED)
    assert [(event.dp_rank, event.event) for event in events[1:3]] == [(0, CLEARED), (1, CLEARED)]
    assert events[-1] == (1, 1, stored(90))


def test_a_dump_is_of_everything_that_is_numbered(hub, transports):
    hub.start()
    hub.publish(0, [stored(1), stored(2)])

    assert hub.dump(0) == (SNAPSHOT, 2)
    assert hub.dump(1) == ([], 0)
    assert len(transports[0].events) == 4


def test_what_waits_to_be_published_is_numbered_before_a_dump(transports):
    waiting = {0: [stored(5)], 1: []}
    hub = KvEventHub(
        lambda rank: SNAPSHOT, 2, settle=lambda rank: hub.publish(rank, waiting.pop(rank))
    )
    hub.attach(transports[0])
    hub.start()

    assert hub.dump(0).last_event_id == 1
    assert transports[0].events[-1] == (0, 1, stored(5))
    assert hub.dump(1).last_event_id == 0


def test_a_dump_after_the_withdrawal_is_empty(hub):
    hub.start()
    hub.publish(0, [stored(1)])
    hub.withdraw()

    assert hub.dump(0) == ([], 2)


def test_long_chains_are_cut_in_dumps_too():
    chain = stored(0, MAX_EVENT_BLOCKS + 1, tokens=())
    hub = KvEventHub(lambda rank: [chain], 1)

    first, second = hub.dump(0).events
    assert (len(first.blocks), len(second.blocks)) == (MAX_EVENT_BLOCKS, 1)
    assert second.parent_hash == first.blocks[-1].sequence
