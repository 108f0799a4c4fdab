import json
import logging

import pytest

from mocker_protocol import __version__
from mocker_protocol.engine_args import InvalidEngineArgs, PreemptionMode
from mocker_worker.cli import _parser, engine_args, main, worker_config


@pytest.fixture(autouse=True)
def _root_logger_as_it_was():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def parse(*flags, environment=None):
    return _parser(environment or {}).parse_args(["serve", *flags])


def file_with(tmp_path, data):
    path = tmp_path / "engine.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_flags_that_are_not_given_keep_the_defaults_of_the_engine():
    args = engine_args(parse())

    assert (args.num_gpu_blocks, args.block_size, args.speedup_ratio) == (16384, 64, 1.0)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--num-gpu-blocks-override", "9"], "num_gpu_blocks", 9),
        (["--block-size", "8"], "block_size", 8),
        (["--max-model-len", "9000"], "max_model_len", 9000),
        (["--max-num-seqs", "3"], "max_num_seqs", 3),
        (["--max-num-batched-tokens", "99"], "max_num_batched_tokens", 99),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--enable-prefix-caching"], "enable_prefix_caching", True),
        (["--no-enable-chunked-prefill"], "enable_chunked_prefill", False),
        (["--preemption-mode", "fifo"], "preemption_mode", PreemptionMode.FIFO),
        (["--speedup-ratio", "0"], "speedup_ratio", 0.0),
        (["--decode-speedup-ratio", "2"], "decode_speedup_ratio", 2.0),
        (["--data-parallel-size", "2"], "dp_size", 2),
        (["--startup-time", "1.5"], "startup_time", 1.5),
        (["--seed", "5"], "seed", 5),
        (["--is-prefill-worker"], "worker_type", "prefill"),
        (["--is-decode-worker"], "worker_type", "decode"),
    ],
)
def test_every_flag_reaches_its_engine_argument(flags, name, value):
    assert getattr(engine_args(parse(*flags)), name) == value


def test_flags_and_file_are_merged(tmp_path):
    path = file_with(tmp_path, {"block_size": 16, "is_prefill": True})

    args = engine_args(parse("--extra-engine-args", path, "--seed", "3", "--is-prefill-worker"))

    assert (args.block_size, args.seed, args.worker_type) == (16, 3, "prefill")


def test_a_profile_becomes_the_timing_model(tmp_path):
    (tmp_path / "prefill_raw_data.json").write_text(
        json.dumps({"prefill_isl": [1, 9], "prefill_ttft": [2, 3]})
    )
    (tmp_path / "decode_raw_data.json").write_text(
        json.dumps(
            {
                "x_kv_usage": [0, 0, 1, 1],
                "y_context_length": [1, 9, 1, 9],
                "z_itl": [2, 3, 4, 5],
                "max_kv_tokens": 100,
            }
        )
    )
    args = engine_args(parse("--planner-profile-data", str(tmp_path)))

    assert args.timing_model.decode_active_kv_tokens == (0, 100)
    with pytest.raises(InvalidEngineArgs, match="cannot be read"):
        engine_args(parse("--planner-profile-data", str(tmp_path / "nothing.npz")))


@pytest.mark.parametrize(
    ("data", "flags", "words"),
    [
        ({"block_size": 16}, ["--block-size", "32"], ["block_size", "16", "32"]),
        ({"is_prefill": True}, ["--is-decode-worker"], ["worker_type", "prefill", "decode"]),
        ({"blok_size": 16}, [], ["blok_size", "unknown"]),
        ({"reasoning": 1}, [], ["reasoning", "not supported"]),
        ("{", [], ["not JSON"]),
        ("[]", [], ["JSON object"]),
        ({}, ["--speedup-ratio", "-1"], ["speedup_ratio"]),
        ({}, ["--block-size", "1"], ["block_size"]),
    ],
)
def test_contradictions_and_mistakes_are_named(tmp_path, data, flags, words):
    with pytest.raises(InvalidEngineArgs) as caught:
        engine_args(parse("--extra-engine-args", file_with(tmp_path, data), *flags))

    assert all(word in str(caught.value) for word in words)


def test_a_worker_has_one_role(capsys):
    with pytest.raises(SystemExit) as caught:
        parse("--is-prefill-worker", "--is-decode-worker")

    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--port", "http", "must be a port, 0 to 65535, not 'http'"),
        ("--port", "65536", "must be a port, 0 to 65535"),
        ("--drain-grace-s", "2s", "must be a number of seconds, at least 0, not '2s'"),
        ("--drain-timeout-s", "inf", "must be a number of seconds, at least 0"),
        ("--drain-timeout-s", "-1", "must be a number of seconds, at least 0"),
        ("--model-name", " ", "must not be empty"),
        ("--model-name", "m\udcff", "must be UTF-8"),
        ("--nats-url", "http://n:4222", "must be nats://HOST:PORT (or tls, ws, wss)"),
        ("--nats-url", "nats://a:4222,nats://b:4222", "must be nats://HOST:PORT"),
        ("--namespace", "default/demo", "must consist of A-Z"),
    ],
)
def test_a_flag_that_makes_no_sense_is_named_with_the_remedy(capsys, flag, text, words):
    with pytest.raises(SystemExit) as caught:
        parse(f"{flag}={text}")

    assert caught.value.code == 2
    assert f"argument {flag}: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    ["nats", "n:4222", "nats://n", "tls://user:pass@n:4222", "wss://n/nats", "nats://[::1]:4"],
)
def test_urls_of_nats_come_in_many_forms(url):
    assert parse("--nats-url", url).nats_url == url


def test_a_wrong_server_in_the_environment_is_named(capsys):
    with pytest.raises(SystemExit):
        parse(environment={"NATS_SERVER": "http://n"})

    assert "argument --nats-url: NATS_SERVER: must be nats://" in capsys.readouterr().err


def test_events_are_counted_from_one(capsys):
    with pytest.raises(SystemExit):
        _parser({}).parse_args(["events", "--count", "0"])

    assert "argument --count: must be a whole number, at least 1" in capsys.readouterr().err


def test_the_version_can_be_asked_for(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


def test_mistakes_end_with_exit_code_2(tmp_path, capsys):
    path = file_with(tmp_path, {"blok_size": 16})

    assert main(["serve", "--extra-engine-args", path]) == 2
    assert "blok_size" in capsys.readouterr().err
    assert main(["serve", "--extra-engine-args", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_the_merged_arguments_can_be_printed(capsys):
    assert main(["serve", "--print-engine-args", "--block-size", "8"]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert printed["block_size"] == 8
    assert printed["num_gpu_blocks"] == 16384


def test_the_environment_says_who_the_worker_is():
    environment = {
        "POD_UID": "u",
        "POD_IP": "10.0.0.1",
        "POD_NAME": "p",
        "DYN_NAMESPACE": "default-demo",
        "NATS_SERVER": "nats://n:4222",
    }
    config = worker_config(parse("--is-prefill-worker", environment=environment), environment)

    assert (config.worker_uid, config.advertised_host, config.pod_name) == ("u", "10.0.0.1", "p")
    assert config.nats_url == "nats://n:4222"
    assert config.component.kv_event_stream == (
        "namespace-default-demo-component-prefill-kv-events"
    )


def test_values_from_the_environment_are_of_the_types_that_flags_give():
    """A marked kind of string once got into the registration, which cannot encode it."""
    by_flag = {
        "--nats-url": ("NATS_SERVER", "nats://h:1"),
        "--namespace": ("DYN_NAMESPACE", "ns"),
        "--etcd-endpoints": ("ETCD_ENDPOINTS", "http://e:1"),
        "--kv-recovery-port": ("MOCKER_KV_RECOVERY_PORT", "7000"),
        "--api-key": ("MOCKER_API_KEY", "k"),
        "--kv-events-nats-format": ("MOCKER_KV_EVENTS_NATS_FORMAT", "dynamo-event-plane"),
        "--failure-types": ("MOCKER_FAILURE_TYPES", "rate_limit"),
        "--metrics-dialects": ("MOCKER_METRICS_DIALECTS", "vllm,sglang"),
        "--mode": ("MOCKER_MODE", "echo"),
    }
    flags = [word for flag, (_, value) in by_flag.items() for word in (flag, value)]
    given, found = vars(parse(*flags)), vars(parse(environment=dict(by_flag.values())))

    for name, value in given.items():
        assert found[name] == value, name
        assert type(found[name]) is type(value), name


def test_without_an_environment_a_worker_invents_its_uid():
    first, second = (worker_config(parse("--no-nats"), {}) for _ in range(2))

    assert first.worker_id != second.worker_id
    assert (first.nats_url, first.namespace, first.advertised_host) == (None, "dynamo", "127.0.0.1")
