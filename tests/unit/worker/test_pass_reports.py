"""Reports of passes: what is sent, when, and what is counted when it is not."""

import asyncio
import contextlib

import msgspec
import pytest

from mocker_protocol.event_plane import decode_envelope
from mocker_protocol.forward_pass import QueuedRequests, ScheduledRequests, decode_forward_pass
from mocker_protocol.load_report import decode_active_load, decode_load_event
from mocker_protocol.names import Component
from mocker_worker.config import NatsFormat
from mocker_worker.events.envelopes import Envelopes
from mocker_worker.events.reports import PassReporter, load_format
from mocker_worker.events.sink import EngineLoad, PassReport

COMPONENT = Component("dynamo", "backend")
LOAD = EngineLoad(
    num_running=2,
    num_waiting=0,
    kv_used_blocks=9,
    kv_total_blocks=16384,
    prefix_cache_hit_rate=0.5,
)
FPM_SUBJECT = "namespace.dynamo.component.backend.endpoint.generate.forward-pass-metrics"
LOAD_SUBJECTS = {
    NatsFormat.JETSTREAM: "namespace.dynamo.kv_metrics",
    NatsFormat.EVENT_PLANE: "namespace.dynamo.component.backend.endpoint.generate.kv_metrics",
}


def report(load=LOAD, wall_time_s=0.01):
    return PassReport(wall_time_s, ScheduledRequests(), QueuedRequests(), load)


class Connection:
    """Takes messages while it is up."""

    def __init__(self):
        self.is_up = True
        self.is_stale = False
        self.sent = []
        self.listeners = []

    def on_connected(self, listener):
        self.listeners.append(listener)

    async def publish(self, subject, message, *, is_fresh=False):
        assert is_fresh
        if self.is_stale:
            return False
        self.sent.append((subject, message))
        return True

    def sent_on(self, subject):
        return [message for item, message in self.sent if item == subject]


@contextlib.asynccontextmanager
async def reporter_of(nats_format):
    connection, envelopes = Connection(), Envelopes(2)
    load = load_format(nats_format, COMPONENT, worker_id=7, envelopes=envelopes)
    reporter = PassReporter(connection, COMPONENT, worker_id=7, envelopes=envelopes, load=load)
    task = asyncio.create_task(reporter.run())
    try:
        yield reporter, connection
    finally:
        task.cancel()
        await asyncio.wait([task])


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_each_pass_is_told_and_a_load_only_when_it_changed():
    async with reporter_of(NatsFormat.JETSTREAM) as (reporter, connection):
        for load in (LOAD, LOAD, LOAD):
            reporter.publish(0, report(load))
        reporter.publish(1, report())
        await settle()

        passes = [
            decode_forward_pass(decode_envelope(message).payload)
            for message in connection.sent_on(FPM_SUBJECT)
        ]
        assert [(item.dp_rank, item.counter_id) for item in passes] == [
            (0, 1),
            (0, 2),
            (0, 3),
            (1, 1),
        ]
        loads = connection.sent_on(LOAD_SUBJECTS[NatsFormat.JETSTREAM])
        ranks = [decode_load_event(m).data.worker_stats.data_parallel_rank for m in loads]
        assert ranks == [0, 1]


async def test_a_load_can_be_told_between_passes():
    async with reporter_of(NatsFormat.JETSTREAM) as (reporter, connection):
        reporter.publish(0, report())
        for _ in range(2):
            reporter.publish_load(0, msgspec.structs.replace(LOAD, num_running=0))
        reporter.publish(0, report())
        connection.is_up = False
        reporter.publish_load(0, LOAD)
        await settle()

        assert len(connection.sent_on(FPM_SUBJECT)) == 2
        loads = connection.sent_on(LOAD_SUBJECTS[NatsFormat.JETSTREAM])
        slots = [decode_load_event(m).data.worker_stats.request_active_slots for m in loads]
        assert slots == [2, 0, 2]
        assert (reporter.dropped_passes, reporter.dropped_loads) == (0, 1)


async def test_a_load_event_of_07_has_the_figures_of_the_engine():
    async with reporter_of(NatsFormat.JETSTREAM) as (reporter, connection):
        reporter.publish(0, report())
        await settle()

        (message,) = connection.sent_on("namespace.dynamo.kv_metrics")
        assert message == (
            b'{"worker_id":7,"data":{"worker_stats":{"data_parallel_rank":0,'
            b'"request_active_slots":2,"request_total_slots":1024,"num_requests_waiting":0},'
            b'"kv_stats":{"kv_active_blocks":9,"kv_total_blocks":16384,'
            b'"gpu_cache_usage_perc":0.00054931640625,"gpu_prefix_cache_hit_rate":0.5},'
            b'"spec_decode_stats":null}}'
        )


async def test_an_active_load_of_16_says_only_what_is_held():
    async with reporter_of(NatsFormat.EVENT_PLANE) as (reporter, connection):
        reporter.publish(1, report())
        await settle()

        (message,) = connection.sent_on(LOAD_SUBJECTS[NatsFormat.EVENT_PLANE])
        envelope = decode_envelope(message)
        load = decode_active_load(envelope.payload)
        assert envelope.topic == "kv_metrics"
        assert (load.worker_id, load.dp_rank, load.kv_used_blocks) == (7, 1, 9)
        assert load.active_decode_blocks is load.active_prefill_tokens is None


@pytest.mark.parametrize("subject", LOAD_SUBJECTS.values())
async def test_no_format_reports_no_load(subject):
    async with reporter_of(NatsFormat.NONE) as (reporter, connection):
        reporter.publish(0, report())
        await settle()

        assert len(connection.sent_on(FPM_SUBJECT)) == 1
        assert connection.sent_on(subject) == []


async def test_a_pass_without_a_load_reports_none():
    async with reporter_of(NatsFormat.JETSTREAM) as (reporter, connection):
        reporter.publish(0, report(load=None))
        await settle()

        assert len(connection.sent) == 1
        assert reporter.dropped_loads == 0


async def test_what_nobody_takes_is_counted_and_the_load_told_again():
    async with reporter_of(NatsFormat.EVENT_PLANE) as (reporter, connection):
        connection.is_up = False
        reporter.publish(0, report())
        assert (reporter.dropped_passes, reporter.dropped_loads) == (1, 1)

        connection.is_up, connection.is_stale = True, True
        reporter.publish(0, report())
        await settle()
        assert (reporter.dropped_passes, reporter.dropped_loads) == (2, 2)

        connection.is_stale = False
        reporter.publish(0, report())
        await settle()
        assert len(connection.sent) == 2
        for listener in connection.listeners:
            listener()
        reporter.publish(0, report())
        await settle()
        assert len(connection.sent_on(LOAD_SUBJECTS[NatsFormat.EVENT_PLANE])) == 2


async def test_the_queue_is_bounded():
    connection, envelopes = Connection(), Envelopes(1)
    reporter = PassReporter(connection, COMPONENT, worker_id=7, envelopes=envelopes, load=None)
    for _ in range(2000):
        reporter.publish(0, report())

    assert reporter.dropped_passes == 2000 - 1024
