import json
import logging
import os
import socket
import subprocess
import sys

import pytest

from mocker_worker import log
from mocker_worker.startup import cheap_imports


def test_a_worker_without_nats_loads_only_what_it_needs():
    code = "import sys, mocker_worker.cli, mocker_worker.serve; print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    heavy = {"kopf", "kubernetes", "yaml", "openai", "nats", "prometheus_client", "ctypes.util"}
    assert not heavy & set(printed.stdout.split())


def test_only_workers_that_dynamo_finds_load_what_answers_its_routers():
    code = "import sys, mocker_worker.events.nats_link; print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    recovery = {"mocker_worker.events.kv_recovery", "mocker_protocol.request_plane"}
    assert not recovery & set(printed.stdout.split())


def test_the_machine_keeps_its_ca_certificates(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/some/bundle.pem")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with cheap_imports():
        assert os.environ["SSL_CERT_FILE"] == os.devnull

    assert os.environ["SSL_CERT_FILE"] == "/some/bundle.pem"
    assert "SSL_CERT_DIR" not in os.environ


def test_a_json_log_line_is_one_object():
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "x\n%s", ("y",), None)

    entry = json.loads(log.JsonFormatter().format(record))

    assert entry["message"] == "x\ny"
    assert (entry["level"], entry["logger"]) == ("warning", "a.b")
    assert entry["time"].endswith("Z")


@pytest.mark.parametrize(
    "environment", [{"MOCKER_LOG_LEVEL": "loud"}, {"MOCKER_LOG_FORMAT": "xml"}]
)
def test_unknown_words_for_the_log_are_named(environment):
    with pytest.raises(ValueError, match=next(iter(environment))):
        log.configure(environment)


def test_a_port_that_is_in_use_is_a_plain_error():

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "mocker_worker.cli", "serve"),
                *("--no-nats", "--host", "127.0.0.1", "--port", port),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ended.returncode == 1
    assert f"--port {port}: cannot listen" in ended.stderr
    assert "address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr
