"""Ours beside llama.cpp, in turns, with the same weights: SmolLM2-135M in floats, 8 and 4 bits.

    python -m benchmarks.llama_cpp --save             all of the table
    python -m benchmarks.llama_cpp int4 --save        one kind of numbers; others stay as they were
    python -m benchmarks.llama_cpp int4 --rows busy   some of its rows, in the same way
    python -m benchmarks.llama_cpp --clock cpu        beside other work: one thread, processor time

llama.cpp is the binary of the npm package `node-llama-cpp`, which npm brings into the user's cache
folder the first time. Without node, npm or its registry the program says so, and measures nothing.

Where `make real-vllm` has made its environment, vLLM takes part in the column of floats, too; else
the program says so. Its kernels for a CPU multiply no blocks of a GGUF file.

All engines are there at once and work in turns, greedily, on as many threads as the machine has
cores. The best of the rounds counts, and llama.cpp takes every other one with its flash attention.
A rate of decoding counts what comes after the first token of all requests; that of a prompt counts
until its first token. The busy neighbour is a program that does nothing but count: once where the
machine puts it, and once held to the first core. How busy the machine was is saved with each part
of the table: seconds that were measured beside other work say little of a quiet machine. There
`--clock cpu` counts the processor time of each engine on one thread, which waits for no other.

`--save` keeps the figures, those of each kind of processor in a file of their own, and writes the
table of phase 09's guide, which is of AVX2; `labkit docs figures` writes those of docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench_offline import (
    best_seconds,
    cpu,
    installed_vllm,
    results_file,
    vllm_environment,
)
from benchmarks.bench_scheduler import machine
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm import LLM, SamplingParams, hub
from mini_vllm.kernels.native import cache_folder

RESULTS = results_file(["avx2"], "llama_cpp")
SCRIPT = Path(__file__).with_suffix(".mjs")
VERSION = "3.22.1"
"""Of `node-llama-cpp`; its binary is llama.cpp 0.5.0."""
BINARIES = {
    ("Linux", "x86_64"): "linux-x64",
    ("Linux", "aarch64"): "linux-arm64",
    ("Darwin", "x86_64"): "mac-x64",
    ("Darwin", "arm64"): "mac-arm64-metal",
}
KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "gguf"},
    "int4": {"quantization": "gguf"},
}
"""What the file of each kind is loaded with; the files are of F32, Q8_0, and Q4_0 with a head of
Q8_0."""
BLOCKS = {"float32": ("F32", "F32"), "int8": ("Q8_0", "Q8_0"), "int4": ("Q4_0", "Q8_0")}
"""The types of a file's matrices, and of its embedding, which is the head as well."""
NEW_TOKENS, LONG = 33, 1_900
LONG_ROW = f"the same at {LONG:,} tokens"
DECODE = {"decode, 1 request": (1, 16), LONG_ROW: (1, LONG)} | {
    f"decode, {count} requests": (count, 16) for count in (4, 16, 64)
}
"""Requests, and the tokens of each prompt."""
PROMPTS = {f"prompt of {length:,}": length for length in (64, 512, LONG)}
BUSY = {"busy neighbour, free": False, "busy neighbour, on one core": True}
"""Whether it is held to a core; four requests decode beside it."""
ROWS = ("start", "decode", "prompt", "long", "crowd", "busy")
"""Groups of rows: the short ones are `decode` and `prompt`."""
GUIDE = ROOT / "phases" / "09-quantization" / "00-guide.md"
SHORT = (*DECODE, "prompt of 64", "prompt of 512")
"""Rows that the guide of phase 09 shows, by the clock."""
CLOCKS = {
    "wall": "tokens a second, all cores",
    "cpu": "tokens a second of processor time, one thread each",
}
START, PEAK = "start to first token, s", "peak memory, MiB"
ROUNDS, SECONDS = 3, 1.0
VLLM_KIND = "float32"
"""Whose rates vLLM takes part in."""
BESIDE_VLLM = "beside vLLM"
"""Where the turns of three engines are saved."""
VLLM_CHILD = Path(__file__).with_name("vllm_child.py")
Tokens = list[list[int]]
Answer = tuple[list[float], Tokens]
"""Seconds until all requests had their first, second, ... token; and the tokens."""
Rows = dict[str, dict[str, Any]]
"""By row, what each engine reached."""
Engine = Callable[[Tokens, int], Answer]


# ---------------------------------------------------------------- the other engine
def node_llama_cpp() -> Path:
    """The folder that npm has put `node-llama-cpp` into; it does so the first time.

    Raises:
        OSError: if node or npm is missing, or there is no binary for this machine.
        subprocess.SubprocessError: if npm does not get it.
    """
    name = BINARIES.get((platform.system(), platform.machine()))
    if name is None:
        raise OSError(f"it has no binary for {platform.system()} on {platform.machine()}")
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise OSError(f"there is no {program}; install Node.js 20 or newer")
    folder = cache_folder() / f"node-llama-cpp-{VERSION}"
    done = folder / "done"
    if not done.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        packages = [f"node-llama-cpp@{VERSION}", f"@node-llama-cpp/{name}@{VERSION}"]
        options = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"]
        command = ["npm", "install", *options, "--prefix", str(folder), *packages]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        done.touch()
    return folder


@contextmanager
def llama_cpp(folder: Path, model: Path, clock: str) -> Iterator[Engine]:
    """llama.cpp with a model loaded, in a process of its own."""
    arguments = [str(folder), "serve", str(model), str(num_threads(clock)), clock]
    command = ["node", str(SCRIPT), *arguments]
    calls = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n", "llama.cpp did not start"

        def run(prompts: Tokens, count: int) -> Answer:
            nonlocal calls
            calls += 1
            asked = {"prompts": prompts, "count": count, "flash": calls % 2 == 0}
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline())
            return said["seconds"], said["tokens"]

        yield run
        process.stdin.close()


# ---------------------------------------------------------------- vLLM
def vllm_python(kind: str, clock: str) -> Path | None:
    """The interpreter that has vLLM; None where it takes no part, which is said aloud."""
    if kind != VLLM_KIND or clock != "wall":
        return None
    return installed_vllm()


@contextmanager
def vllm(python: Path, model: Path) -> Iterator[Engine]:
    """vLLM with the numbers of a GGUF file in float32, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, Path(folder), "float32")
        command = [str(python), str(VLLM_CHILD), folder, str(LONG + NEW_TOKENS + 8)]
        environment = os.environ | vllm_environment(str(python)) | {"HF_HUB_OFFLINE": "1"}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "ready\n", "vLLM did not start"

            def run(prompts: Tokens, count: int) -> Answer:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps({"prompts": prompts, "count": count}) + "\n")
                process.stdin.flush()
                said = json.loads(process.stdout.readline())
                return said["seconds"], said["tokens"]

            yield run
            process.stdin.close()


# ---------------------------------------------------------------- ours
def mini_vllm(model: Path, kind: str, clock: str) -> Engine:
    llm = LLM(
        model,
        max_model_len=LONG + NEW_TOKENS + 8,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        num_threads=num_threads(clock),
        **KINDS[kind],
    )
    now = time.process_time if clock == "cpu" else time.perf_counter

    def run(prompts: Tokens, count: int) -> Answer:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        seconds, start = [0.0] * count, now()
        outputs = {}
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        for output in llm.stream(given, params):
            outputs[int(output.request_id)] = output
            seconds[len(output.outputs[0].token_ids) - 1] = now() - start
        return seconds, [list(outputs[i].outputs[0].token_ids) for i in sorted(outputs)]

    return run


# ---------------------------------------------------------------- files
def write_folder(file: Path, folder: Path, dtype: str = "bfloat16") -> None:
    """The model of a GGUF file as a Hugging Face folder, its numbers rounded to `dtype`."""
    import torch
    from safetensors.torch import save_file

    from mini_vllm.model.checkpoint import tensor_files
    from mini_vllm.model.checkpoint_files import load_tokenizer
    from mini_vllm.model.config import read_config

    (tensors,) = tensor_files(file, getattr(torch, dtype))
    with tensors.open() as opened:
        found = {name: opened.get_tensor(name) for name in tensors.header}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    config = read_config(file) | {"model_type": "llama", "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(config))
    load_tokenizer(file).save_pretrained(folder)


def write_model(source: Path, path: Path, kind: str) -> None:
    """The model of a GGUF file with its matrices in other blocks."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            is_list = field.types[0] == GGUFValueType.ARRAY
            sub_type = field.types[-1] if is_list else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type)
        block = BLOCKS[kind][tensor.name == "token_embd.weight"] if numbers.ndim > 1 else "F32"
        block_type = GGMLQuantizationType[block]
        writer.add_tensor(tensor.name, quantize(numbers, block_type), raw_dtype=block_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---------------------------------------------------------------- measuring
def num_threads(clock: str) -> int:
    return 1 if clock == "cpu" else os.cpu_count() or 1


def measure(
    source: Path, folder: Path, kind: str, groups: Sequence[str], rounds: int, clock: str
) -> Rows:
    """Some rows of one column; `groups` are of `ROWS`."""
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary) / f"{kind}.gguf"
        write_model(source, model, kind)
        if "start" in groups:
            rows |= start(model, kind, folder, clock)
        if set(groups) - {"start"}:
            with ExitStack() as stack:
                other = stack.enter_context(llama_cpp(folder, model, clock))
                engines = {"ours": mini_vllm(model, kind, clock), "llama.cpp": other}
                if python := vllm_python(kind, clock):
                    engines["vLLM"] = stack.enter_context(vllm(python, model))
                rows |= rates(engines, groups, rounds)
        if clock == "wall" and {"decode", "long"}.intersection(groups):
            size = model.stat().st_size
            read = bytes_per_second(size)
            for name in rows.keys() & {"decode, 1 request", LONG_ROW}:
                rows[name]["limit"] = read / (size + DECODE[name][1] * kv_bytes(model))
    return rows


def rates(engines: Mapping[str, Engine], groups: Sequence[str], rounds: int) -> Rows:
    """Tokens a second: the best of the rounds, in turns."""
    draw = random.Random(0)
    prompts = {
        name: [[draw.randrange(10, 40_000) for _ in range(length)] for _ in range(count)]
        for name, (count, length) in DECODE.items()
    }
    rows: Rows = {}

    def add(name: str, given: Tokens, count: int) -> None:
        rows[name] = in_turns(engines, given, count, rounds)
        show(name, rows[name])

    for name, given in prompts.items():
        if group_of(name) in groups:
            add(name, given, NEW_TOKENS)
    for name, length in PROMPTS.items():
        if group_of(name) in groups:
            add(name, [prompts[LONG_ROW][0][:length]], 1)
    if "busy" in groups:
        for name, is_held in BUSY.items():
            with busy_neighbour(is_held):
                add(name, prompts["decode, 4 requests"], NEW_TOKENS)
    return rows


def group_of(row: str) -> str:
    """Which of `ROWS` a row of rates belongs to."""
    if "1,900" in row:
        return "long"
    if "64 requests" in row:
        return "crowd"
    return row.split()[0].strip(",")


def in_turns(
    engines: Mapping[str, Engine], prompts: Tokens, count: int, rounds: int
) -> dict[str, Any]:
    best: dict[str, float] = dict.fromkeys(engines, 0.0)
    tokens: dict[str, Tokens] = {}
    for _ in range(rounds):
        for name, run in engines.items():
            seconds, tokens[name] = run(prompts, count)
            if count > 1:
                rate = len(prompts) * (count - 1) / (seconds[-1] - seconds[0])
            else:
                rate = len(prompts[0]) / seconds[0]
            best[name] = max(best[name], rate)
    same = sum(all(a == b for b in others) for a, *others in zip(*tokens.values(), strict=True))
    return best | {"same_tokens": same, "requests": len(prompts)}


@contextmanager
def busy_neighbour(is_held: bool) -> Iterator[None]:
    """A program that counts, and leaves no core alone; or held to the first, one."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        if is_held and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            yield
        finally:
            process.kill()


def start(model: Path, kind: str, folder: Path, clock: str) -> Rows:
    """Seconds from the shell to the first token, and the most memory, files in the cache.

    Processor time is that of the whole program, which then ends.
    """
    options = [f"--{name}={value}" for name, value in KINDS[kind].items()]
    ours = ["-m", "mini_vllm", "generate", "Once upon a time", "--model", str(model)]
    commands = {
        "ours": [sys.executable, *ours, "--max-tokens", "1", "--temperature", "0", *options],
        "llama.cpp": [
            "node",
            str(SCRIPT),
            str(folder),
            "start",
            str(model),
            str(num_threads(clock)),
        ],
    }
    rows: Rows = {START: {}, PEAK: {}}
    for _ in range(3):
        for name, command in commands.items():
            seconds, memory = first_byte(command, clock)
            rows[START][name] = min(seconds, rows[START].get(name, seconds))
            rows[PEAK][name] = max(memory["VmHWM"], rows[PEAK].get(name, 0.0))
    for name, row in rows.items():
        show(name, row)
    return rows


def first_byte(command: Sequence[str], clock: str) -> tuple[float, dict[str, float]]:
    """Seconds until a program writes something, and its memory in MiB then, see `memory_mib`.

    The memory is there only if the program still runs then: it should wait for its input to close.
    """
    begin = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.read(1)
        seconds, memory = time.perf_counter() - begin, memory_mib(process.pid)
        process.stdin.close()
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime if clock == "cpu" else seconds, memory


def memory_mib(pid: int) -> dict[str, float]:
    """What Linux says of a process that runs; NaN elsewhere.

    `VmHWM` is the most that it had so far: `ru_maxrss` counts the parent it was forked from.
    `RssAnon` is what it has now besides pages of files, which programs share, and which the system
    may drop and read again.
    """
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    kib = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return {name: float(kib.get(name, "nan kB").split()[0]) / 1024 for name in ("VmHWM", "RssAnon")}


def bytes_per_second(size: int) -> float:
    """How fast so many bytes are read again and again: a small model may stay in a cache."""
    import torch

    data = torch.ones(size // 4)
    return data.nbytes / best_seconds(data.sum, SECONDS)


def kv_bytes(model: Path) -> int:
    """Bytes of the KV of one token, in 16 bits a number."""
    from mini_vllm.model.config import load_config

    args = load_config(model)
    return 2 * 2 * args.num_hidden_layers * args.num_key_value_heads * args.head_dim


def show(name: str, row: Mapping[str, Any]) -> None:
    engines = [key for key in ("ours", "llama.cpp", "vLLM") if key in row]
    cells = "  ".join(f"{key} {row[key]:,.1f}" for key in engines)
    print(f"{name:<28}{cells}", flush=True)


# ---------------------------------------------------------------- the table
def report(folder: Path = RESULTS.parent) -> str:
    """The saved figures as Markdown, one kind of machine after the other: a table for each clock,
    ours / llama.cpp / limit; and one of the rows that vLLM took part in."""
    tables: list[str] = []
    for path in sorted(folder.glob("llama_cpp*.json"), reverse=True):
        saved = json.loads(path.read_text(encoding="utf-8"))
        tables += [table(clock, saved[clock]) for clock in CLOCKS if clock in saved]
        tables += three_engines(saved.get(BESIDE_VLLM, {}))
    return "\n\n".join(tables)


def three_engines(rows: Mapping[str, Any]) -> Iterator[str]:
    """A table of the rows that vLLM took part in, if there are any, and on which machine."""
    found = {name: row for name, row in rows.items() if "vLLM" in row}
    if found:
        engines = ("ours", "llama.cpp", "vLLM")
        lines = [f"| {VLLM_KIND}, tokens a second | {' | '.join(engines)} |", "|---|---|---|---|"]
        for name, row in found.items():
            cells = (f"{row[engine]:,.{1 if row[engine] < 10 else 0}f}" for engine in engines)
            lines.append(f"| {name} | {' | '.join(cells)} |")
        yield "\n".join([*lines, "", about(rows["machine"], rows["loads"].values())])


def table(clock: str, saved: Mapping[str, Any]) -> str:
    kinds = [kind for kind in KINDS if kind in saved]
    titles = ["float32" if kind == "float32" else f"{kind}, {BLOCKS[kind][0]}" for kind in kinds]
    lines = [f"| {CLOCKS[clock]} | {' | '.join(titles)} |", "|---|" + "---|" * len(kinds)]
    for name in (*DECODE, *PROMPTS, *BUSY, START, PEAK):
        cells = [cell(saved[kind].get(name)) for kind in kinds]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    loads = [load for kind in kinds for load in saved[kind]["loads"].values()]
    return "\n".join([*lines, "", about(saved[kinds[0]]["machine"], loads)])


def about(machine: Mapping[str, Any], loads: Iterable[Sequence[float]]) -> str:
    """The line below a table."""
    loads = list(loads)
    where = f"{machine['cores']} cores, {machine['cpu']} ({', '.join(machine['features'])})"
    between = f"between {min(map(min, loads)):.0f} and {max(map(max, loads)):.0f}"
    return (
        f"{where}; the machine's load was {between}, of which the benchmark itself is one or two."
    )


def guide_rows() -> list[str]:
    """The lines of the guide's table: what `SHORT` names."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))["wall"]
    kinds = [kind for kind in KINDS if kind in saved]
    head = [f"| ours / llama.cpp | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds)]
    return head + [
        f"| {name} | {' | '.join(cell(saved[kind].get(name), limit=False) for kind in kinds)} |"
        for name in SHORT
    ]


def write_guide(path: Path = GUIDE) -> None:
    """Put the lines in place of those that are there.

    Raises:
        ValueError: the page has no such table.
    """
    old = path.read_text(encoding="utf-8")
    new, count = re.subn(
        r"(?m)^\| ours / llama\.cpp \|.*\n(?:\|.*\n)*", "\n".join(guide_rows()) + "\n", old
    )
    if count != 1:
        raise ValueError(
            f"{path} has {count} tables that begin with 'ours / llama.cpp'; it needs one"
        )
    write_text(path, new)


def cell(row: Mapping[str, float] | None, limit: bool = True) -> str:
    if row is None:
        return ""
    digits = 1 if row["ours"] < 10 else 0
    keys = [key for key in ("ours", "llama.cpp", *["limit"] * limit) if key in row]
    return " / ".join(f"{row[key]:,.{digits}f}" for key in keys)


def keep(column: dict[str, Any], rows: Rows, groups: Sequence[str], load: list[float]) -> None:
    """Write rows into a column of the saved figures, over those of the same name."""
    column["loads"] = column.get("loads", {}) | dict.fromkeys(groups, load)
    column |= rows | {"machine": machine() | cpu()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; default all")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="default: all")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="default: wall")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    path = results_file(cpu()["features"], "llama_cpp")
    parser.add_argument("--save", action="store_true", help=f"into {path.relative_to(ROOT)}")
    args = parser.parse_args(argv)
    if unknown := [kind for kind in args.kinds if kind not in KINDS]:
        parser.error(f"{unknown[0]!r} is no kind; choose from {', '.join(KINDS)}")
    try:
        source, folder = hub.folder("smollm2"), node_llama_cpp()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"not run: llama.cpp or the model cannot be had: {error}", file=sys.stderr)
        return 2
    for kind in args.kinds or KINDS:
        print(kind, flush=True)
        before = os.getloadavg()[0]
        groups = [row for row in args.rows if row != "busy" or args.clock == "wall"]
        rows = measure(source, folder, kind, groups, args.rounds, args.clock)
        load = [before, os.getloadavg()[0]]
        print(f"load {load[0]:.1f} before, {load[1]:.1f} after", flush=True)
        if args.save:
            saved = json.loads(path.read_text()) if path.is_file() else {}
            beside = {name: row for name, row in rows.items() if "vLLM" in row}
            if beside:  # three in turns are a table of their own
                keep(saved.setdefault(BESIDE_VLLM, {}), beside, groups, load)
            else:
                keep(saved.setdefault(args.clock, {}).setdefault(kind, {}), rows, groups, load)
            write_text(path, json.dumps(saved, indent=1) + "\n")
            write_guide()
    return 0


if __name__ == "__main__":
    sys.exit(main())
