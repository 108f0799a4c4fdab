"""What travels to workers and back when all is well."""

import json
import logging

import pytest
from multidict import CIMultiDict
from waiting import until

from mocker_frontend.cli import main
from mocker_frontend.logs import brief_about_requests
from mocker_frontend.orchestration import GenerateRequest

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


async def test_both_legs_carry_the_same_request_id_and_unknown_fields(start_worker, start_frontend):
    prefill, decode = await start_worker(), await start_worker()
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    response = await frontend.post(vendor_field={"deep": [1, None]}, min_tokens=3)
    assert response.status == 200
    request_id = response.headers["X-Request-Id"]
    for worker in (prefill, decode):
        assert worker.headers[0]["X-Request-Id"] == request_id
        assert worker.requests[0]["vendor_field"] == {"deep": [1, None]}
    assert prefill.requests[0]["max_tokens"] == 1
    assert decode.requests[0]["max_tokens"] == decode.requests[0]["min_tokens"] == 3
    assert decode.requests[0]["kv_transfer_params"]["remote_port"] == 5600


async def test_a_request_id_of_the_client_is_kept(start_worker, start_frontend):
    worker = await start_worker()
    frontend = await start_frontend(aggregated=[worker])
    response = await frontend.session.post(
        frontend.url + "/v1/completions",
        json={"model": "mock", "prompt": "hi", "max_tokens": 1},
        headers={"X-Request-Id": "mine"},
    )
    assert response.headers["X-Request-Id"] == "mine"
    assert worker.headers[0]["X-Request-Id"] == "mine"


async def test_aggregated_workers_get_the_request_as_it_is(start_worker, start_frontend):
    worker = await start_worker()
    frontend = await start_frontend(aggregated=[worker])
    assert (await frontend.text())[0] == 200
    assert worker.requests == [{"model": "mock", "prompt": "hi", "max_tokens": 3}]


async def test_a_request_that_was_prefilled_elsewhere_goes_straight_to_decode(
    start_worker, start_frontend
):
    prefill, decode = await start_worker(), await start_worker()
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    await frontend.text(kv_transfer_params={"do_remote_prefill": True})
    assert not prefill.requests
    assert decode.requests[0]["kv_transfer_params"] == {"do_remote_prefill": True}


@pytest.mark.parametrize("asked", [False, True])
async def test_lengths_are_measured_whether_or_not_the_client_asks_for_usage(
    start_worker, start_frontend, asked
):
    worker = await start_worker()
    frontend = await start_frontend(decode=[worker])
    options = {"stream_options": {"include_usage": True}} if asked else {}
    _, text = await frontend.text(stream=True, max_tokens=5, **options)
    assert ("usage" in text) is asked
    assert text.count('"text"') == 5
    assert await frontend.metric("dynamo_frontend_input_sequence_tokens_sum") == 7
    assert await frontend.metric("dynamo_frontend_output_sequence_tokens_sum") == 5
    assert await frontend.metric("dynamo_frontend_inter_token_latency_seconds_count") == 4


async def test_the_role_that_opens_a_chat_is_no_token(start_worker, start_frontend):
    worker = await start_worker()
    frontend = await start_frontend(decode=[worker])
    response = await frontend.post("/v1/chat/completions", stream=True, max_tokens=5)
    text = await response.text()
    assert text.count('"role"') == 1
    assert await frontend.metric("dynamo_frontend_time_to_first_token_seconds_count") == 1
    assert await frontend.metric("dynamo_frontend_inter_token_latency_seconds_count") == 4


async def test_each_choice_of_a_chat_opens_with_a_role(start_worker, start_frontend):
    worker = await start_worker()

    async def two_choices(request, body):
        response = await worker.begin(request)
        for event in (ROLE, ROLE, TOKEN, TOKEN, TOKEN, TOKEN, b"data: [DONE]\n\n"):
            await response.write(event)
        return response

    worker.answer = two_choices
    frontend = await start_frontend(decode=[worker])
    await (await frontend.post("/v1/chat/completions", stream=True, n=2)).text()
    assert worker.requests[0]["n"] == 2
    assert await frontend.metric("dynamo_frontend_time_to_first_token_seconds_count") == 1
    assert await frontend.metric("dynamo_frontend_inter_token_latency_seconds_count") == 2


async def test_an_empty_hand_off_is_none(start_worker, start_frontend):
    prefill, decode = await start_worker(), await start_worker()
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    await frontend.text(kv_transfer_params=None)
    assert decode.requests[0]["kv_transfer_params"]["remote_port"] == 5600


async def test_fields_pass_to_both_legs_as_they_are(start_worker, start_frontend):
    prefill, decode = await start_worker(), await start_worker()
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    fields = {
        "prompt": [[1, 2], [3]],
        "n": 3,
        "echo": True,
        "logprobs": 2,
        "priority": -1,
        "cache_salt": "s",
        "return_token_ids": True,
        "stop": ["x"],
        "seed": 2**70,
    }
    await frontend.text(**fields)
    for worker in (prefill, decode):
        assert {name: worker.requests[0][name] for name in fields} == fields


@pytest.mark.parametrize(
    ("path", "body", "num_choices"),
    [
        ("/v1/completions", {"prompt": "a"}, 1),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 3}, 6),
        ("/v1/completions", {"prompt": [[1], [2]]}, 2),
        ("/v1/completions", {"prompt": []}, 1),
        ("/v1/chat/completions", {"messages": [], "n": 2}, 2),
        ("/v1/chat/completions?a=b", {"n": True}, 1),
        ("/v1/chat/completions", {"n": 10**9}, 1),
        ("/v1/chat/completions", {"n": 1024}, 1024),
        ("/v1/chat/completions", {"n": 1025}, 1),
        ("/v1/completions", {"prompt": ["a"] * 32, "n": 32}, 1024),
        ("/v1/completions", {"prompt": ["a"] * 33, "n": 32}, 1),
        ("/v1/chat/completions", {"n": 3.0}, 3),
        ("/v1/chat/completions", {"n": 2.5}, 1),
        ("/v1/completions", {"prompt": [1.0, 2.0]}, 1),
        ("/v1/chat/completions", {"n": None}, 1),
    ],
)
def test_choices_are_counted(path, body, num_choices):
    request = GenerateRequest(path=path, payload=b"", body=body, headers=CIMultiDict())
    assert request.num_choices == num_choices
    assert request.is_chat is ("chat" in path)


@pytest.mark.parametrize(("depth", "status"), [(90, 200), (100, 400), (950, 400), (100_000, 400)])
async def test_a_body_that_is_nested_too_deeply_is_400(start_worker, start_frontend, depth, status):
    worker = await start_worker()
    frontend = await start_frontend(decode=[worker])
    payload = b'{"max_tokens":1,"deep":' + b"[" * depth + b"]" * depth + b"}"
    response = await frontend.session.post(frontend.url + "/v1/completions", data=payload)
    assert response.status == status
    assert (b"nested deeper than 100 levels" in await response.read()) is (status == 400)


async def test_a_body_that_cannot_be_unpacked_says_why(start_worker, start_frontend, caplog):
    frontend = await start_frontend(decode=[await start_worker()])
    server_log = logging.getLogger("aiohttp.server")
    server_log.addFilter(brief_about_requests)
    try:
        response = await frontend.session.post(
            frontend.url + "/v1/completions", data=b"no", headers={"Content-Encoding": "gzip"}
        )
        error = (await response.json())["error"]
        await until(lambda: caplog.records)
    finally:
        server_log.removeFilter(brief_about_requests)
    assert (response.status, error["code"]) == (400, 400)
    assert "cannot be read" in error["message"]
    assert "gzip" in error["message"]
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)]


async def test_long_headers_and_many_are_taken(start_worker, start_frontend):
    frontend = await start_frontend(aggregated=[await start_worker()])
    headers = {f"X-{number}": "1" for number in range(200)} | {"X-Long": "a" * 60_000}
    response = await frontend.session.get(frontend.url + "/v1/models", headers=headers)
    assert response.status == 200


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff"])
async def test_a_body_that_is_no_object_is_400(start_worker, start_frontend, payload):
    worker = await start_worker()
    frontend = await start_frontend(decode=[worker])
    response = await frontend.session.post(frontend.url + "/v1/completions", data=payload)
    assert response.status == 400
    assert json.loads(await response.read())["error"]["type"] == "BadRequestError"
    assert not worker.requests


async def test_probes_and_models(start_worker, start_frontend):
    worker = await start_worker()
    frontend = await start_frontend(decode=[worker])
    for path in ("/live", "/ready", "/health", "/version"):
        assert await frontend.status(path) == 200
    models = await (await frontend.session.get(frontend.url + "/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["mock"]
    assert models["data"][0]["owned_by"] == "vllm"
    assert models["data"][0]["permission"][0]["allow_sampling"]
    assert models["data"][0]["max_model_len"] is None  # as a worker that does not register says


async def test_without_any_worker_the_answer_is_503(start_worker, start_frontend):
    prefill = await start_worker()
    frontend = await start_frontend(prefill=[prefill])
    response = await frontend.post()
    assert response.status == 503
    assert "no aggregated worker" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-nats"], "--decode-url"),
        (["--no-nats", "--decode-url", "127.0.0.1:8000"], "http://"),
    ],
)
def test_settings_that_cannot_work_are_usage_errors(arguments, named, capsys):
    assert main(["serve", "--model-name", "mock", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["serve"], ["serve", "--model-name", "m", "--routing", "x"]]
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
