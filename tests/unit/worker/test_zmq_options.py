import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.zmq_events import EventFormat
from mocker_worker import cli
from mocker_worker.events.zmq_address import Address
from mocker_worker.events.zmq_options import (
    ZmqOptions,
    parse_zmq_options,
    topic_of,
    zmq_options,
)

ON = {"enable_kv_cache_events": True}


def parse(**fields):
    return parse_zmq_options(json.dumps(ON | fields))


def test_defaults_are_those_of_vllm():
    assert parse() == ZmqOptions(
        endpoint="tcp://*:5557",
        replay_endpoint=None,
        buffer_steps=10_000,
        hwm=100_000,
        max_queue_size=100_000,
        topic="",
        format=EventFormat.MAP,
    )


def test_a_configuration_as_people_write_it_for_vllm_is_taken():
    options = parse(
        publisher="zmq",
        endpoint="tcp://epp.default.svc.cluster.local:5557",
        replay_endpoint="tcp://*:5558",
        buffer_steps=20,
        hwm=5,
        max_queue_size=7,
        topic="kv@{pod_ip}:{port}@{model}",
        format="array",
    )
    assert options.endpoint == "tcp://epp.default.svc.cluster.local:5557"
    assert (options.buffer_steps, options.hwm) == (20, 5)
    assert options.format is EventFormat.ARRAY


@pytest.mark.parametrize(
    "text",
    ["{}", '{"publisher": "zmq"}', '{"enable_kv_cache_events": true, "publisher": "null"}'],
)
def test_without_being_enabled_there_are_no_events(text):
    assert parse_zmq_options(text) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"enable_kv_cache_events": "yes"}, "enable_kv_cache_events: must be true or false"),
        ({"publisher": "nats"}, 'publisher: must be "zmq" or "null"'),
        ({"endpiont": "x"}, "endpiont: unknown; known are enable_kv_cache_events, publisher, end"),
        ({"endpoint": 5557}, "endpoint: must be a string"),
        ({"endpoint": "5557"}, "endpoint: must be tcp://HOST:PORT or ipc://PATH"),
        ({"endpoint": "inproc://x"}, "endpoint: must be tcp://HOST:PORT or ipc://PATH"),
        ({"endpoint": "tcp://*:70000"}, "endpoint: must be tcp://HOST:PORT with a port of 0"),
        ({"endpoint": "tcp://*:"}, "endpoint: must be tcp://HOST:PORT with a port of 0"),
        ({"replay_endpoint": "tcp://:1"}, "replay_endpoint: must be tcp://HOST:PORT"),
        ({"buffer_steps": 1.5}, "buffer_steps: must be an integer"),
        ({"hwm": True}, "hwm: must be an integer"),
        ({"max_queue_size": -1}, "max_queue_size: must be an integer"),
        ({"topic": None}, "topic: must be a string"),
        ({"topic": "kv@{ip}"}, r"topic: \{ip\} is unknown; known are \{pod_ip\}, \{pod_name\}"),
        ({"format": "json"}, 'format: must be "map" or "array"'),
    ],
)
def test_an_error_names_the_field_and_the_remedy(fields, message):
    with pytest.raises(ValueError, match=message):
        parse(**fields)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError, match=r"not JSON|must be a JSON object"):
        parse_zmq_options(text)


@given(
    st.dictionaries(
        st.sampled_from(["endpoint", "replay_endpoint", "hwm", "topic", "format", "publisher"]),
        st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2),
    )
)
def test_no_json_does_more_than_be_refused(fields):
    field = None
    try:
        options = parse(**fields)
        if options is not None:
            options.check_ranks(4)
    except ValueError as error:
        field = str(error).partition(":")[0]
    assert field is None or field in {*fields, "endpoint"}


@pytest.mark.parametrize(
    ("text", "is_bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://0.0.0.0:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://[fd00::1]:5557", False),
        ("tcp://epp.svc:5557", False),
        ("ipc:///tmp/events", True),
    ],
)
def test_wildcards_and_ipc_are_bound_and_all_else_is_connected_to(text, is_bound):
    address = Address.parse(text)
    assert address.is_bound is is_bound
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "of_rank_2"),
    [
        ("tcp://*:5557", "tcp://*:5559"),
        ("tcp://[::]:5557", "tcp://[::]:5559"),
        ("tcp://*:0", "tcp://*:0"),
        ("ipc:///tmp/events", "ipc:///tmp/events_dp2"),
    ],
)
def test_ranks_count_ports_up(text, of_rank_2):
    address = Address.parse(text)
    assert str(address.for_rank(2)) == of_rank_2
    assert address.for_rank(0) == address


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replay_endpoint": "tcp://*:5558"}, "replay_endpoint: a rank needs port 5558"),
        ({"endpoint": "tcp://*:65535"}, "endpoint: 2 ranks end beyond port 65535"),
        (
            {"endpoint": "tcp://epp:1", "replay_endpoint": "tcp://*:65535"},
            "replay_endpoint: 2 ranks end",
        ),
    ],
)
def test_ranks_that_get_in_each_others_way_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        parse(**fields).check_ranks(2)


@pytest.mark.parametrize(
    "fields",
    [
        {"replay_endpoint": "tcp://*:5559"},
        {"endpoint": "tcp://epp:5557", "replay_endpoint": "tcp://*:5557"},
        {"endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"},
        {"endpoint": "ipc:///tmp/a", "replay_endpoint": "ipc:///tmp/b"},
    ],
)
def test_ranks_with_ports_of_their_own_are_fine(fields):
    parse(**fields).check_ranks(2)


def test_dynamo_ports_bind_all_addresses():
    args = EngineArgs(zmq_kv_events_port=5557, zmq_replay_port=5558)
    options = zmq_options(None, args)
    assert options.endpoint == "tcp://0.0.0.0:5557"
    assert options.replay_endpoint == "tcp://0.0.0.0:5558"
    assert options.format is EventFormat.MAP
    assert zmq_options(None, EngineArgs()) is None
    assert zmq_options(parse(), EngineArgs()) == parse()


@pytest.mark.parametrize(
    ("by_flag", "args", "message"),
    [
        (ON, {"zmq_kv_events_port": 5557}, "zmq_kv_events_port: contradicts --kv-events-config"),
        (None, {"zmq_replay_port": 5558}, "zmq_replay_port: "),
        (
            ON | {"replay_endpoint": "tcp://*:5558"},
            {"dp_size": 2},
            "--kv-events-config: replay_endpoint: a rank needs port 5558",
        ),
        (
            None,
            {"zmq_kv_events_port": 5557, "zmq_replay_port": 5557},
            "zmq_kv_events_port, zmq_replay_port: replay_endpoint: a rank needs port 5557, which "
            "endpoint has taken; move it 1 or more ports away",
        ),
    ],
)
def test_contradictions_are_refused(by_flag, args, message):
    with pytest.raises(ValueError, match=message):
        zmq_options(by_flag and parse_zmq_options(json.dumps(by_flag)), EngineArgs(**args))


def test_a_topic_is_filled_in():
    names = {"pod_ip": "10.0.0.7", "port": "8000", "model": "org/model", "pod_name": None}
    assert topic_of("kv@{pod_ip}:{port}@{model}", names) == "kv@10.0.0.7:8000@org/model"
    assert topic_of("", names) == ""
    with pytest.raises(
        ValueError, match=r"--kv-events-config: topic: \{pod_name\} is not known here"
    ):
        topic_of("kv@{pod_name}", names)


def config(*flags, **environment):
    arguments = cli._parser(environment).parse_args(["serve", "--no-nats", *flags])
    return cli.worker_config(arguments, environment)


def test_the_flag_and_its_environment_variable_give_the_options():
    text = json.dumps(ON | {"endpoint": "tcp://*:6000"})
    assert config("--kv-events-config", text).events.zmq == ZmqOptions(endpoint="tcp://*:6000")
    assert config(MOCKER_KV_EVENTS_CONFIG=text).events.zmq == ZmqOptions(endpoint="tcp://*:6000")
    assert config().events.zmq is None


def test_a_wrong_flag_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as exit_of:
        config("--kv-events-config", '{"endpoint": "x"}')
    assert exit_of.value.code == 2
    assert "argument --kv-events-config: endpoint: must be tcp" in capsys.readouterr().err
