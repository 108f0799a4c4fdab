"""The queue of a transport: bounded, and never with a hole that nobody knows of."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from mocker_worker.events.hub import NumberedEvent
from mocker_worker.events.outbox import BLOCKS_PER_PLACE, Outbox

NO_LIMIT = sys.maxsize


class Numbers:
    """Makes numbered events of ranks."""

    def __init__(self):
        self.next_ids = {}

    def events(self, dp_rank, count, *, anew=False):
        first = self.next_ids.get(dp_rank, 0)
        self.next_ids[dp_rank] = first + count
        return [
            NumberedEvent(
                dp_rank,
                event_id,
                AllBlocksCleared() if anew and event_id == first else BlockRemoved((event_id,)),
            )
            for event_id in range(first, first + count)
        ]


def ids(outbox):
    return [(event.dp_rank, event.event_id) for event in outbox.head(len(outbox), NO_LIMIT)]


def test_an_overflow_loses_the_rank_until_it_begins_anew():
    outbox, numbers = Outbox(4), Numbers()
    outbox.put(numbers.events(0, 4))
    outbox.put(numbers.events(0, 1))
    outbox.put(numbers.events(0, 1))

    assert (len(outbox), outbox.dropped_events, outbox.lost_ranks) == (0, 6, [0])
    outbox.put(numbers.events(0, 3, anew=True))
    outbox.put(numbers.events(0, 1))
    assert ids(outbox) == [(0, 6), (0, 7), (0, 8), (0, 9)]
    assert outbox.lost_ranks == []


def test_a_snapshot_takes_no_room_from_what_follows_it():
    outbox, numbers = Outbox(4), Numbers()
    outbox.put(numbers.events(0, 100, anew=True))
    outbox.put(numbers.events(0, 4))

    assert len(outbox) == 104
    outbox.head(50, NO_LIMIT)
    outbox.take_off(50)
    outbox.put(numbers.events(0, 1))
    assert (len(outbox), outbox.lost_ranks) == (0, [0])


def test_what_is_being_sent_stays_at_the_head():
    outbox, numbers = Outbox(4), Numbers()
    outbox.put(numbers.events(0, 4))
    batch = outbox.head(2, NO_LIMIT)
    outbox.put(numbers.events(0, 1))

    assert outbox.head(10, NO_LIMIT) == batch
    outbox.take_off(2)
    assert len(outbox) == 0


def test_a_lost_rank_takes_nothing_of_another():
    outbox, numbers = Outbox(10), Numbers()
    outbox.put(numbers.events(0, 2))
    outbox.put(numbers.events(1, 2))
    outbox.lose([0])

    assert ids(outbox) == [(1, 0), (1, 1)]
    assert outbox.lost_ranks == [0]


def test_lost_ranks_wait_for_room():
    outbox, numbers = Outbox(4), Numbers()
    outbox.put(numbers.events(1, 3))
    outbox.put(numbers.events(0, 2))

    assert outbox.lost_ranks == ()
    outbox.head(1, NO_LIMIT)
    outbox.take_off(1)
    assert outbox.lost_ranks == [0]


def test_snapshots_that_follow_each_other_do_not_pile_up():
    outbox, numbers = Outbox(10), Numbers()
    for _ in range(100):
        outbox.put(numbers.events(0, 5, anew=True))
        outbox.put([*numbers.events(1, 2, anew=True), *numbers.events(2, 2, anew=True)])
        outbox.put(numbers.events(1, 1))

    assert len(outbox) <= 10 + 5 + 4
    assert ids(outbox)[-1] == (1, 299)
    assert outbox.lost_ranks == []


def removed(event_id, num_blocks):
    return NumberedEvent(0, event_id, BlockRemoved(tuple(range(num_blocks))))


def test_long_events_take_the_place_of_several():
    outbox = Outbox(10)
    outbox.put([removed(0, 4 * BLOCKS_PER_PLACE), removed(1, 4 * BLOCKS_PER_PLACE + 1)])
    outbox.put([removed(2, BLOCKS_PER_PLACE)])
    assert (len(outbox), outbox.dropped_events) == (3, 0)

    outbox.put([removed(3, 1)])
    assert (len(outbox), outbox.dropped_events, outbox.lost_ranks) == (0, 4, [0])


def test_room_that_long_events_took_is_given_back_when_they_are_taken_off():
    outbox = Outbox(10)
    for event_id in range(50):
        outbox.put([removed(event_id, 9 * BLOCKS_PER_PLACE)])
        outbox.head(1, NO_LIMIT)
        outbox.take_off(1)
    assert outbox.dropped_events == 0


def test_the_head_is_bounded_in_blocks_but_never_empty():
    outbox = Outbox(100)
    outbox.put([removed(0, 30), removed(1, 10), removed(2, 10), removed(3, 1)])

    assert [event.event_id for event in outbox.head(10, 20)] == [0]
    outbox.take_off(1)
    assert [event.event_id for event in outbox.head(10, 20)] == [1, 2]
    assert [event.event_id for event in outbox.head(1, 20)] == [1]


def test_tokens_do_not_wait_with_their_blocks():
    outbox = Outbox()
    tokens = range(64)
    outbox.put([NumberedEvent(0, 0, BlockStored(None, tuple(hash_blocks(tokens, 16)), tokens))])

    [waiting] = outbox.head(1, NO_LIMIT)
    assert waiting.event == BlockStored(None, tuple(hash_blocks(tokens, 16)))
    assert waiting.event.token_ids == ()


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("anew"), st.integers(0, 1), st.integers(1, 12)),
    st.tuples(st.just("send"), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("lose"), st.integers(0, 1), st.none()),
)


@given(st.lists(STEPS, max_size=60))
def test_whatever_happens_a_gap_is_followed_by_cleared(steps):
    outbox, numbers = Outbox(8), Numbers()
    sent = []
    largest = {0: 0, 1: 0}
    for kind, first, second in steps:
        match kind:
            case "put":
                outbox.put(numbers.events(first, second))
            case "anew":
                largest[first] = max(largest[first], second)
                outbox.put(numbers.events(first, second, anew=True))
            case "lose":
                outbox.lose([first])
            case "send":
                batch = outbox.head(first, NO_LIMIT)
                if second:
                    sent += batch
                    outbox.take_off(len(batch))
        assert len(outbox) <= 8 + 8 + sum(largest.values())
    sent += outbox.head(len(outbox), NO_LIMIT)
    for dp_rank in (0, 1):
        next_id = 0
        for event in (event for event in sent if event.dp_rank == dp_rank):
            assert event.event_id >= next_id
            if event.event_id != next_id:
                assert event.event == AllBlocksCleared()
            next_id = event.event_id + 1
    handed_over = len(sent)
    assert handed_over + outbox.dropped_events == sum(numbers.next_ids.values())


def test_ranks_that_begin_anew_together_are_whole_together():
    outbox, numbers = Outbox(4), Numbers()
    outbox.put(numbers.events(0, 2))
    outbox.put(numbers.events(1, 3))
    outbox.lose([0, 1])
    outbox.put([*numbers.events(0, 3, anew=True), *numbers.events(1, 3, anew=True)])

    assert ids(outbox) == [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (1, 5)]
    assert outbox.lost_ranks == []
