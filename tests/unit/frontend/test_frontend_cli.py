import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mocker_frontend.cli import main

SERVE = ("serve", "--model-name", "m", "--no-nats", "--aggregated-url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "99999999"),
        ("--port", "-1"),
        ("--port", "x"),
        ("--drain-grace-s", "-4"),
        ("--read-timeout-s", "nan"),
        ("--connect-timeout-s", "soon"),
        ("--log-level", "loud"),
        ("--log-format", "xml"),
        ("--routing", "nearest"),
    ],
)
def test_a_flag_that_makes_no_sense_is_named(capsys, flag, value):
    with pytest.raises(SystemExit) as ended:
        main([*SERVE, flag, value])

    assert ended.value.code == 2
    assert flag in capsys.readouterr().err


def test_a_port_that_is_in_use_is_a_plain_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [str(Path(sys.executable).parent / "mocker-frontend"), *SERVE]
        ended = subprocess.run(
            [*command, "--host", "127.0.0.1", "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ended.returncode == 1
    assert f"--port {port}" in ended.stderr
    assert "Traceback" not in ended.stderr
