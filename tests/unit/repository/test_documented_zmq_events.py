"""The ZMQ examples in docs/wire.md are what the worker sends and takes."""

import json
import re
from pathlib import Path

import msgspec

from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from mocker_protocol.zmq_events import EventFormat, encode_batch
from mocker_worker.events.zmq_options import ZmqOptions, parse_zmq_options

WIRE = (Path(__file__).resolve().parents[3] / "docs/wire.md").read_text()
SECTION = WIRE.partition("\n## KV events on ZMQ\n")[2].partition("\n## ")[0]
CONFIGURATION, MESSAGES = re.findall(r"```json\n(.*?)```", SECTION, flags=re.DOTALL)


def test_the_configuration_in_the_documents_is_taken():
    options = parse_zmq_options(CONFIGURATION)
    assert options.replay_endpoint == "tcp://*:5558"
    assert options.topic == "kv@{pod_ip}:{port}@{model}"


def test_the_defaults_in_the_documents_are_those_of_the_code():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", SECTION, flags=re.MULTILINE))
    assert rows.pop("enable_kv_cache_events") == "false"
    assert rows.pop("publisher") == "zmq"
    words = {"none": None, "empty": ""}
    defaults = {name: words.get(text, text.strip("`")) for name, text in rows.items()}
    fields = ZmqOptions.__dataclass_fields__
    assert defaults.keys() == fields.keys()
    for name, text in defaults.items():
        assert text == fields[name].default or text == str(fields[name].default)


def test_the_messages_in_the_documents_are_those_that_are_sent():
    tokens = list(range(1, 9))
    blocks = tuple(hash_blocks(tokens, 4))
    stored = BlockStored(None, blocks, tokens)
    expected = [
        (stored, EventFormat.MAP),
        (stored, EventFormat.ARRAY),
        (BlockRemoved((blocks[1].sequence,)), EventFormat.MAP),
        (AllBlocksCleared(), EventFormat.MAP),
    ]
    for line, (event, event_format) in zip(MESSAGES.splitlines(), expected, strict=True):
        payload = encode_batch(
            [event], timestamp_s=1_700_000_000.0, dp_rank=0, event_format=event_format
        )
        assert json.loads(line) == msgspec.msgpack.decode(payload)
