"""What workers in processes of their own cost, and what two shards bring, at the 0.6B shape.

Each way runs in a process of its own, in turns (A B C A B C ...), and the best round of each
counts. Weights and prompts are random, output is greedy, everything is float32.

    uni            the worker in the engine's process, one thread
    mp             the same worker in a process of its own, one thread
    tp=2           two shards, one thread each: needs two free cores
    tp=2, gloo     the same, but adding up through sockets instead of shared memory
    uni, two       one worker with two threads, for comparison

    python -m benchmarks.bench_distributed            three rounds of each; prints and judges
    python -m benchmarks.bench_distributed --save     also writes benchmarks/results/

Targets: mp at least 0.9 of uni; tp=2 at least 1.3 of uni. That uni itself is as fast as before is
`python -m benchmarks.bench_offline`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.gpu.workload import SHAPE, write_model

WAYS: dict[str, dict[str, Any]] = {
    "uni": {"num_threads": 1},
    "mp": {"num_threads": 1, "distributed_executor_backend": "mp"},
    "tp=2": {"num_threads": 1, "tensor_parallel_size": 2},
    "tp=2, gloo": {
        "num_threads": 1,
        "tensor_parallel_size": 2,
        "disable_custom_all_reduce": True,
    },
    "uni, two threads": {"num_threads": 2},
}
TARGETS = {"mp": 0.9, "tp=2": 1.3}
"""Least share of the speed of "uni"."""
NUM_PROMPTS, INPUT_LEN, OUTPUT_LEN = 4, 32, 24
RESULT = Path(__file__).parent / "results" / "distributed.json"


def run_one(folder: str, way: str) -> float:
    """Output tokens a second, in this process."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        max_model_len=INPUT_LEN + OUTPUT_LEN,
        max_num_seqs=NUM_PROMPTS,
        enable_prefix_caching=False,
        **WAYS[way],
    )
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    prompts = [[7 * i + j for j in range(INPUT_LEN)] for i in range(NUM_PROMPTS)]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    llm.shutdown()
    return NUM_PROMPTS * OUTPUT_LEN / seconds


def measure(rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), SHAPE)
        for _ in range(rounds):
            for way, speeds in found.items():
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.bench_distributed",
                    "--run",
                    way,
                    folder,
                ]
                answer = subprocess.run(command, capture_output=True, text=True, check=True)
                speeds.append(float(answer.stdout.split()[-1]))
                print(f"{way:18} {speeds[-1]:8.2f} tokens/s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(run_one(args.run[1], args.run[0]))
        return 0
    found = measure(args.rounds)
    best = {way: max(speeds) for way, speeds in found.items()}
    shares = {way: best[way] / best["uni"] for way in TARGETS}
    for way, share in shares.items():
        verdict = "reached" if share >= TARGETS[way] else "MISSED"
        print(f"{way}: {share:.2f} of uni, target {TARGETS[way]}: {verdict}")
    if args.save:
        machine = {"cores": os.cpu_count(), "machine": platform.machine()}
        record = {"machine": machine, "tokens_per_second": found, "share_of_uni": shares}
        RESULT.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(shares[way] >= TARGETS[way] for way in TARGETS) else 1


if __name__ == "__main__":
    raise SystemExit(main())
