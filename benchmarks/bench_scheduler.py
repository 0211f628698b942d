"""Time of one scheduling step: ours, and vLLM's own scheduler where it is installed.

A step is `schedule()` and `update_from_output()` while N requests decode, with a block size of 16
and prefix caching on. No model runs: every request gets the same token, and making the runner's
answer is not timed. Each engine has a process of its own, and they take turns (A B A B ...).
Sixteen steps in a row make one measurement, so that steps which fill blocks are counted too.

    python -m benchmarks.bench_scheduler
    python -m benchmarks.bench_scheduler --requests 64 1024 --steps 500 --rounds 5
    python -m benchmarks.bench_scheduler --instructions --against ../older
    python -m labkit conformance --install        makes the environment that vLLM runs in

`--instructions` counts the processor's instructions with valgrind: other programs do not change
them. Whole runs of one program differed by some ten million, so let the steps take far more: 512
steps of 64 requests take a thousand million. `--against` counts another checkout, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.arena.measure import processor
from labkit.course.files import write_text
from labkit.course.root import ROOT
from labkit.trace import oracle
from labkit.trace.format import Add, Prompt, TraceConfig, prompt_tokens

PROMPT_LEN = 100
WARM_UP = 32
"""Steps before the clock starts: two blocks are filled by then."""
GROUP = 16
"""Steps per measurement: one block of every request is filled in each."""

Times = tuple[float, float]
"""Seconds in schedule() and in update_from_output()."""
StepFunction = Callable[[], Times]


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser("bench_scheduler", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=512, help="steps per round and size")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/scheduler.json"
    )
    parser.add_argument("--instructions", action="store_true", help="count them instead of time")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="count another checkout, too"
    )
    parser.add_argument("--worker", choices=("mini_vllm", "vllm"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        return serve(options.worker)
    if options.instructions:
        roots = [ROOT, *([options.against.resolve()] if options.against else [])]
        return compare_instructions(roots, options.requests, options.steps)
    results = measure(options.requests, options.steps, options.rounds)
    print(table(results))
    if options.save:
        path = ROOT / "benchmarks" / "results" / "scheduler.json"
        facts = {"machine": machine(), "steps": options.steps, "rounds": options.rounds}
        write_text(path, json.dumps(facts | {"results": results}, indent=1) + "\n")
        print(f"\nSaved to {path.relative_to(ROOT)}")
    return 0


# ------------------------------------------------------------------ measuring


def measure(sizes: list[int], steps: int, rounds: int) -> list[dict[str, Any]]:
    """Let the engines take turns; returns one row per size and engine, times in microseconds."""
    engines = {"mini_vllm": sys.executable}
    if oracle.installed():
        engines["vllm"] = str(oracle.python())
    else:
        print("vLLM is not installed here: python -m labkit conformance --install\n")
    workers = {name: Worker(name, python) for name, python in engines.items()}
    rows = []
    for size in sizes:
        samples: dict[str, list[Times]] = {name: [] for name in workers}
        for _ in range(rounds):
            for name, worker in workers.items():
                samples[name] += worker.run(size, steps)
        rows += [row(name, size, samples[name]) for name in workers]
    for worker in workers.values():
        worker.close()
    return rows


def row(engine: str, size: int, samples: list[Times]) -> dict[str, Any]:
    """Medians over all measurements."""
    schedule, update = (statistics.median(part) * 1e6 for part in zip(*samples, strict=True))
    total = statistics.median(sum(pair) for pair in samples) * 1e6
    return {
        "engine": engine,
        "requests": size,
        "schedule_us": round(schedule, 1),
        "update_us": round(update, 1),
        "step_us": round(total, 1),
    }


class Worker:
    """An engine in a process of its own; it measures when it is told to."""

    def __init__(self, engine: str, python: str) -> None:
        self.engine = engine
        env = os.environ | {"PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.bench_scheduler", "--worker", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
            cwd=ROOT,
        )

    def run(self, size: int, steps: int) -> list[Times]:
        """Time `steps` steps with `size` requests."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{size} {steps}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker of {self.engine} has died; run it by hand: --worker")
        return [(schedule, update) for schedule, update in json.loads(answer)]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def serve(engine: str) -> int:
    """In the worker: read `size steps` lines, answer with the times per step."""
    build = {"mini_vllm": build_mini_vllm, "vllm": build_vllm}[engine]
    for line in sys.stdin:
        size, steps = map(int, line.split())
        print(json.dumps(time_steps(build(size, steps), steps)), flush=True)
    return 0


def time_steps(step: StepFunction, steps: int) -> list[Times]:
    """Mean times of groups of steps, after a warm-up."""
    for _ in range(WARM_UP):
        step()
    gc.collect()
    gc.freeze()  # what the requests hold is not garbage; both engines are spared its scan
    groups = []
    for _ in range(max(1, steps // GROUP)):
        times = [step() for _ in range(GROUP)]
        groups.append((sum(t[0] for t in times) / GROUP, sum(t[1] for t in times) / GROUP))
    gc.unfreeze()
    return groups


# ------------------------------------------------------------------ counting

COUNTED = """
import sys
sys.path.insert(0, ".")
from benchmarks.bench_scheduler import build_mini_vllm, time_steps
time_steps(build_mini_vllm({size}, {most}), {steps})
"""


def compare_instructions(roots: Sequence[Path], sizes: list[int], steps: int) -> int:
    """Print the instructions of a step for each size and checkout; the ratio is to the last."""
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed; run: apt install valgrind")
    for root in roots:
        counted(root, 1, GROUP, GROUP)  # compiles modules, which would count in one run only
    for size in sizes:
        counts = [instructions(root, size, steps) for root in roots]
        for root, count in zip(roots, counts, strict=True):
            print(f"{size:>8}  {count:>14,.0f}  {count / counts[-1]:.3f}  {root}", flush=True)
    return 0


def instructions(root: Path, size: int, steps: int) -> float:
    """Instructions of a step of the checkout at `root`: those of a run of more steps, less those of
    a run of few."""
    few, many = (counted(root, size, steps + GROUP, each) for each in (GROUP, steps + GROUP))
    return (many - few) / (steps // GROUP * GROUP)


def counted(root: Path, size: int, most: int, steps: int) -> int:
    """Instructions of a whole run. A fixed seed of hashes makes runs alike."""
    program = COUNTED.format(size=size, most=most, steps=steps)
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = subprocess.run(
        [*tool, sys.executable, "-c", program],
        cwd=root,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


# ------------------------------------------------------------------ the engines


def workload(size: int, steps: int) -> tuple[TraceConfig, list[Add]]:
    """Limits that let all requests decode together, and the requests."""
    tokens = PROMPT_LEN + steps + WARM_UP + 2 * GROUP
    config = TraceConfig(
        max_num_batched_tokens=size * PROMPT_LEN,
        max_num_seqs=size,
        max_model_len=tokens,
        num_gpu_blocks=size * (tokens // 16 + 1) + 1,
    )
    adds = [Add(f"r{i}", Prompt(PROMPT_LEN, seed=i), max_tokens=tokens) for i in range(size)]
    return config, adds


def build_mini_vllm(size: int, steps: int) -> StepFunction:
    """One step of our scheduler, ready to be called."""
    from labkit.trace.runner import ReferenceSubject

    config, adds = workload(size, steps)
    subject = ReferenceSubject(config)
    for add in adds:
        subject.add(add, prompt_tokens(add.prompt, config.vocab_size))
    scheduler = subject.scheduler

    def step() -> Times:
        begin = time.perf_counter()
        output = scheduler.schedule()
        planned = time.perf_counter()
        tokens = {request_id: [7] for request_id in output.num_scheduled_tokens}
        sampled = time.perf_counter()
        scheduler.update_from_output(output, tokens)
        return planned - begin, time.perf_counter() - sampled

    return step


def build_vllm(size: int, steps: int) -> StepFunction:
    """One step of vLLM's scheduler, ready to be called."""
    from vllm.v1.outputs import ModelRunnerOutput

    from labkit.trace.vllm_oracle import VllmSubject

    config, adds = workload(size, steps)
    subject = VllmSubject(config)
    for add in adds:
        subject.add(add, prompt_tokens(add.prompt, config.vocab_size))
    scheduler = subject.scheduler

    def step() -> Times:
        begin = time.perf_counter()
        output = scheduler.schedule()
        planned = time.perf_counter()
        ids = list(output.num_scheduled_tokens)
        answer = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        sampled = time.perf_counter()
        scheduler.update_from_output(output, answer)
        return planned - begin, time.perf_counter() - sampled

    return step


# ------------------------------------------------------------------ what is printed


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, with vLLM's time over ours where both were measured."""
    ours = {r["requests"]: r["step_us"] for r in rows if r["engine"] == "mini_vllm"}
    lines = [
        f"{'requests':>8}  {'engine':<10}{'schedule':>11}{'update':>11}{'step':>11}{'ratio':>8}"
    ]
    for r in rows:
        times = "".join(f"{r[k]:>8,.0f} us" for k in ("schedule_us", "update_us", "step_us"))
        ratio = f"{r['step_us'] / ours[r['requests']]:>7.2f}x"
        lines.append(f"{r['requests']:>8}  {r['engine']:<10}{times}{ratio}")
    return "\n".join([*lines, "", "Medians; the ratio is to mini_vllm."])


def machine() -> dict[str, Any]:
    """Where a saved result comes from."""
    return {
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
