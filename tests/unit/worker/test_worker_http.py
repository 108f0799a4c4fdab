import asyncio
import contextlib
import io
import json
import select
import socket
import statistics
import time

import aiohttp
import openai
import pytest
from waiting import PATIENCE_S, until

from mocker_worker.lifecycle import LifeState
from mocker_worker.server import answering
from mocker_worker.server.app import MAX_BODY_BYTES

MESSAGES = [{"role": "user", "content": "Say something, please: " * 3}]


def client_of(worker):
    return openai.AsyncOpenAI(
        base_url=f"{worker.listening.result()}/v1", api_key="x", max_retries=0
    )


async def call(worker, method, path, **arguments):
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.request(method, path, **arguments) as response,
    ):
        return response.status, dict(response.headers), await response.read()


async def test_a_chat_has_exactly_the_tokens_that_were_asked_for(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        answer = await client.chat.completions.create(
            model="mock", messages=MESSAGES, max_completion_tokens=7, max_tokens=3
        )

        assert answer.usage.completion_tokens == 7
        assert len(answer.choices[0].message.content.split()) == 7
        assert answer.choices[0].finish_reason == "length"
        assert answer.choices[0].message.role == "assistant"
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_chat_streams_one_chunk_per_token(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        stream = await client.chat.completions.create(
            model="mock",
            messages=MESSAGES,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

        role, *tokens, usage = chunks
        assert role.choices[0].delta.role == "assistant"
        assert all(chunk.choices[0].delta.content for chunk in tokens)
        assert [chunk.choices[0].finish_reason for chunk in tokens] == [None] * 4 + ["length"]
        assert usage.choices == []
        assert usage.usage.completion_tokens == 5
        assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_completion_streams_and_answers_the_same_text_for_the_same_seed(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        whole = await client.completions.create(model="mock", prompt="Hi", seed=1)
        stream = await client.completions.create(model="mock", prompt="Hi", seed=1, stream=True)
        streamed = [chunk.choices[0].text async for chunk in stream]

        assert whole.usage.completion_tokens == len(streamed) == 16
        assert "".join(streamed) == whole.choices[0].text


async def test_the_next_turn_of_a_chat_is_served_from_the_prefix_cache(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        first = await client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=12)
        turn = [
            *MESSAGES,
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "More!"},
        ]
        second = await client.chat.completions.create(model="mock", messages=turn, max_tokens=1)

        so_far = first.usage.prompt_tokens + 12
        assert second.usage.prompt_tokens_details.cached_tokens >= so_far - 1 - 4


async def test_a_chat_without_a_limit_fills_the_context(run_worker):
    async with run_worker(max_model_len=100) as worker, client_of(worker) as client:
        answer = await client.chat.completions.create(model="mock", messages=MESSAGES)

        assert answer.usage.total_tokens == 100


async def test_a_chat_without_any_limit_has_128_tokens(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        answer = await client.chat.completions.create(model="mock", messages=MESSAGES)

        assert answer.usage.completion_tokens == 128


async def test_many_streams_run_at_once(run_worker):
    async with run_worker() as worker, client_of(worker) as client:

        async def count(index):
            stream = await client.completions.create(
                model="mock", prompt=f"Prompt {index}", max_tokens=20, stream=True
            )
            return len([chunk async for chunk in stream])

        assert await asyncio.gather(*map(count, range(40))) == [20] * 40
        assert worker.lifecycle.in_flight == 0


async def test_prefill_workers_answer_one_token_and_the_hand_off(run_worker):
    async with run_worker(worker_type="prefill") as worker:
        body = {
            "prompt": list(range(10)),
            "max_tokens": 50,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
        }
        headers = {"X-Request-Id": "one"}
        _, _, text = await call(worker, "POST", "/v1/completions", json=body, headers=headers)

        answer = json.loads(text)
        params = answer["kv_transfer_params"]
        assert answer["id"] == "cmpl-one"
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["disaggregated_params"] == "dummy"
        assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
        assert params["remote_request_id"] == "one"
        assert params["remote_num_tokens"] == 10
        assert params["remote_block_ids"] == [[0, 1, 2]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prefill_answer_waits_until_the_kv_has_been_transferred(run_worker, stream):
    transfer = {"kv_transfer_bandwidth": 1.0, "kv_bytes_per_token": 30_000_000}
    async with run_worker(worker_type="prefill", **transfer) as worker:
        began = asyncio.get_running_loop().time()
        body = {"prompt": list(range(10)), "stream": stream}
        _, _, answer = await call(worker, "POST", "/v1/completions", json=body)
        assert b"kv_transfer_params" in answer
        assert asyncio.get_running_loop().time() - began >= 0.3


async def test_decode_workers_do_not_compute_a_prompt_that_was_prefilled_elsewhere(run_worker):
    slow = {"type": "fixed", "prefill_ms": 60_000.0, "decode_ms": 1.0}
    async with run_worker(worker_type="decode", timing_model=slow) as worker:
        body = {
            "prompt": "Hello",
            "max_tokens": 5,
            "kv_transfer_params": {"do_remote_prefill": True, "do_remote_decode": False},
        }
        async with asyncio.timeout(PATIENCE_S):
            _, _, text = await call(worker, "POST", "/v1/completions", json=body)

        answer = json.loads(text)
        assert answer["usage"]["completion_tokens"] == 5
        assert "kv_transfer_params" not in answer


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", b'{"prompt":"x","max_tokens":0}', 400, "max_tokens"),
        ("/v1/completions", b'{"prompt":""}', 400, "prompt"),
        ("/v1/completions", b"{", 400, None),
        ("/v1/completions", b'{"prompt":"x","model":"other"}', 404, "model"),
        ("/v1/completions", b'{"prompt":"x","max_tokens":100000}', 400, "max_tokens"),
        ("/v1/completions", b'{"prompt":"x","suffix":"y"}', 501, "suffix"),
        ("/v1/nothing", b"", 404, None),
        ("/v1/models", b"", 405, None),
    ],
)
async def test_errors_have_the_form_of_vllm(run_worker, path, body, status, param):
    async with run_worker(num_gpu_blocks=100) as worker:
        answered, _, text = await call(worker, "POST", path, data=body)

        error = json.loads(text)["error"]
        assert (answered, error["code"], error["param"]) == (status, status, param)
        assert error["message"]
        assert error["type"]


@pytest.mark.parametrize(("depth", "status"), [(90, 200), (99, 400), (950, 400), (100_000, 400)])
async def test_bodies_that_are_nested_too_deeply_are_refused(run_worker, depth, status):
    async with run_worker() as worker:
        calls = b"[" * depth + b"]" * depth
        body = b'{"max_tokens":1,"messages":[{"role":"user","tool_calls":' + calls + b"}]}"
        answered, _, text = await call(worker, "POST", "/v1/chat/completions", data=body)
        assert answered == status
        assert (b"nested deeper than 100 levels" in text) is (status == 400)


async def test_a_prompt_beyond_the_context_names_the_limit(run_worker):
    async with run_worker(max_model_len=20) as worker, client_of(worker) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 20 tokens"):
            await client.completions.create(model="mock", prompt="Hi", max_tokens=20)


async def test_a_body_that_is_too_large_is_refused_with_413(run_worker):
    async with run_worker() as worker:
        status, _, text = await call(
            worker, "POST", "/v1/completions", data=io.BytesIO(bytes(MAX_BODY_BYTES + 1))
        )

        assert status == 413
        assert json.loads(text)["error"]["code"] == 413


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_frees_its_slot(run_worker, stream):
    slow = {"type": "fixed", "prefill_ms": 1.0, "decode_ms": 20.0}
    async with run_worker(timing_model=slow) as worker:
        body = json.dumps({"prompt": "x", "max_tokens": 5000, "stream": stream}).encode()
        host, port = worker.listening.result().removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await until(lambda: worker.lifecycle.in_flight == 1)
        (rank,) = worker._ranks
        await until(lambda: rank.engine.num_running == 1)

        writer.close()
        await until(lambda: worker.lifecycle.in_flight == 0)

        assert rank.engine.num_running == 0
        assert rank.stats.finished_requests["abort"] == 1


async def test_a_burst_of_connections_is_not_turned_away(run_worker):
    """One too many for the backlog would be tried again after a second."""
    async with run_worker() as worker, contextlib.AsyncExitStack() as opened:
        host, port = worker.listening.result().removeprefix("http://").split(":")
        burst = [opened.enter_context(socket.socket()) for _ in range(512)]
        for connection in burst:  # the server's loop is this one, and cannot accept meanwhile
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))
        poll = select.poll()
        for connection in burst:
            poll.register(connection, select.POLLOUT)

        assert len(poll.poll(0)) == len(burst)


async def test_one_connection_serves_many_requests(run_worker):
    async with run_worker() as worker:
        host, port = worker.listening.result().removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"prompt":"x","max_tokens":2,"stream":true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        for _ in range(3):
            writer.write(head % len(body) + body)
            answer = await reader.readuntil(b"data: [DONE]\n\n")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()


async def test_a_reused_connection_does_not_stall(run_worker, monkeypatch):
    """Small writes wait 40 ms for an acknowledgement where Nagle's algorithm is on."""
    no_delay = []

    async def spy(answer, http, *args):
        sock = http.transport.get_extra_info("socket")
        no_delay.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await begin(answer, http, *args)

    begin = answering.StreamedAnswer.begin
    monkeypatch.setattr(answering.StreamedAnswer, "begin", spy)
    body = b'{"prompt":"x","max_tokens":3,"stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    async with run_worker() as worker:
        host, port = worker.listening.result().removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        longest_gaps = []
        for _ in range(30):
            gaps, last = [], time.perf_counter()
            writer.write(head % len(body) + body)
            while not (await reader.readline()).startswith(b"0"):
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
            await reader.readline()
            longest_gaps.append(max(gaps))
        writer.close()
        await writer.wait_closed()

    assert len(no_delay) == 30
    assert all(no_delay)
    assert statistics.median(longest_gaps) < 0.04


async def test_probes_and_information_are_served(run_worker):
    async with run_worker() as worker:
        await until(lambda: worker.lifecycle.state is LifeState.READY)
        for path in ("/live", "/ready", "/health", "/ping"):
            status, _, text = await call(worker, "GET", path)
            assert (status, text) == (200, b"")
        _, _, models = await call(worker, "GET", "/v1/models")
        _, _, load = await call(worker, "GET", "/load")
        _, _, version = await call(worker, "GET", "/version")

        (model,) = json.loads(models)["data"]
        assert (model["id"], model["owned_by"], model["parent"]) == ("mock", "vllm", None)
        assert model["permission"][0]["object"] == "model_permission"
        assert json.loads(load) == {"server_load": 0}
        assert json.loads(version)["version"]


async def test_a_starting_worker_is_alive_and_takes_no_requests(run_worker):
    async with run_worker(startup_time=3600.0) as worker:
        statuses = {}
        for path in ("/live", "/ready", "/health"):
            statuses[path], _, _ = await call(worker, "GET", path)
        refused, _, text = await call(worker, "POST", "/v1/completions", json={"prompt": "x"})

        assert statuses == {"/live": 200, "/ready": 503, "/health": 503}
        assert (refused, json.loads(text)["error"]["type"]) == (503, "ServiceUnavailableError")


async def test_a_draining_worker_finishes_streams_and_still_answers(run_worker):
    slow = {"type": "fixed", "prefill_ms": 1.0, "decode_ms": 5.0}
    async with run_worker(timing_model=slow) as worker, client_of(worker) as client:
        stream = await client.completions.create(
            model="mock", prompt="Hi", max_tokens=100, stream=True
        )
        chunks = [await anext(aiter(stream))]
        worker.lifecycle.request_stop()
        await until(lambda: worker.lifecycle.state is LifeState.DRAINING)
        ready, _, _ = await call(worker, "GET", "/ready")
        health, _, _ = await call(worker, "GET", "/health")
        late, headers, _ = await call(
            worker, "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 1}
        )
        chunks += [chunk async for chunk in stream]

        assert (ready, health, late) == (503, 200, 200)
        assert headers["Connection"] == "close"
        assert len(chunks) == 100
        assert chunks[-1].choices[0].finish_reason == "length"


async def test_streams_beyond_the_drain_timeout_end_with_an_error_event(run_worker):
    slow = {"type": "fixed", "prefill_ms": 1.0, "decode_ms": 50.0}
    async with run_worker(timing_model=slow, drain_timeout_s=0.05) as worker:
        async with (
            aiohttp.ClientSession(worker.listening.result()) as session,
            session.post(
                "/v1/completions", json={"prompt": "x", "max_tokens": 9999, "stream": True}
            ) as response,
        ):
            await response.content.readuntil(b"\n\n")
            worker.lifecycle.request_stop()
            rest = await response.read()

        *_, error, done, _ = rest.split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 503
        assert done == b"data: [DONE]"


async def test_every_series_exists_from_the_start(run_worker):
    async with run_worker(dp_size=2) as worker:
        _, headers, text = await call(worker, "GET", "/metrics")

        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = text.decode().splitlines()
        for engine in ("0", "1"):
            labels = f'{{engine="{engine}",model_name="mock"}} 0.0'
            for name in (
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:kv_cache_usage_perc",
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_hits_total",
                "vllm:num_preemptions_total",
                "vllm:prompt_tokens_total",
                "vllm:generation_tokens_total",
                "vllm:time_to_first_token_seconds_count",
                "vllm:inter_token_latency_seconds_count",
                "vllm:e2e_request_latency_seconds_count",
            ):
                assert name + labels in lines
        assert any(line.startswith('vllm:cache_config_info{block_size="4"') for line in lines)


async def test_metrics_count_what_was_served(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        prompt = list(range(9))
        for _ in range(2):
            await client.completions.create(model="mock", prompt=prompt, max_tokens=5)
        _, _, text = await call(worker, "GET", "/metrics")

        labels = '{engine="0",model_name="mock"}'
        lines = text.decode().splitlines()
        for expected in (
            f"vllm:prompt_tokens_total{labels} 18.0",
            f"vllm:generation_tokens_total{labels} 10.0",
            f"vllm:prefix_cache_queries_total{labels} 18.0",
            f"vllm:prefix_cache_hits_total{labels} 8.0",
            f"vllm:time_to_first_token_seconds_count{labels} 2.0",
            f"vllm:inter_token_latency_seconds_count{labels} 8.0",
            'vllm:request_success_total{engine="0",finished_reason="length",model_name="mock"} 2.0',
            'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="mock"} 2.0',
        ):
            assert expected in lines


async def test_the_data_parallel_rank_can_be_chosen(run_worker):
    async with run_worker(dp_size=2) as worker:
        statuses = []
        for rank in ("1", "1", "2", "x", "1" * 5000):
            headers = {"X-data-parallel-rank": rank}
            status, _, _ = await call(
                worker, "POST", "/v1/completions", json={"prompt": "x"}, headers=headers
            )
            statuses.append(status)

        assert statuses == [200, 200, 400, 400, 400]
        assert [rank.stats.generation_tokens for rank in worker._ranks] == [0, 32]


async def test_requests_with_the_same_id_run_side_by_side(run_worker):
    async with run_worker() as worker:
        answers = await asyncio.gather(
            *(
                call(
                    worker,
                    "POST",
                    "/v1/completions",
                    json={"prompt": "x", "max_tokens": 30},
                    headers={"X-Request-Id": "same"},
                )
                for _ in range(3)
            )
        )

        assert [status for status, _, _ in answers] == [200] * 3
        assert {json.loads(text)["id"] for _, _, text in answers} == {"cmpl-same"}
