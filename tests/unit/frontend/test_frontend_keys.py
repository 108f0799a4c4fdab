"""The API key: `/v1` is for whoever shows one of them, and workers see it too."""

import pytest

from mocker_frontend.cli import _config, _parser

KEYS = ("first", "se cond")


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


async def status(frontend, method, path, authorization=None):
    headers = {} if authorization is None else {"Authorization": authorization}
    body = {"json": {"prompt": "a", "max_tokens": 1}} if method == "POST" else {}
    response = await frontend.session.request(method, frontend.url + path, headers=headers, **body)
    if response.status == 401:
        assert await response.json() == {"error": "Unauthorized"}
    return response.status


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (None, 401),
        ("", 401),
        ("first", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Basic first", 401),
        ("Bearer first", 200),
        ("bearer  se cond ", 200),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/completions")])
async def test_only_a_key_opens_v1(worker, start_frontend, authorization, expected, method, path):
    frontend = await start_frontend(decode=[worker], api_keys=KEYS)
    assert await status(frontend, method, path, authorization) == expected
    assert len(worker.requests) == (method == "POST" and expected == 200)


async def test_probes_and_metrics_need_no_key(worker, start_frontend):
    frontend = await start_frontend(decode=[worker], api_keys=KEYS)
    for path in ("/health", "/ready", "/live", "/metrics", "/version", "/load"):
        assert await status(frontend, "GET", path) == 200
    assert await status(frontend, "POST", "/tokenize") == 200


async def test_without_keys_the_workers_decide(worker, start_frontend):
    frontend = await start_frontend(decode=[worker])
    assert await status(frontend, "POST", "/v1/completions", "Bearer theirs") == 200
    assert worker.headers[0]["Authorization"] == "Bearer theirs"


@pytest.mark.parametrize(
    ("variables", "flags", "keys"),
    [
        ({}, [], ()),
        ({"MOCKER_API_KEY": "a, b,"}, [], ("a", "b")),
        ({"VLLM_API_KEY": "v"}, [], ("v",)),
        ({"VLLM_API_KEY": "v", "MOCKER_API_KEY": "a"}, [], ("a",)),
        ({"MOCKER_API_KEY": "a"}, ["--api-key", "f"], ("f",)),
    ],
)
def test_keys_come_from_the_flag_or_the_environment(monkeypatch, variables, flags, keys):
    for name in ("MOCKER_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = _parser().parse_args(["serve", "--model-name", "mock", *flags])
    assert _config(arguments).api_keys == keys


def test_a_variable_that_makes_no_sense_is_a_usage_error(monkeypatch, capsys):
    monkeypatch.setenv("MOCKER_READ_TIMEOUT_S", "soon")
    with pytest.raises(SystemExit):
        _parser().parse_args(["serve", "--model-name", "mock"])
    assert "--read-timeout-s" in capsys.readouterr().err
