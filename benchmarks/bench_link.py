"""What it costs to carry KV from one engine to another, in two processes of this machine.

    python -m benchmarks.bench_link               measure, fit, judge
    python -m benchmarks.bench_link --save        ... and keep it, for the arena's fleets

One engine computes a prompt and holds its KV; another, in a process of its own, fetches it over TCP
and makes one token. The transfer is that time, less what the token takes when the KV is there
already. Half of the lengths are fitted, seconds = trip + tokens * price; the others judge. They
also judge the fleet's clock: first the prompt, then the transfer, then a step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from labkit.arena.cost import nonnegative_least_squares
from labkit.arena.measure import machine
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm import LLM, SamplingParams

PATH = ROOT / "benchmarks" / "results" / "arena" / "link.json"
FITTED = (32, 128, 384, 768, 1280, 1792)
JUDGED = (64, 256, 512, 1024, 1536)
MODEL, BLOCK, BYTES_PER_TOKEN = "storyteller", 16, 4096


def make_engine(role: str) -> LLM:
    config = {"kv_connector": "P2pTcpConnector", "kv_role": role, "kv_load_failure_policy": "fail"}
    return LLM(
        MODEL, dtype="float32", block_size=BLOCK, num_gpu_blocks=512, max_model_len=2048,
        max_num_batched_tokens=2048, skip_tokenizer_init=True, kv_transfer_config=config,
    )  # fmt: skip


def one_token(llm: LLM, prompt: list[int], kv_transfer_params: Any = None) -> tuple[float, Any]:
    """Seconds to a token, and the output."""
    extra = {"kv_transfer_params": kv_transfer_params} if kv_transfer_params else None
    params = SamplingParams(temperature=0, max_tokens=1, extra_args=extra)
    start = time.perf_counter()
    output = llm.generate([prompt], params, use_tqdm=False)[0]
    if output.error:
        raise SystemExit(f"the transfer failed: {output.error}")
    return time.perf_counter() - start, output


def prefill_engine(pipe: Connection, threads: int) -> None:
    """The other process: computes the prompts that come, and says where their KV is."""
    import torch

    torch.set_num_threads(threads)
    llm = make_engine("kv_producer")
    one_token(llm, [1] * 64)
    pipe.send("ready")
    while (prompt := pipe.recv()) is not None:
        seconds, output = one_token(llm, prompt, {"do_remote_decode": True})
        pipe.send((seconds, output.kv_transfer_params))


def measure(lengths: Sequence[int], rounds: int) -> dict[int, dict[str, float]]:
    """Median seconds by length: `prefill`, `fetch` (transfer and a token), `token`."""
    import torch

    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=prefill_engine, args=(theirs, 1), daemon=True)
    process.start()
    llm = make_engine("kv_consumer")
    one_token(llm, [1] * 64)
    pipe.recv()
    times: dict[int, list[tuple[float, float, float]]] = {n: [] for n in lengths}
    for number in range(rounds + 1):
        for length in lengths:
            prompt = [(7 * i + 131 * number + length) % 1000 + 1 for i in range(length)]
            pipe.send(prompt)
            prefill, told = pipe.recv()
            fetch, output = one_token(llm, prompt, told)
            if output.num_cached_tokens != length:
                raise SystemExit(f"{output.num_cached_tokens} of {length} tokens arrived")
            token, _ = one_token(llm, prompt)
            if number:  # the first round warms up
                times[length].append((prefill, fetch, token))
    pipe.send(None)
    process.join()
    names = ("prefill", "fetch", "token")
    return {
        n: dict(zip(names, map(statistics.median, zip(*rows, strict=True)), strict=True))
        for n, rows in times.items()
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("bench_link", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help=f"write {PATH.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    found = measure((*FITTED, *JUDGED), options.rounds)
    carried = {n: max(row["fetch"] - row["token"], 1e-6) for n, row in found.items()}
    matrix = np.array([[1.0, n] for n in FITTED])
    target = np.array([carried[n] for n in FITTED])
    trip, token = (float(f"{x:.4g}") for x in nonnegative_least_squares(matrix, target))
    print("tokens  prefill  transfer   (ms)   predicted   first token   predicted")
    errors, wholes = [], []
    for n in sorted(found):
        row, guess = found[n], trip + n * token
        whole, added = row["prefill"] + row["fetch"], row["prefill"] + guess + row["token"]
        if n in JUDGED:
            errors.append(abs(guess - carried[n]) / carried[n])
            wholes.append(abs(added - whole) / whole)
        print(f"{n:6}{1e3 * row['prefill']:9.1f}{1e3 * carried[n]:10.2f}{1e3 * guess:19.2f}"
              f"{1e3 * whole:14.1f}{1e3 * added:12.1f}")  # fmt: skip
    error, whole_error = statistics.median(errors), statistics.median(wholes)
    speed = BYTES_PER_TOKEN / token / 1e6
    print(f"\na trip {1e6 * trip:.0f} us, a token {1e6 * token:.2f} us ({speed:,.0f} MB/s)")
    print(f"on lengths not fitted: transfer off by {error:.0%}, first token by {whole_error:.0%}")
    if options.save:
        record = {
            "seconds_per": {"trip": trip, "token": token},
            "median_error": {"transfer": round(error, 3), "first_token": round(whole_error, 3)},
            "fitted": FITTED, "judged": JUDGED, "rounds": options.rounds, "model": MODEL,
            "machine": machine(),
        }  # fmt: skip
        write_text(PATH, json.dumps(record, indent=1) + "\n")
        print(f"wrote {PATH.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
