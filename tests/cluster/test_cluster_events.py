"""KV events on the transports of `spec.kvEvents`, read in the pods' network by clients of ZMQ."""

import json
from pathlib import Path

import aiohttp
import pytest

from kubectl import Kubectl
from mocker_protocol.vllm_block_hash import Sha256CborChain

EXAMPLE = (Path(__file__).parent.parent.parent / "examples/kv-events.yaml").read_text()
PROMPT = list(range(1000, 1000 + 16 * 3))


READER = """
import json, sys, zmq
from mocker_protocol.zmq_events import decode_batch, decode_frames
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.RCVTIMEO, 10000)
socket.connect(f"tcp://{sys.argv[1]}:5558")
socket.send_multipart([b"", (0).to_bytes(8, "big")])
while (frames := socket.recv_multipart()[1:])[-1]:
    message = decode_frames(frames)
    for event in decode_batch(message.payload).events:
        hashes = list(getattr(event, "block_hashes", []))
        print(json.dumps([message.topic, message.sequence, type(event).__name__, hashes]))
"""


@pytest.mark.timeout(240)
async def test_every_worker_replays_its_events_under_the_topic_that_llm_d_wants(
    kubectl: Kubectl,
) -> None:
    kubectl.apply(EXAMPLE)
    kubectl.run("wait", "mockerdeployment/kv-events", "--for=condition=Ready", "--timeout=120s")
    with kubectl.forwarded("service/kv-events-frontend", 8000) as port:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", raise_for_status=True) as http:
            for _ in range(2):  # round robin: one for each worker
                body = {"prompt": PROMPT, "max_tokens": 2}
                async with http.post("/v1/completions", json=body):
                    pass
    selector = "mocker.dev/deployment=kv-events,mocker.dev/role=aggregated"
    pods = json.loads(kubectl.run("get", "pods", "--selector", selector, "--output=json"))["items"]
    address_of = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}
    expected = [block.sequence for block in Sha256CborChain(16).extend(PROMPT)]

    assert len(address_of) == 2
    reader = next(iter(address_of))
    for address in address_of.values():
        said = kubectl.run("exec", reader, "--", "python3", "-c", READER, address)
        events = [json.loads(line) for line in said.splitlines()]
        assert {topic for topic, *_ in events} == {f"kv@{address}:8000@mock/llama-3.1-8b"}
        assert [number for _, number, *_ in events] == list(range(len(events)))
        assert events[0][2] == "AllBlocksCleared"
        stored = [
            block for *_, kind, blocks in events if kind == "StoredBlocks" for block in blocks
        ]
        assert stored == expected
