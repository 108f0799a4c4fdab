import argparse
from pathlib import Path

import pytest

from mocker_worker.cli import _parser, worker_config
from mocker_worker.config import EventOptions, Mode, ServerOptions
from mocker_worker.settings import boolean, setting, stray_variables, variable_of

EVERY_SETTING = [
    ("--mode", "echo", "mode", Mode.ECHO),
    ("--max-num-queued-reqs", "5", "max_num_queued_reqs", 5),
    ("--max-num-queued-reqs", "0", "max_num_queued_reqs", None),
    ("--max-num-queued-tokens", "900", "max_num_queued_tokens", 900),
    ("--queue-full-status", "429", "queue_full_status", 429),
    ("--tokenizer", __file__, "tokenizer_path", Path(__file__)),
    ("--api-key", "a, b", "api_keys", ("a", "b")),
    ("--failure-injection-rate", "2.5", "failure_rate_percent", 2.5),
    ("--failure-types", "rate_limit,disconnect", "failure_types", ("rate_limit", "disconnect")),
    ("--latency-jitter", "0.2", "latency_jitter", 0.2),
    (
        "--metrics-dialects",
        "vllm,vllm-legacy",
        "metrics_dialects",
        frozenset({"vllm", "vllm-legacy"}),
    ),
]
WRONG = [
    ("--mode", "repeat", "must be one of random, echo, not 'repeat'"),
    ("--max-num-queued-reqs", "-1", "must be a whole number, 0 for no limit"),
    ("--max-num-queued-tokens", "many", "must be a whole number, 0 for no limit"),
    ("--queue-full-status", "500", "must be one of 503, 429"),
    ("--failure-injection-rate", "101", "must be a number from 0 to 100"),
    ("--failure-injection-rate", "nan", "must be a number from 0 to 100"),
    ("--failure-types", "bad_luck", "unknown kind 'bad_luck'; use one of rate_limit"),
    ("--latency-jitter", "2", "must be a number from 0 to 1"),
    ("--metrics-dialects", "statsd", "must be one of vllm, vllm-legacy, sglang"),
    ("--kv-events-nats-format", "xml", "must be one of dynamo-jetstream"),
    ("--kv-events-config", "{", 'not JSON such as {"enable_kv_cache_events": true}: '),
    ("--kv-events-config", '{"hwm": -1}', "hwm: must be an integer"),
    ("--tokenizer", "/nowhere", "no tokenizer at '/nowhere'; name a tokenizer.json or its"),
    ("--scheduling-policy", "lifo", "must be one of fcfs, priority, not 'lifo'"),
    ("--prefix-caching-hash-algo", "sha256", "must be one of xxh3, sha256_cbor, not 'sha256'"),
]
WRONG_ELSEWHERE = [
    ("--namespace", "DYN_NAMESPACE", "a b", "must consist of A-Z, a-z, 0-9, -, _ and dots"),
    ("--etcd-endpoints", "ETCD_ENDPOINTS", "etcd:2379", "must be http:// or https:// URLs"),
]
"""With variables that are not named after the flag."""


def config(*flags, environment=None):
    """Return the configuration that flags and variables make."""
    environment = environment or {}
    return worker_config(
        _parser(environment).parse_args(["serve", "--no-nats", *flags]), environment
    )


@pytest.mark.parametrize(("flag", "text", "name", "value"), EVERY_SETTING)
def test_a_flag_reaches_its_option(flag, text, name, value):
    assert getattr(config(flag, text).server, name) == value


@pytest.mark.parametrize(("flag", "text", "name", "value"), EVERY_SETTING)
def test_the_environment_gives_the_default(flag, text, name, value):
    environment = {variable_of(flag): text}

    assert getattr(config(environment=environment).server, name) == value


def test_a_flag_wins_over_the_environment():
    assert config("--mode", "random", environment={"MOCKER_MODE": "echo"}).server.mode == "random"


def test_without_flags_there_are_the_defaults():
    assert config().server == ServerOptions()
    assert config().events == EventOptions()
    assert config(environment={"MOCKER_MODE": "", "MOCKER_API_KEY": ""}).server == ServerOptions()


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("YES", True), ("false", False), ("0", False)]
)
def test_switches_take_words_from_the_environment(text, value):
    environment = {"MOCKER_ENABLE_REQUEST_ID_HEADERS": text}

    assert config(environment=environment).server.request_id_headers is value
    given = config("--no-enable-request-id-headers", environment=environment)
    assert given.server.request_id_headers is False
    assert config("--enable-request-id-headers").server.request_id_headers is True


def test_vllms_variable_for_the_key_is_understood():
    assert config(environment={"VLLM_API_KEY": "k"}).server.api_keys == ("k",)
    both = {"VLLM_API_KEY": "k", "MOCKER_API_KEY": "own"}
    assert config(environment=both).server.api_keys == ("own",)


@pytest.mark.parametrize(("flag", "text", "words"), WRONG)
def test_a_wrong_flag_is_named_with_the_remedy(capsys, flag, text, words):
    with pytest.raises(SystemExit) as caught:
        config(f"{flag}={text}")

    assert caught.value.code == 2
    assert f"argument {flag}: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "text", "words"), WRONG)
def test_a_wrong_variable_is_named_with_the_remedy(capsys, flag, text, words):
    with pytest.raises(SystemExit) as caught:
        config(environment={variable_of(flag): text})

    assert caught.value.code == 2
    assert f"{variable_of(flag)}: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "variable", "text", "words"), WRONG_ELSEWHERE)
def test_the_variable_of_others_is_named_too(capsys, flag, variable, text, words):
    with pytest.raises(SystemExit):
        config(f"{flag}={text}")
    assert f"argument {flag}: {words}" in capsys.readouterr().err

    with pytest.raises(SystemExit):
        config(environment={variable: text})
    assert f"argument {flag}: {variable}: {words}" in capsys.readouterr().err


def test_a_switch_is_not_set_by_other_words(capsys):
    with pytest.raises(SystemExit):
        config(environment={"MOCKER_ENABLE_REQUEST_ID_HEADERS": "on and off"})

    assert "must be true or false" in capsys.readouterr().err


def test_the_help_names_the_variable(capsys):
    with pytest.raises(SystemExit):
        config("--help")

    shown = " ".join(capsys.readouterr().out.split())
    assert "[MOCKER_QUEUE_FULL_STATUS]" in shown
    assert "[MOCKER_API_KEY]" in shown


def test_variables_that_have_no_effect_are_named():
    environment = {
        "MOCKER_FAILURE_RATE": "5",
        "MOCKER_BLOCK_SIZE": "16",
        "MOCKER_MODE": "echo",
        "MOCKER_CACHE": "/tmp",
        "MOCKER_KUBECONFIG": "/config",
        "MOCKER_TOKENIZER_PATH": "/tokenizer",
        "MOCKER_LATENCY_JITER": "0.1",
        "MODE": "echo",
    }
    arguments = _parser(environment).parse_args(["serve", "--no-nats"])

    assert list(
        stray_variables(environment, variables=arguments.variables, flags=vars(arguments))
    ) == [
        "MOCKER_BLOCK_SIZE has no effect: give the flag --block-size itself",
        "MOCKER_FAILURE_RATE has no effect: is MOCKER_FAILURE_INJECTION_RATE meant?",
        "MOCKER_LATENCY_JITER has no effect: is MOCKER_LATENCY_JITTER meant?",
        "MOCKER_TOKENIZER_PATH has no effect: is MOCKER_TOKENIZER meant?",
    ]


def test_a_setting_can_stand_in_any_parser():
    parser = argparse.ArgumentParser()
    setting(
        parser,
        {"MOCKER_LOUD": "yes"},
        "--loud",
        boolean,
        default=False,
        action=argparse.BooleanOptionalAction,
    )

    assert parser.parse_args([]).loud is True
