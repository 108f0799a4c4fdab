import json

import aiohttp
import openai
import pytest

from mocker_worker.config import ServerOptions
from mocker_worker.server.faults import DEFAULT_KINDS

PROMPT = {"prompt": "Hi", "max_tokens": 2}


async def call(worker, method, path, body=None, headers=None):
    """Return status and JSON of an answer."""
    data = json.dumps(body) if isinstance(body, (dict, list)) else body
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.request(method, path, data=data, headers=headers) as response,
    ):
        return response.status, await response.json()


async def test_what_is_in_force_can_be_seen(run_worker):
    options = ServerOptions(
        failure_rate_percent=2.5, failure_types=("rate_limit",), latency_jitter=0.1
    )
    async with run_worker(server=options) as worker:
        assert await call(worker, "GET", "/admin/config") == (
            200,
            {
                "failure_injection_rate": 2.5,
                "failure_types": ["rate_limit"],
                "latency_jitter": 0.1,
            },
        )


async def test_faults_begin_and_end_at_run_time(run_worker):
    async with run_worker() as worker:
        status, _ = await call(worker, "POST", "/v1/completions", PROMPT)
        assert status == 200

        change = {"failure_injection_rate": 100, "failure_types": ["rate_limit"]}
        status, config = await call(worker, "POST", "/admin/config", change)
        assert (status, config["failure_injection_rate"]) == (200, 100)
        assert config["latency_jitter"] == 0
        status, answer = await call(worker, "POST", "/v1/completions", PROMPT)
        assert status == 429
        assert "injected fault" in answer["error"]["message"]

        await call(worker, "POST", "/admin/config", {"failure_injection_rate": 0})
        status, _ = await call(worker, "POST", "/v1/completions", PROMPT)
        assert status == 200
        _, config = await call(worker, "GET", "/admin/config")
        assert config["failure_types"] == ["rate_limit"]


async def test_jitter_can_be_changed(run_worker):
    async with run_worker(dp_size=2) as worker:
        _, config = await call(worker, "POST", "/admin/config", {"latency_jitter": 0.25})

        assert config["latency_jitter"] == 0.25
        status, _ = await call(worker, "POST", "/v1/completions", PROMPT)
        assert status == 200


async def test_no_kinds_mean_all_errors(run_worker):
    async with run_worker() as worker:
        await call(worker, "POST", "/admin/config", {"failure_types": ["disconnect"]})
        _, config = await call(worker, "POST", "/admin/config", {"failure_types": []})

        assert config["failure_types"] == [str(kind) for kind in DEFAULT_KINDS]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"failure_injection_rate": 101}, "failure_injection_rate"),
        ({"failure_injection_rate": -1}, "failure_injection_rate"),
        ({"failure_injection_rate": "1"}, "failure_injection_rate"),
        ({"failure_injection_rate": None}, "failure_injection_rate"),
        ({"failure_types": ["nothing"]}, "failure_types"),
        ({"failure_types": "rate_limit"}, "failure_types"),
        ({"latency_jitter": 1.5}, "latency_jitter"),
        ({"failure_rate": 1}, "failure_rate"),
        ({"failure_injection_rate": 5, "latency_jitter": 9}, "latency_jitter"),
        ([], None),
        ("{", None),
        ("NaN", None),
    ],
)
async def test_mistakes_are_named_and_change_nothing(run_worker, change, param):
    async with run_worker() as worker:
        before = await call(worker, "GET", "/admin/config")
        status, answer = await call(worker, "POST", "/admin/config", change)

        assert status == 400
        assert answer["error"]["param"] == param
        assert await call(worker, "GET", "/admin/config") == before


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("rate_limit", openai.RateLimitError),
        ("invalid_api_key", openai.AuthenticationError),
        ("context_length", openai.BadRequestError),
        ("server_error", openai.InternalServerError),
        ("invalid_request", openai.BadRequestError),
        ("model_not_found", openai.NotFoundError),
        ("disconnect", openai.APIConnectionError),
    ],
)
async def test_clients_see_the_fault_that_a_header_forces(run_worker, kind, error):
    async with (
        run_worker() as worker,
        openai.AsyncOpenAI(
            base_url=f"{worker.listening.result()}/v1", api_key="x", max_retries=0
        ) as client,
    ):
        for stream in (False, True):
            if stream and kind == "disconnect":
                continue
            with pytest.raises(error):
                await client.completions.create(
                    model="mock",
                    prompt="Hi",
                    stream=stream,
                    extra_headers={"X-Return-Error": kind},
                )
        assert worker.lifecycle.in_flight == 0


@pytest.mark.parametrize("kind", ["stream_error", "disconnect"])
async def test_a_stream_breaks_after_its_first_token(run_worker, kind):
    async with (
        run_worker() as worker,
        openai.AsyncOpenAI(
            base_url=f"{worker.listening.result()}/v1", api_key="x", max_retries=0
        ) as client,
    ):
        stream = await client.completions.create(
            model="mock",
            prompt="Hi",
            max_tokens=20,
            stream=True,
            extra_headers={"X-Return-Error": kind},
        )
        texts = []

        async def read():
            async for chunk in stream:
                texts.append(chunk.choices[0].text)

        with pytest.raises(openai.APIError, match=r"injected fault|Connection error"):
            await read()
        assert 1 <= len(texts) < 20
        await stream.close()
