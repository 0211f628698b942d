"""Your module inside the whole engine, and beside it the reference: same tokens? how fast?

Each side is a process of its own. The numbers are of a small run on this machine, the better of
two: they show where time and memory go, they are no benchmark.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.borrow import borrow, borrow_all, whose
from labkit.course.console import Screen, command
from labkit.course.manifest import Course, Phase
from labkit.course.skeleton import todo_in
from labkit.inside import child
from labkit.learner.bottlenecks import ABOUT_BOTTLENECKS, measure_bottlenecks
from labkit.learner.divergence import reason
from labkit.learner.drafts import ABOUT_DRAFTS, measure_drafts
from labkit.learner.hybrids import ABOUT_HYBRIDS, measure_hybrids
from labkit.learner.mixtures import ABOUT_MIXTURES, measure_mixtures
from labkit.learner.pictures import measure_pictures
from labkit.learner.policies import ABOUT_POLICIES, measure_policies
from labkit.learner.quantized import measure_schemes
from labkit.learner.ranks import ABOUT_RANKS, measure_ranks
from labkit.learner.service import ABOUT_SERVICE, measure_service
from labkit.learner.transfers import ABOUT_TRANSFERS, measure_transfers
from labkit.process import overlay
from labkit.process.worker import Worker, WorkerError

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
SMALL: dict[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks": 12,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "dtype": "float32",
}
KERNEL_TOKENS = 4
QUESTIONS = ("What is the capital of Italy?", "What is 4 + 5?", "Where does an owl live?")
ADAPTER_TOKENS = 28
RUN_SECONDS = 120.0
ROUNDS = 2


def run_command(course: Course, phases: Sequence[Phase], words: Sequence[str]) -> int:
    """`run --labs 02,03 -- -m mini_vllm …`: a Python command with the learner's modules in
    place; what is not written yet is the reference's, which stderr says."""
    mapping, told = borrow_all(phases, overlay.mapping_for(phases))
    if mapping:
        print(told, file=sys.stderr, flush=True)
    env = overlay.environment(course.root, mapping)
    return subprocess.call([sys.executable, *words], env=env)


def measure(workload: str, modules: Sequence[str]) -> dict[str, Any]:
    """In a worker: run a workload and measure it.

    Returns:
        tokens: one list of token ids a prompt. names: what these lists are. rows: [title, value]
        for the screen. seconds: of the measured part. errors: of requests that failed. used: those
        of `modules` that took part.
    """
    import torch

    torch.set_num_threads(1)
    result = WORKLOADS[workload]()
    return result | {"used": [module for module in modules if module in sys.modules]}


def measure_engine() -> dict[str, Any]:
    """The whole engine on a pool that is a little too small. KV waste is the share of allocated
    slots that hold no token, averaged over the steps."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM("storyteller", **SETTINGS)
    prompts = [SHARED + prompt for prompt in PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    llm.generate(prompts[:1], params, use_tqdm=False)
    llm.engine.reset_stats()
    waste: list[float] = []

    scheduler = llm.engine.core.scheduler

    def watch(plan: Any, outputs: Any, seconds: float, stats: Any) -> None:
        manager = scheduler.kv_cache_manager
        held = [(len(manager.get_block_ids(r.request_id)), r) for r in scheduler.running]
        slots = sum(count for count, _ in held) * SETTINGS["block_size"]
        if slots:
            waste.append(1 - sum(r.num_computed_tokens for _, r in held) / slots)

    llm.engine.core.observers.append(watch)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    figures = llm.engine.stats.summary()
    rows = [[title, form.format(figures.get(key, 0) * factor)] for title, key, factor, form in ROWS]
    rows.append(["KV waste", f"{sum(waste) / max(len(waste), 1):.1%}"])
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "names": [f"prompt {i}" for i in range(len(outputs))],
        "errors": [str(output.error) for output in outputs if output.error],
        "rows": rows,
        "seconds": figures["seconds"],
    }


RECORDS = 20
RECORD_PROMPT = "Write a JSON record for a person named Ada."
RECORD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 24},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def measure_kernels() -> dict[str, Any]:
    """The smallest model, with attention in plain torch and as Triton kernels. Without a GPU the
    kernels are interpreted, so it computes few tokens."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before the engine imports Triton
    from mini_vllm import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=KERNEL_TOKENS, ignore_eos=True)
    tokens, names, errors, seconds = [], [], [], {}
    for backend in ("reference", "triton"):
        llm = LLM("storyteller-draft", **SMALL, attention_backend=backend)
        begin = time.perf_counter()
        outputs = llm.generate(list(PROMPTS[:2]), params, use_tqdm=False)
        seconds[backend] = time.perf_counter() - begin
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
        names += [f"prompt {i}, attention backend {backend}," for i in range(len(outputs))]
        errors += [str(output.error) for output in outputs if output.error]
    rows = [[f"seconds, {backend}", f"{took:.2f}"] for backend, took in seconds.items()]
    result = {"tokens": tokens, "names": names, "errors": errors, "rows": rows}
    return result | {"seconds": sum(seconds.values())}


def measure_naive() -> dict[str, Any]:
    """One request through the two loops of phase 01, without a cache and with one."""
    from transformers import AutoTokenizer

    from mini_vllm import bundled
    from mini_vllm.engine import naive
    from mini_vllm.model.build import load_model

    model = load_model(bundled.path("storyteller"), dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(bundled.path("storyteller"))
    prompt = tokenizer.encode(SHARED + PROMPTS[0])
    loops = {"no cache": naive.greedy_without_cache, "cache": naive.greedy_with_cache}
    tokens, seconds = [], {}
    for name, loop in loops.items():
        loop(model, prompt, 2)
        begin = time.perf_counter()
        tokens.append([int(token) for token in loop(model, prompt, MAX_TOKENS)])
        seconds[name] = time.perf_counter() - begin
    rows = [[f"tokens/s, {name}", f"{MAX_TOKENS / took:.1f}"] for name, took in seconds.items()]
    rows.append(["cache is faster", f"{seconds['no cache'] / seconds['cache']:.1f}x"])
    result = {"tokens": tokens, "names": [f"the loop with {n}" for n in loops], "errors": []}
    return result | {"rows": rows, "seconds": sum(seconds.values())}


def measure_adapters() -> dict[str, Any]:
    """The base and three adapters answer the same questions, in one batch: first with a slot for
    each, then with one for all."""
    from mini_vllm import LLM, SamplingParams, bundled
    from mini_vllm.lora.request import LoRARequest

    adapters: list[Any] = [
        LoRARequest(name, number, str(bundled.adapter_path(name)))
        for number, name in enumerate(bundled.ADAPTERS, 1)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=ADAPTER_TOKENS)
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "said": [], "rows": []}
    result["notes"] = []
    begin = time.perf_counter()
    for slots in (len(adapters), 1):
        llm = LLM("storyteller", dtype="float32", enable_lora=True, max_loras=slots)
        executor: Any = llm.engine.core.executor
        manager, held = executor.worker.lora, list[list[str | None]]()
        llm.engine.client.observers.append(
            lambda *_, manager=manager, held=held: held.append(list(manager.slots))
        )
        asked = [(question, lora) for question in QUESTIONS for lora in (None, *adapters)]
        prompts = [llm.apply_chat_template([{"role": "user", "content": q}]) for q, _ in asked]
        loras = [lora for _, lora in asked]
        outputs = llm.generate(prompts, params, lora_request=loras, use_tqdm=False)
        names = ["base" if lora is None else lora.lora_name for lora in loras]
        result["tokens"] += [list(output.outputs[0].token_ids) for output in outputs]
        result["names"] += [f"{name}, {slots} slots, prompt {i}" for i, name in enumerate(names)]
        result["errors"] += [str(output.error) for output in outputs if output.error]
        if slots > 1:
            texts = [output.outputs[0].text.strip() for output in outputs]
            result["said"] = [f"{n:8}{text}" for n, text in zip(names, texts, strict=True)]
        stats = llm.engine.stats.summary()
        title = f"{slots} slot" + "s" * (slots > 1)
        result["notes"] += [f"{title:8}{line}" for line in who_sat_where(held)]
        result["rows"] += [
            [f"{title}: steps", f"{stats['steps']:.0f}"],
            [f"{title}: copies", f"{manager.num_activations}"],
        ]
    return result | {"seconds": time.perf_counter() - begin}


def who_sat_where(held: list[list[str | None]]) -> list[str]:
    """What the slots held, a line for each stretch of steps: "steps 1-20: pirate | json"."""
    lines, first = [], 1
    for slots, steps in itertools.groupby(held):
        last = first + len(list(steps)) - 1
        names = [key.rpartition("@")[0] if key else "none" for key in slots]
        lines.append(f"steps {first}-{last}: {' | '.join(names)}")
        first = last + 1
    return lines


def measure_structured() -> dict[str, Any]:
    """A record asked for in words alone, and with the grammar of its schema in force."""
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.sampling_params import StructuredOutputsParams

    llm = LLM("storyteller", num_gpu_blocks=512, max_num_seqs=RECORDS)
    asked = [{"role": "user", "content": RECORD_PROMPT}]
    tokens, names, errors, rows, seconds = [], [], [], [], 0.0
    for temperature in (0.7, 1.5):
        for name, constraint in (
            ("free", None),
            ("held", StructuredOutputsParams(json=RECORD_SCHEMA)),
        ):
            params = [
                SamplingParams(
                    temperature=temperature,
                    seed=seed,
                    max_tokens=128,
                    structured_outputs=constraint,
                )
                for seed in range(RECORDS)
            ]
            begin = time.perf_counter()
            outputs = llm.chat([asked] * RECORDS, params, use_tqdm=False)
            seconds += time.perf_counter() - begin
            ended = [o.outputs[0] for o in outputs if o.outputs[0].finish_reason == "stop"]
            valid = sum(is_record(output.text) for output in ended)
            rows.append([f"{name}, T {temperature}: valid", f"{valid} of {RECORDS}"])
            rows.append([f"{name}, T {temperature}: ended", f"{len(ended)} of {RECORDS}"])
            tokens += [list(output.outputs[0].token_ids) for output in outputs]
            names += [f"{name} record {seed} at {temperature}" for seed in range(RECORDS)]
            errors += [str(output.error) for output in outputs if output.error]
    result = {"tokens": tokens, "names": names, "errors": errors, "rows": rows}
    return result | {"seconds": seconds}


def is_record(text: str) -> bool:
    """Whether a text is what RECORD_SCHEMA asks for."""
    try:
        record = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(record, dict)
        and record.keys() == {"name", "age", "city"}
        and isinstance(record["name"], str)
        and isinstance(record["city"], str)
        and type(record["age"]) is int
        and 0 <= record["age"] <= 120
    )


WORKLOADS: dict[str, Callable[[], dict[str, Any]]] = {
    "engine": measure_engine,
    "kernels": measure_kernels,
    "naive": measure_naive,
    "adapters": measure_adapters,
    "quantized": measure_schemes,
    "structured": measure_structured,
    "service": measure_service,
    "pictures": measure_pictures,
    "drafts": measure_drafts,
    "hybrids": measure_hybrids,
    "bottlenecks": measure_bottlenecks,
    "policies": measure_policies,
    "ranks": measure_ranks,
    "transfers": measure_transfers,
    "mixtures": measure_mixtures,
}
ABOUT = {
    "engine": f"{len(PROMPTS)} prompts, {MAX_TOKENS} tokens each, greedy, {SETTINGS}",
    "kernels": f"2 prompts, {KERNEL_TOKENS} tokens each, greedy, attention in torch and in kernels",
    "adapters": "the base and three adapters, the same questions, in one batch",
    "naive": f"1 prompt, {MAX_TOKENS} tokens, greedy, through each of the two loops",
    "quantized": "1 prompt, 32 tokens, greedy, float32, the bundled model in every scheme",
    "service": ABOUT_SERVICE,
    "pictures": "questions about three pictures: at once, in chunks, and without a prefix cache",
    "drafts": ABOUT_DRAFTS,
    "hybrids": ABOUT_HYBRIDS,
    "bottlenecks": ABOUT_BOTTLENECKS,
    "policies": ABOUT_POLICIES,
    "ranks": ABOUT_RANKS,
    "transfers": ABOUT_TRANSFERS,
    "mixtures": ABOUT_MIXTURES,
    "structured": f"{RECORDS} records at each of two temperatures, free and held by a schema",
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
    the same. It runs at every stage: a function that is not written yet is the reference's."""
    out = Screen()
    mapping, borrowed = borrow(phase, overlay.mapping_for([phase]))
    out.line(f"run-{phase.number} · {phase.title} inside the engine", "bold")
    out.line(ABOUT[phase.run], "dim")
    if not mapping:
        out.line("LAB=reference: both sides are the reference", "dim")
    else:
        out.line(whose(phase, borrowed), "dim")
    try:
        yours, reference = _best_of(phase, mapping)
    except WorkerError as error:
        return show_unfinished(out, phase, error)
    return show_results(out, phase, yours, reference)


def _best_of(phase: Phase, mapping: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both sides in turn, each ROUNDS times; of each the fastest run, for a busy machine only ever
    makes a run slower."""
    limits = child.Limits(RUN_SECONDS, 0)
    runs: dict[str, list[dict[str, Any]]] = {"yours": [], "reference": []}
    mine = Worker(phase.root, mapping, limits, "yours")
    theirs = Worker(phase.root, {}, limits, "reference")
    with mine, theirs:
        for _ in range(ROUNDS):
            for worker in (mine, theirs):
                modules = list(phase.modules)
                runs[worker.name].append(
                    worker.call("labkit.learner.ab:measure", workload=phase.run, modules=modules)
                )
    yours, reference = (min(side, key=lambda run: run["seconds"]) for side in runs.values())
    return yours, reference


def show_unfinished(out: Screen, phase: Phase, error: WorkerError) -> int:
    """It raised, hung or died; a hole that is still open is no accident."""
    todo = todo_in(error.detail["message"]) if error.kind == "error" else ""
    if todo:
        return show_todo(out, phase, todo)
    out.line("✗ The run did not finish.", "red")
    out.line(reason(error, phase.root), indent=2)
    out.line(f"next: {command(phase, 'lab')} judges it piece by piece", "bold")
    return 1


def show_todo(out: Screen, phase: Phase, todo: str) -> int:
    out.line("○ It stopped at a function that is not written yet:", "yellow")
    out.line(todo, indent=2)
    out.line(f"next: write it, then {command(phase, 'lab')}", "bold")
    return 1


def show_results(
    out: Screen, phase: Phase, yours: dict[str, Any], reference: dict[str, Any]
) -> int:
    todo = next(filter(None, map(todo_in, yours["errors"])), "")
    if todo:
        return show_todo(out, phase, todo)
    idle = [phase.lab_path(module) for module in phase.modules if module not in yours["used"]]
    same = yours["tokens"] == reference["tokens"] and not yours["errors"]
    out.line()
    rows = [("", "yours", "reference")] + [
        (title, mine, theirs)
        for (title, mine), (_, theirs) in zip(yours["rows"], reference["rows"], strict=True)
    ]
    first = max(20, *(len(title) + 1 for title, _, _ in rows))
    width = max(14, *(len(cell) + 2 for row in rows for cell in row[1:]))
    for title, mine, theirs in rows:
        out.line(f"{title:<{first}}{mine:>{width}}{theirs:>{width}}", "" if title else "dim")
    for note in yours.get("notes", ()):
        out.line(note, "dim")
    out.line()
    for line in yours.get("said", ()):
        out.line(line, indent=2)
    for path in idle:
        out.line(f"{path} took no part in this run", "yellow")
    if len(idle) == len(phase.modules):
        return 1
    if same:
        out.line("✓ the same tokens, every one of them", "green")
        return 0
    show_difference(out, yours, reference)
    if phase.run == "engine":
        out.line(f"next: make trace-diff-{phase.number} finds the step where it begins", "bold")
    else:
        out.line(f"next: {command(phase, 'lab')} judges it piece by piece", "bold")
    return 1


def show_difference(out: Screen, yours: dict[str, Any], reference: dict[str, Any]) -> None:
    """What went wrong in requests, and the first token that is another."""
    for error in dict.fromkeys(yours["errors"]):
        out.line(f"✗ {error}", "red")
    sides = zip(yours["names"], yours["tokens"], reference["tokens"], strict=False)
    for name, mine, theirs in sides:
        if mine != theirs:
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), -1)
            at = min(len(mine), len(theirs)) if at < 0 else at
            out.line(f"✗ {name} differs from output token {at} on:", "red")
            out.pair("yours", str(mine[at : at + 8]), "red", 4)
            out.pair("expected", str(theirs[at : at + 8]), "green", 4)
            return
