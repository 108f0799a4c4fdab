"""Dynamo's radix tree, the strictest consumer of KV events: it refuses a block whose parent it
does not know and the removal of one it does not have."""

import json

import pytest
from random_load import RandomLoad, Shape

from mocker_protocol.engine_args import parse_engine_args

WORKER_ID = 2**62 + 5
CURRENT, SEED = "dynamo-1.6.1", "dynamo-0.7.0"

SETUPS = {
    "ten thousand requests": (
        {"block_size": 4, "num_gpu_blocks": 512, "max_num_seqs": 32},
        Shape(num_requests=10_000, max_new_prompt_tokens=48, max_output_tokens=16),
    ),
    "blocks of sixteen, and preemptions": (
        {"block_size": 16, "num_gpu_blocks": 48, "max_num_seqs": 16, "preemption_mode": "fifo"},
        Shape(num_requests=1500, max_new_prompt_tokens=70, max_output_tokens=80),
    ),
    "blocks of two": (
        {
            "block_size": 2,
            "num_gpu_blocks": 200,
            "max_num_seqs": 8,
            "enable_chunked_prefill": False,
        },
        Shape(num_requests=1500, max_new_prompt_tokens=20, max_output_tokens=20),
    ),
    "priorities, and vLLM's hashes": (
        {
            "block_size": 8,
            "num_gpu_blocks": 48,
            "max_num_seqs": 16,
            "scheduling_policy": "priority",
            "prefix_caching_hash_algo": "sha256_cbor",
        },
        Shape(num_requests=1500, max_new_prompt_tokens=40, max_output_tokens=30),
    ),
    "three ranks": (
        {"block_size": 4, "num_gpu_blocks": 128, "max_num_seqs": 16, "dp_size": 3},
        Shape(num_requests=3000, max_new_prompt_tokens=32, max_output_tokens=16),
    ),
    "a prefill worker": (
        {"block_size": 4, "num_gpu_blocks": 128, "max_num_seqs": 16, "worker_type": "prefill"},
        Shape(num_requests=3000, max_new_prompt_tokens=64, max_output_tokens=16),
    ),
}


@pytest.mark.parametrize("judge", [CURRENT, SEED])
@pytest.mark.parametrize("setup", SETUPS)
def test_the_radix_tree_equals_the_cache_after_a_random_run(judges, setup, judge):
    arguments, shape = SETUPS[setup]
    load = RandomLoad(parse_engine_args(arguments), shape, seed=7, worker_id=WORKER_ID)
    transcript = load.run()
    transcript.lines.append(b'{"dump":true}')
    *answers, dump, summary = judges.converse(judge, "radix_tree", transcript.lines)

    assert summary == {"events": transcript.num_events, "errors": []}
    assert answers == transcript.expected
    assert sorted(dump, key=str) == sorted(load.cached_blocks(), key=str)
    assert transcript.num_removed_blocks > 1000
    assert sum(map(bool, transcript.expected)) > len(transcript.expected) / 4
    assert load.num_preemptions > 100 or "preemptions" not in setup


def test_salted_prompts_hit_their_own_blocks_only(judges):
    shape = Shape(
        num_requests=1500,
        max_new_prompt_tokens=40,
        max_output_tokens=16,
        salts=(None, "tenant-a", "\N{GREEK SMALL LETTER ALPHA}"),
    )
    args = parse_engine_args({"block_size": 4, "num_gpu_blocks": 128, "max_num_seqs": 16})
    load = RandomLoad(args, shape, seed=11, worker_id=WORKER_ID)
    transcript = load.run()
    *answers, summary = judges.converse(CURRENT, "radix_tree", transcript.lines)
    assert summary == {"events": transcript.num_events, "errors": []}
    assert answers == transcript.expected


@pytest.mark.parametrize("judge", [CURRENT, SEED])
def test_a_resynchronization_a_reset_and_the_end_leave_the_tree_right(judges, judge):
    args = parse_engine_args({"block_size": 4, "num_gpu_blocks": 64, "dp_size": 2})
    shape = Shape(num_requests=300, max_new_prompt_tokens=32, max_output_tokens=16)
    load = RandomLoad(
        args, shape, seed=3, worker_id=WORKER_ID, cleared_takes_all_ranks=judge == SEED
    )
    dump = b'{"dump":true}'
    transcript = load.run()
    lines = transcript.lines
    load.resynchronize()
    lines.append(dump)
    told_anew = load.cached_blocks()
    load.reset()
    lines.append(dump)
    load.withdraw()
    lines.append(dump)
    *_, first, second, third, summary = judges.converse(judge, "radix_tree", lines)
    assert sorted(first, key=str) == sorted(told_anew, key=str) != []
    assert second == third == []
    assert summary == {"events": transcript.num_events, "errors": []}


def test_the_judge_would_tell_an_event_that_is_wrong(judges):
    block = {"block_hash": 1, "tokens_hash": 1}
    wrong = [
        (0, {"stored": {"parent_hash": 99, "blocks": [block]}}),
        (1, {"removed": {"block_hashes": [7]}}),
        (5, "cleared"),
    ]
    lines = [
        json.dumps(
            {"worker_id": 1, "event": {"event_id": event_id, "data": data, "dp_rank": 0}}
        ).encode()
        for event_id, data in wrong
    ]
    *_, summary = judges.converse(CURRENT, "radix_tree", lines)
    assert len(summary["errors"]) == 3
