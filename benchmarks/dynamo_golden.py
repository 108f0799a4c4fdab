"""Makes the golden numbers of NVIDIA Dynamo's offline replay that the simulator is held to.

Run it with an interpreter that has ai-dynamo 1.6.1; this project never imports it:

    python -m venv dynamo && dynamo/bin/pip install --no-deps ai-dynamo==1.6.1 \
        ai-dynamo-runtime==1.6.1
    dynamo/bin/pip install 'aiohttp<4' 'kubernetes<33' msgspec 'prometheus-client<1' pyzmq \
        'redis<9' tqdm 'transformers>=4.56,<6' zstandard pydantic==2.13.5 uvloop
    dynamo/bin/python benchmarks/dynamo_golden.py cut    > tests/unit/simulator/data/dynamo_cut.json
    dynamo/bin/python benchmarks/dynamo_golden.py kv -- --traces DIR --repeats 5 \
        > tests/unit/simulator/data/dynamo_kv_1_6_1.json
    dynamo/bin/python benchmarks/dynamo_golden.py one -- --isl 1000 --osl 100 --rate 10

`cut` runs the cases below on the trace in the tests' data; `kv` repeats the golden runs with kv
routing, which draws lots, on the traces in DIR (set DYN_LOG=error); `one` runs a single case,
which takes the flags of `mocker-simulator run` that matter here, and prints its figures.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

CUT = Path(__file__).parent.parent / "tests/unit/simulator/data/mooncake_cut.jsonl"
WHOLE = CUT.with_name("dynamo_replay_1_6_1.json")
ENGINE_FLAGS = {
    "num_gpu_blocks": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "preemption_mode": str,
    "kv_transfer_bandwidth": float,
    "kv_bytes_per_token": int,
    "kv_transfer_timing_mode": str,
}
CUT_CASES = {
    "one worker": "--workers 1",
    "four workers": "--workers 4",
    "small cache": "--workers 1 --num-gpu-blocks 2600",
    "small cache, fifo": "--workers 1 --num-gpu-blocks 2600 --preemption-mode fifo",
    "no prefix caching": "--workers 2 --no-enable-prefix-caching",
    "few sequences": "--workers 2 --max-num-seqs 6",
    "small passes": "--workers 2 --max-num-batched-tokens 1024",
    "blocks of 512": "--workers 2 --block-size 512 --num-gpu-blocks 2048",
    "closed loop": "--workers 2 --concurrency 24",
    "disaggregated": "--prefill 2 --decode 2",
    "slow transfer": "--prefill 2 --decode 2 --kv-transfer-bandwidth 16 "
    "--kv-bytes-per-token 131072",
    "slow transfer of what is missing": "--prefill 2 --decode 1 --kv-transfer-bandwidth 16 "
    "--kv-bytes-per-token 131072 --kv-transfer-timing-mode destination_missing",
}
FIGURES = {
    "num_requests": "completed_requests",
    "total_input_tokens": "total_input_tokens",
    "total_output_tokens": "total_output_tokens",
    "duration_ms": "duration_ms",
    "mean_ttft_ms": "mean_ttft_ms",
    "mean_tpot_ms": "mean_tpot_ms",
    "mean_itl_ms": "mean_itl_ms",
    "mean_e2e_ms": "mean_e2e_latency_ms",
    "prefix_cache_reused_ratio": "prefix_cache_reused_ratio",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["cut", "kv", "one"])
    arguments, rest = parser.parse_known_args()
    if arguments.what == "one":
        flags = parse([flag for flag in rest if flag != "--"])
        print(json.dumps(replay(flags, with_requests=False)))
        return 0
    if arguments.what == "kv":
        print(json.dumps(repeat_kv([flag for flag in rest if flag != "--"])))
        return 0
    cases = {}
    for name, text in CUT_CASES.items():
        flags = parse(["--trace", str(CUT), *text.split()])
        cases[name] = {"args": text.split(), **replay(flags, with_requests=True)}
    source = "ai-dynamo 1.6.1, offline replay, engine type vllm, round-robin"
    print(json.dumps({"source": source, "trace": CUT.name, "cases": cases}))
    return 0


def repeat_kv(flags: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(flags)
    runs = []
    for golden in json.loads(WHOLE.read_text())["runs"]:
        args = list(golden["args"])
        if "kv" not in args:
            continue
        if "--trace" in args:
            at = args.index("--trace") + 1
            args[at] = str(arguments.traces / args[at])
        repeats = [replay(parse(args), with_requests=False) for _ in range(arguments.repeats)]
        for figures in repeats:
            del figures["wall_s"]
        runs.append({"args": golden["args"], "repeats": repeats})
    return {"source": "ai-dynamo 1.6.1, offline replay, engine type vllm, kv router", "runs": runs}


def parse(flags: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--isl", "--osl", "--limit", "--workers", "--prefill", "--decode"):
        parser.add_argument(name, type=int)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--concurrency", type=int)
    for name in ("--rate", "--interval-ms"):
        parser.add_argument(name, type=float)
    parser.add_argument("--shared-prefix-ratio", type=float, default=0.0)
    parser.add_argument("--prefix-groups", type=int, default=0)
    parser.add_argument("--trace")
    parser.add_argument("--routing", default="round-robin")
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    for name, kind in ENGINE_FLAGS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=kind)
    return parser.parse_args(flags)


def engine(flags: argparse.Namespace, role: str) -> dict[str, object]:
    given = {name: getattr(flags, name) for name in (*ENGINE_FLAGS, "enable_prefix_caching")}
    return {
        "engine": {
            "backend": "vllm",
            "worker_type": role,
            "block_size": flags.block_size,
            "num_gpu_blocks": 16384,
            **{name: value for name, value in given.items() if value is not None},
        }
    }


def replay(flags: argparse.Namespace, *, with_requests: bool) -> dict[str, object]:
    from dynamo.replay import run_synthetic_trace_replay, run_trace_replay

    common: dict[str, object] = {
        "replay_mode": "offline",
        "router_mode": "kv_router" if flags.routing == "kv" else "round_robin",
        "replay_concurrency": flags.concurrency,
        "capture_per_request": with_requests,
    }
    if flags.prefill:
        common |= {
            "prefill_engine_args": engine(flags, "prefill"),
            "decode_engine_args": engine(flags, "decode"),
            "num_prefill_workers": flags.prefill,
            "num_decode_workers": flags.decode,
        }
    else:
        common |= {
            "extra_engine_args": engine(flags, "aggregated"),
            "num_workers": flags.workers or 1,
        }
    began = time.perf_counter()
    if flags.trace:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.writelines(Path(flags.trace).read_text().splitlines(True)[: flags.limit])
            file.flush()
            report = run_trace_replay(file.name, trace_block_size=512, **common)
    else:
        report = run_synthetic_trace_replay(
            flags.isl,
            flags.osl,
            flags.requests,
            request_rate=flags.rate,
            arrival_interval_ms=flags.interval_ms,
            shared_prefix_ratio=flags.shared_prefix_ratio,
            num_prefix_groups=flags.prefix_groups,
            **common,
        )
    wall_s = time.perf_counter() - began
    figures: dict[str, object] = {
        name: round(report.summary[theirs], 6) for name, theirs in FIGURES.items()
    }
    if not with_requests:
        return figures | {"wall_s": round(wall_s, 3)}
    keys = ("arrival_time_ms", "first_token_ms", "terminal_time_ms")
    figures["requests"] = sorted(
        [
            *(round(row[key], 6) for key in keys),
            row["input_length"],
            row["output_length"],
            row["reused_input_tokens"],
        ]
        for row in report.per_request
    )
    return figures


if __name__ == "__main__":
    sys.exit(main())
