"""Offline throughput, beside Hugging Face ``generate`` and, where installed, vLLM.

Each engine runs in a process of its own, in turns (A B C A B C ...), on the same workload, and
the best round of each counts: on a shared machine the best is what the code can do, the others
are what the neighbours did. Weights are random, prompts are random tokens, output is greedy with
EOS ignored, prefix caching is off. Both threads of a two-core machine are used by every engine.
An engine that needs more than ``--limit`` seconds for a round is stopped; its result is what it
did before, or that.

    python -m benchmarks.bench_offline                          all workloads
    python -m benchmarks.bench_offline --workloads tiny16 --rounds 5
    python -m benchmarks.bench_offline --vllm-python PATH       also vLLM, from its own venv
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.gpu.workload import SHAPE as QWEN3_0_6B
from labkit.gpu.workload import num_weights, write_model
from labkit.trace import real_vllm

TINY = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
    "vocab_size": 4096,
}


@dataclass(frozen=True)
class Workload:
    """``num_prompts`` prompts of ``input_len`` random tokens, ``output_len`` new tokens each."""

    shape: dict[str, int]
    num_prompts: int
    input_len: int
    output_len: int
    dtype: str = "bfloat16"

    @property
    def output_tokens(self) -> int:
        return self.num_prompts * self.output_len

    @property
    def max_model_len(self) -> int:
        return self.input_len + self.output_len

    def prompts(self) -> list[list[int]]:
        import random

        draw = random.Random(0)
        limit = self.shape["vocab_size"]
        return [
            [draw.randrange(limit) for _ in range(self.input_len)] for _ in range(self.num_prompts)
        ]

    def layer_weights(self) -> int:
        """Numbers in the weights of all layers."""
        return num_weights(self.shape) - self.head_weights()

    def head_weights(self) -> int:
        """Numbers in the output's weight, which is tied to the embedding."""
        return self.shape["hidden_size"] * self.shape["vocab_size"]

    def weight_bytes(self) -> int:
        """Bytes that every decode step must read."""
        return {"bfloat16": 2, "float32": 4}[self.dtype] * num_weights(self.shape)

    def flops(self) -> int:
        """Operations of all products with weights: every token but the last output goes through
        the layers, and every output token comes out of the head. Attention is not in it."""
        through_layers = self.num_prompts * (self.input_len + self.output_len - 1)
        return 2 * (
            through_layers * self.layer_weights() + self.output_tokens * self.head_weights()
        )


WORKLOADS = {
    "tiny16": Workload(TINY, 16, 128, 64),
    "tiny256": Workload(TINY, 256, 64, 64),
    "qwen06": Workload(QWEN3_0_6B, 16, 128, 64),
    "qwen06_1": Workload(QWEN3_0_6B, 1, 128, 64),
    "qwen06_long": Workload(QWEN3_0_6B, 4, 1024, 16),
    "qwen06_float32": Workload(QWEN3_0_6B, 16, 128, 64, "float32"),
}

Run = Callable[[], float]
"""Runs the workload once and returns the seconds it took."""


def prepare_mini_vllm(workload: Workload, folder: Path, quantization: str | None = None) -> Run:
    from mini_vllm import LLM, SamplingParams

    llm = LLM(
        folder,
        quantization=quantization,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=workload.dtype,
        max_model_len=workload.max_model_len,
        max_num_seqs=workload.num_prompts,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
    )
    params = SamplingParams(temperature=0, max_tokens=workload.output_len, ignore_eos=True)
    prompts = workload.prompts()

    def run() -> float:
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        _check_count(workload, sum(len(output.outputs[0].token_ids) for output in outputs))
        return seconds

    return run


def prepare_hf(workload: Workload, folder: Path) -> Run:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, workload.dtype)).eval()
    prompts = torch.tensor(workload.prompts())
    count = workload.output_len

    def run() -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            outputs = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                min_new_tokens=count,
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - start
        _check_count(workload, outputs[:, workload.input_len :].numel())
        return seconds

    return run


def prepare_vllm(workload: Workload, folder: Path) -> Run:
    import ctypes

    # vLLM uses Intel's AMX registers without asking the kernel for them, and is killed for it.
    ctypes.CDLL(None).syscall(158, 0x1023, 18)
    from vllm import LLM, SamplingParams, TokensPrompt  # type: ignore[import-not-found]

    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=workload.dtype,
        max_model_len=workload.max_model_len,
        max_num_seqs=workload.num_prompts,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
    )
    params = SamplingParams(
        temperature=0, max_tokens=workload.output_len, ignore_eos=True, detokenize=False
    )
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in workload.prompts()]

    def run() -> float:
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        _check_count(workload, sum(len(output.outputs[0].token_ids) for output in outputs))
        return seconds

    return run


def prepare_int8(workload: Workload, folder: Path) -> Run:
    return prepare_mini_vllm(workload, folder, "int8")


def prepare_int4(workload: Workload, folder: Path) -> Run:
    """A checkpoint of int4 weights in groups of 128; the head stays as it is."""
    from mini_vllm.quantization.oneshot.writer import PRESETS

    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = PRESETS["W4A16"].config(["lm_head"], act_order=False)
    (folder / "config.json").write_text(json.dumps(config))
    return prepare_mini_vllm(workload, folder)


ENGINES = {
    "mini_vllm": prepare_mini_vllm,
    "mini_int8": prepare_int8,
    "mini_int4": prepare_int4,
    "hf": prepare_hf,
    "vllm": prepare_vllm,
}
QUANTISED = ("qwen06", "qwen06_1")
"""Workloads that int8 and int4 weights take part in, beside bfloat16."""


def _check_count(workload: Workload, num_tokens: int) -> None:
    if num_tokens != workload.output_tokens:
        raise RuntimeError(f"{num_tokens} output tokens instead of {workload.output_tokens}")


def child(engine: str, name: str) -> None:
    """Serve one engine: for every line on stdin run once and answer with the seconds."""
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), workload.shape)
        run = ENGINES[engine](workload, Path(folder))
        run()  # warm up
        print("BENCH ready", flush=True)
        for _ in sys.stdin:
            print(f"BENCH {run()}", flush=True)


def installed_vllm() -> Path | None:
    """The interpreter that has vLLM; None where there is none, which is said aloud."""
    if (real_vllm.FOLDER / "complete").is_file():
        return real_vllm.FOLDER / "bin" / "python"
    print("vLLM takes no part: it is not installed here; `make real-vllm` does it", flush=True)
    return None


def vllm_environment(python: str) -> dict[str, str]:
    """What vLLM on CPU wants to be fast: in-process, all cores, its OpenMP, a better malloc."""
    prefix = Path(python).parents[1]
    libraries = [
        *prefix.glob("lib/libiomp5.so"),
        *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
    ]
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "LD_PRELOAD": ":".join(map(str, libraries)),
    }


class EngineProcess:
    """An engine in a process of its own that runs the workload on demand.

    Args:
        limit: seconds for a round; the first is a warm-up, and loading the model is part of it.

    Raises:
        TimeoutError: by any method, once a round has taken longer.
    """

    def __init__(self, engine: str, name: str, python: str, limit: float) -> None:
        self.limit = limit
        self.name = f"{engine} {name}"
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        if engine == "vllm":
            environment |= vllm_environment(python)
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.bench_offline", "--child", engine, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if engine == "vllm" else None,
            text=True,
            env=environment,
        )
        self._answer()

    def run(self) -> float:
        """Seconds of one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        clock = threading.Timer(self.limit, self.process.kill)
        clock.start()
        try:
            for line in self.process.stdout:
                if line.startswith("BENCH "):
                    return line.split()[1]
        finally:
            clock.cancel()
        if self.process.wait() == -signal.SIGKILL:
            raise TimeoutError(f"{self.name} took longer than {self.limit:.0f} s for a round")
        raise RuntimeError(f"{self.name} ended: its errors are above")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure(name: str, engines: dict[str, str], rounds: int, limit: float) -> dict[str, Any]:
    """Run one workload on every engine in turns; ``engines`` maps names to Python interpreters.

    An engine that is too slow in one round takes part in no further one. What it did before stays.
    """
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    processes: dict[str, EngineProcess] = {}
    for engine, path in engines.items():
        with suppress(TimeoutError):
            processes[engine] = EngineProcess(engine, name, path, limit)
    for _ in range(rounds):
        for engine, process in list(processes.items()):
            try:
                seconds[engine].append(process.run())
            except TimeoutError:
                del processes[engine]
    for process in processes.values():
        process.close()
    tokens = WORKLOADS[name].output_tokens
    return {engine: figures_of(seconds[engine], tokens, rounds, limit) for engine in engines}


def figures_of(runs: list[float], tokens: int, rounds: int, limit: float) -> dict[str, Any]:
    """The figures of one engine: of the best of the rounds that it ended, if it ended any."""
    if not runs:
        return {"no_round_in_s": limit}
    figures = {"best_s": min(runs), "tokens_per_s": tokens / min(runs), "rounds_s": runs}
    return figures if len(runs) == rounds else figures | {"stopped_after_s": limit}


def best_seconds(action: Callable[[], object], seconds: float = 3.0) -> float:
    """The shortest of as many turns as fit into ``seconds``: neighbours come and go."""
    best, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        action()
        best = min(best, time.perf_counter() - start)
    return best


def memory_bandwidth() -> float:
    """Bytes per second that a large read reaches here: sums over 512 MiB."""
    import torch

    data = torch.ones(2**27)
    return data.numel() * data.itemsize / best_seconds(data.sum)


def product_rate() -> float:
    """Operations per second that a large product reaches here, in whichever dtype is faster."""
    import torch

    squares = [torch.ones(2048, 2048, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    return max(2 * 2048**3 / best_seconds(lambda m=square: m @ m) for square in squares)


FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
"""What decides how fast products are, as /proc/cpuinfo spells it."""


def cpu() -> dict[str, Any]:
    """The processor's name, and which of `FEATURES` it has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {key.strip(): value for key, _, value in (line.partition(":") for line in lines)}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    name = facts.get("model name", "").strip() or platform.processor() or "unknown"
    return {"cpu": name, "features": [name for name in FEATURES if name in flags]}


def results_file(features: Sequence[str], benchmark: str = "offline") -> Path:
    """Where figures of this kind of machine are kept: kinds lie side by side."""
    kinds = ("amx_bf16", "avx512_bf16", "avx512f")
    kind = next((f"-{name}" for name in kinds if name in features), "")
    return Path(__file__).parent / "results" / f"{benchmark}{kind}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600, help="seconds for a round")
    parser.add_argument(
        "--engines", nargs="+", choices=("mini_vllm", "hf"), default=["mini_vllm", "hf"]
    )
    parser.add_argument("--vllm-python", help="interpreter of a venv that has vLLM")
    parser.add_argument(
        "--save",
        nargs="?",
        type=Path,
        const=results_file(cpu()["features"]),
        help="a JSON file that gets the figures and the machine; default: by the CPU's features",
    )
    parser.add_argument("--child", nargs=2, metavar=("ENGINE", "WORKLOAD"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return

    engines = dict.fromkeys(args.engines, sys.executable)
    if args.vllm_python:
        engines["vllm"] = args.vllm_python
    bandwidth, rate = memory_bandwidth(), product_rate()
    processor = cpu()
    features = ", ".join(processor["features"]) or "no vector features"
    cores = f"{processor['cpu']}, {os.cpu_count()} cores ({features})"
    print(f"{cores}, reads {bandwidth / 1e9:.1f} GB/s, multiplies at {rate / 1e9:.0f} GFLOP/s\n")
    print(f"{'workload':<16}{'engine':<12}{'best s':>9}{'tokens/s':>10}{'against hf':>12}")
    for name in args.workloads:
        taking_part = dict(engines)
        if name in QUANTISED and "mini_vllm" in engines:
            taking_part |= dict.fromkeys(("mini_int8", "mini_int4"), sys.executable)
        figures = measure(name, taking_part, args.rounds, args.limit)
        limits = machine_limits(WORKLOADS[name], bandwidth, rate)
        show(name, figures, limits)
        if args.save:
            machine = processor | {"read_bytes_per_s": bandwidth, "product_flops_per_s": rate}
            save(args.save, name, figures | limits, machine)


def machine_limits(workload: Workload, bandwidth: float, rate: float) -> dict[str, float]:
    """Output tokens per second that the machine allows, were nothing else to do: reading the
    weights once a decode step, and doing the products of prompts and outputs."""
    return {
        "bandwidth_limit_tokens_per_s": bandwidth / workload.weight_bytes() * workload.num_prompts,
        "compute_limit_tokens_per_s": rate / workload.flops() * workload.output_tokens,
    }


def show(name: str, figures: dict[str, Any], limits: dict[str, float]) -> None:
    """One line for each engine, then what the machine allows."""
    rates = {engine: own.get("tokens_per_s", 0.0) for engine, own in figures.items()}
    for engine, rate in rates.items():
        own = figures[engine]
        ratio = f"{rate / rates['hf']:.2f} x" if rate and rates.get("hf") else ""
        best = f"{own['best_s']:.3f}" if rate else f"> {own['no_round_in_s']:.0f}"
        shown = f"{rate:.0f}" if rate else ""
        slow = own.get("stopped_after_s")
        note = f"  stopped in round {len(own['rounds_s']) + 1}, after {slow:.0f} s" if slow else ""
        print(f"{name:<16}{engine:<12}{best:>9}{shown:>10}{ratio:>12}{note}", flush=True)
    if ours := rates.get("mini_vllm"):
        for what, limit in zip(
            ("reading the weights once a step", "doing the products"), limits.values(), strict=True
        ):
            print(f"{'':<16}{what} allows {limit:.0f} tokens/s: {ours / limit:.0%}")
    print()


def save(path: Path, name: str, figures: dict[str, Any], rates: dict[str, float]) -> None:
    """Put one workload's figures, with the machine, beside those that the file already has."""
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    } | rates
    results[name] = figures | {"machine": machine}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps({"results": results}, indent=1) + "\n")
    os.replace(temporary, path)


# ---------------------------------------------------------------- what docs/speed.md shows
NAMES = {
    "tiny16": "tiny, bfloat16, 16 × (128 in, 64 out)",
    "tiny256": "tiny, bfloat16, 256 × (64 in, 64 out)",
    "qwen06_1": "0.6B, bfloat16, 1 × (128 in, 64 out)",
    "qwen06_long": "0.6B, bfloat16, 4 × (1,024 in, 16 out)",
    "qwen06": "0.6B, bfloat16, 16 × (128 in, 64 out)",
    "qwen06_float32": "0.6B, float32, 16 × (128 in, 64 out)",
}
COLUMNS = ("mini_vllm", "hf", "vllm")


def report(folder: Path = Path(__file__).parent / "results") -> str:
    """The saved figures as Markdown: a table for each kind of machine, each with its machine."""
    parts = []
    for path in sorted(folder.glob("offline*.json")):
        results = json.loads(path.read_text())["results"]
        machines = [figures["machine"] for figures in results.values()]
        parts += [describe(machines, path.name), ""]
        parts += ["| workload | mini_vllm | HF `generate` | vLLM 0.32.0 | ours / vLLM | limit |"]
        parts += ["|---|---|---|---|---|---|"]
        parts += [row(name, results[name]) for name in NAMES if name in results]
        parts += [""]
    return "\n".join(parts).rstrip()


def describe(machines: Sequence[dict[str, Any]], file: str) -> str:
    """One machine, as it was measured with each workload: what it reads and multiplies varies."""
    last = machines[-1]

    def within(key: str) -> str:
        found = [m[key] / 1e9 for m in machines if key in m]
        return " to ".join(dict.fromkeys(f"{end(found):,.0f}" for end in (min, max)))

    speed = f"reads {within('read_bytes_per_s')} GB/s, multiplies at "
    speed += f"{within('product_flops_per_s')} GFLOP/s"
    where = f"[{file}](../benchmarks/results/{file})"
    what = f"{last['cores']} cores, {last['cpu']}"
    return f"**{what}** ({', '.join(last['features'])}; {speed}; {where}):"


def row(name: str, figures: dict[str, Any]) -> str:
    """Tokens a second of each engine, their ratio, and what the machine would allow."""
    rates = {engine: figures[engine].get("tokens_per_s") for engine in COLUMNS if engine in figures}
    cells = [f"{rates[e]:,.0f}" if rates.get(e) else too_slow(figures, e) for e in COLUMNS]
    ours, vllm = rates.get("mini_vllm"), rates.get("vllm")
    ratio = f"{ours / vllm:.2f}" if ours and vllm else ""
    limits = [value for key, value in figures.items() if key.endswith("_limit_tokens_per_s")]
    limit = f"{min(limits):,.0f}" if limits else ""
    return f"| {NAMES[name]} | {' | '.join(cells)} | {ratio} | {limit} |"


def too_slow(figures: dict[str, Any], engine: str) -> str:
    limit = figures.get(engine, {}).get("no_round_in_s")
    return f"no round within {limit:.0f} s" if limit else "not run"


if __name__ == "__main__":
    main()
