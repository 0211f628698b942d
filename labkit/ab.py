"""Your module inside the whole engine, and beside it the reference: same tokens? how fast?

Each side is a process of its own. The numbers are of one small run on this machine: they show where
time and memory go, they are no benchmark.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from labkit import child, overlay
from labkit.manifest import Course, Phase
from labkit.screen import Screen, command
from labkit.worker import Worker, WorkerError

SHARED = "Once upon a time there was a small fox who lived at the edge of a big forest. "
PROMPTS = (
    "One day the fox met a bear",
    "The fox wanted to learn to swim",
    "In the winter",
    "His best friend was a rabbit, and together they",
    "A story about",
    "The moon",
)
SETTINGS: dict[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks": 24,
    "max_num_batched_tokens": 48,
    "max_num_seqs": 6,
    "max_model_len": 256,
    "dtype": "float32",
}
MAX_TOKENS = 48
RUN_SECONDS = 120.0


def run_command(course: Course, phases: Sequence[Phase], words: Sequence[str]) -> int:
    """`run --labs 02,03 -- -m mini_vllm …`: a Python command with the learner's modules in
    place."""
    env = overlay.environment(course.root, overlay.mapping_for(phases))
    return subprocess.call([sys.executable, *words], env=env)


def measure() -> dict[str, Any]:
    """In a worker: run the workload once to warm up and once to measure.

    Returns:
        tokens: one list of token ids a prompt; figures by name, times in seconds; kv_waste: the
        share of allocated KV slots that hold no token, averaged over the steps.
    """
    import torch

    from mini_vllm import LLM, SamplingParams

    torch.set_num_threads(1)
    llm = LLM("storyteller", **SETTINGS)
    prompts = [SHARED + prompt for prompt in PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    llm.generate(prompts[:1], params, use_tqdm=False)
    llm.engine.reset_stats()
    waste: list[float] = []

    def watch(engine: Any, plan: Any, outputs: Any, seconds: float) -> None:
        manager = engine.scheduler.kv_cache_manager
        held = [(len(manager.get_block_ids(r.request_id)), r) for r in engine.scheduler.running]
        slots = sum(count for count, _ in held) * SETTINGS["block_size"]
        if slots:
            waste.append(1 - sum(r.num_computed_tokens for _, r in held) / slots)

    llm.engine.core.observers.append(watch)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    figures = llm.engine.stats.summary()
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "errors": [str(output.error) for output in outputs if output.error],
        "figures": {name: float(value) for name, value in figures.items()},
        "kv_waste": sum(waste) / len(waste) if waste else 0.0,
    }


ROWS = (
    ("tokens/s", "output_tokens_per_s", 1.0, "{:.1f}"),
    ("TTFT, median", "ttft_p50", 1e3, "{:.1f} ms"),
    ("TPOT, median", "tpot_p50", 1e3, "{:.2f} ms"),
    ("steps", "steps", 1.0, "{:.0f}"),
    ("preemptions", "preemptions", 1.0, "{:.0f}"),
    ("prefix hits", "prefix_hit_rate", 100.0, "{:.1f} %"),
)


def compare(phase: Phase) -> int:
    """`run NN`: the same workload twice, and the two results beside each other; 0 if the tokens are
    the same."""
    out, mapping = Screen(), overlay.mapping_for([phase])
    out.line(f"run-{phase.number} · {phase.title} inside the engine", "bold")
    out.line(f"{len(PROMPTS)} prompts, {MAX_TOKENS} tokens each, greedy, {SETTINGS}", "dim")
    limits = child.Limits(RUN_SECONDS, 0)
    results = {}
    for name, overlaid in (("yours", mapping), ("reference", {})):
        try:
            with Worker(phase.root, overlaid, limits, name) as worker:
                results[name] = worker.call("workload")
        except WorkerError as error:
            out.line(f"✗ {name} did not finish.", "red")
            out.line(str(error), indent=2)
            out.line(f"next: {command(phase, 'lab')} judges it piece by piece", "bold")
            return 1
    return show_results(out, phase, results["yours"], results["reference"])


def show_results(
    out: Screen, phase: Phase, yours: dict[str, Any], reference: dict[str, Any]
) -> int:
    same = yours["tokens"] == reference["tokens"] and not yours["errors"]
    out.line()
    out.line(f"{'':16}{'yours':>14}{'reference':>14}", "dim")
    for title, key, factor, form in ROWS:
        cells = [form.format(side["figures"].get(key, 0) * factor) for side in (yours, reference)]
        out.line(f"{title:16}{cells[0]:>14}{cells[1]:>14}")
    cells = [f"{side['kv_waste']:.1%}" for side in (yours, reference)]
    out.line(f"{'KV waste':16}{cells[0]:>14}{cells[1]:>14}")
    out.line()
    if same:
        out.line("✓ the same tokens, every one of them", "green")
        return 0
    for error in yours["errors"]:
        out.line(f"✗ {error}", "red")
    pairs = zip(yours["tokens"], reference["tokens"], strict=False)
    for index, (mine, theirs) in enumerate(pairs):
        if mine != theirs:
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), -1)
            at = min(len(mine), len(theirs)) if at < 0 else at
            out.line(f"✗ prompt {index} differs from output token {at} on:", "red")
            out.pair("yours", str(mine[at : at + 8]), "red", 4)
            out.pair("expected", str(theirs[at : at + 8]), "green", 4)
            break
    out.line(f"next: make trace-diff-{phase.number} finds the step where it begins", "bold")
    return 1
