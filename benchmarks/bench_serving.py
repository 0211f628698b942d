"""The server under load, beside vLLM's where that is installed, and what serving costs.

Two questions, each engine in turns on the same machine, asked by the same client
(`mini_vllm bench serve`):

1. **Load.** At each rate of a Poisson process, and with all requests at once: requests a second,
   time to first token, inter-token latency. The best round of each rate counts. Beside it the
   same requests through `LLM.generate`: what of that is left when they are served.
2. **Cost.** Processor time of the server's processes for a load, less that of the same engine
   offline (`LLM.generate`) for the same load: what HTTP, streams and the way between two processes
   cost. Everything runs on one thread here, because threads that wait spin and would be counted.
   A load of one token a request and one of many give the cost of a request and of a token. And
   with a core left for the client and the front end, it shows how much of the engine's own
   throughput is left: all at once on two cores, a small model has to share both with them.

    python -m benchmarks.bench_serving                           the bundled model
    python -m benchmarks.bench_serving --workloads storyteller tiny qwen06 --save
    python -m benchmarks.bench_serving --vllm-python PATH        also vLLM, from its own venv
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_offline import QWEN3_0_6B, TINY, cpu, results_file, vllm_environment
from labkit.gpu.workload import write_model
from mini_vllm import bundled

STORYTELLER = Path(bundled.__file__).parent / "storyteller"
COST_REQUESTS = 192
"""Most requests of a load whose processor time is counted."""
COST_ROUNDS = 3
SHOWN = ("request_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "median_itl_ms",
         "p99_itl_ms")  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """Requests of ``input_len`` random tokens that ask for ``output_len`` new ones, at ``rates``.

    ``shape`` is that of a model with random weights; None: the bundled one.
    """

    shape: dict[str, int] | None
    dtype: str
    input_len: int
    output_len: int
    rates: tuple[float, ...]
    requests: int

    def folder(self, parent: Path) -> Path:
        """The model's folder; one with random weights borrows the bundled tokenizer."""
        if self.shape is None:
            return STORYTELLER
        folder = parent / "model"
        if not folder.exists():
            folder.mkdir()
            write_model(folder, self.shape)
            for file in STORYTELLER.glob("tokenizer*"):
                shutil.copy(file, folder)
        return folder

    @property
    def cost_requests(self) -> int:
        return min(COST_REQUESTS, self.requests)

    def options(self) -> dict[str, Any]:
        """Of the engine, by names that both have."""
        options = {
            "dtype": self.dtype, "max_model_len": 256, "max_num_seqs": 256,
            "max_num_batched_tokens": 2048, "enable_prefix_caching": False,
        }  # fmt: skip
        return options | ({} if self.shape is None else {"load_format": "dummy"})


WORKLOADS = {
    "storyteller": Workload(None, "float32", 64, 48, (4, 16, 48, 96, math.inf), 256),
    "tiny": Workload(TINY, "bfloat16", 64, 48, (4, 16, 48, 96, math.inf), 256),
    "qwen06": Workload(QWEN3_0_6B, "float32", 64, 48, (0.25, 0.5, math.inf), 16),
}


# ---------------------------------------------------------------------- servers


def flags(options: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else []
        words += [] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def environment(engine: str, python: str, threads: int | None, folder: Path) -> dict[str, str]:
    """Variables for an engine's processes."""
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "no_proxy": "127.0.0.1"}
    if engine == "vllm":
        variables |= vllm_environment(python) | {"VLLM_NO_USAGE_STATS": "1"}
        del variables["VLLM_ENABLE_V1_MULTIPROCESSING"]  # as it is served
        # vLLM uses AMX registers without asking the kernel for them, and is killed for it: the
        # first line of every Python of its asks.
        site = "import ctypes\nctypes.CDLL(None).syscall(158, 0x1023, 18)\n"
        (folder / "sitecustomize.py").write_text(site)
        variables["PYTHONPATH"] = str(folder)
        if threads == 1:
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "0"
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    return variables


class Server:
    """A server in processes of its own, and how much processor time they have used."""

    def __init__(
        self, engine: str, python: str, workload: Workload, folder: Path, threads: int | None
    ) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        # vLLM's own `serve` needs a package named vllm; its wheel for CPUs has another name.
        program = (
            ["mini_vllm", "serve"]
            if engine == "mini_vllm"
            else ["vllm.entrypoints.openai.api_server", "--model"]
        )
        command = [python, "-m", *program, str(workload.folder(folder))]
        command += [
            "--disable-uvicorn-access-log",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--served-model-name",
            "m",
        ]
        self.log = folder / f"{engine}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command + flags(workload.options()),
                env=environment(engine, python, threads, folder),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            self._wait(300)
        except BaseException:
            self.close()
            raise

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                said = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"it ended with code {self.process.returncode}: {said}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health") as _:
                return
            time.sleep(0.2)
        raise TimeoutError(f"the server did not come up within {seconds} s")

    def cpu_seconds(self) -> float:
        """Of all its processes that live, in user and kernel mode (Linux)."""
        ticks = 0
        for process in self._processes(self.process.pid):
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _processes(self, pid: int) -> Iterator[int]:
        yield pid
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in file.read_text().split():
                yield from self._processes(int(child))

    def load(
        self, workload: Workload, rate: float, requests: int, output_len: int
    ) -> dict[str, Any]:
        """Put a load on it; the client's figures."""
        command = [
            sys.executable, "-m", "mini_vllm", "bench", "serve", "--base-url", self.url, "--json",
            "--model", "m", "--ignore-eos", "--temperature", "0", "--metric-percentiles", "50,99",
            "--num-prompts", str(requests), "--request-rate", str(rate),
            "--random-input-len", str(workload.input_len), "--random-output-len", str(output_len),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the client failed: {done.stderr[-500:]}")
        return dict(json.loads(done.stdout))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


# ---------------------------------------------------------------------- offline


def offline_child(
    engine: str, name: str, folder: Path, num_requests: int, output_lens: Sequence[int]
) -> None:
    """Run a load of each length through `LLM.generate`; print processor and wall seconds."""
    workload = WORKLOADS[name]
    if engine == "vllm":
        from vllm import LLM, SamplingParams, TokensPrompt  # type: ignore[import-not-found]
    else:
        from mini_vllm import LLM, SamplingParams

        TokensPrompt = dict
    llm = LLM(str(workload.folder(folder)), **workload.options())
    prompts = [
        TokensPrompt(prompt_token_ids=prompt) for prompt in offline_prompts(workload, num_requests)
    ]
    results = []
    for output_len in (4, *output_lens):  # the first warms up
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        cpu, wall = time.process_time(), time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        results.append((time.process_time() - cpu, time.perf_counter() - wall))
    print("BENCH " + json.dumps(results[1:]), flush=True)


def offline_prompts(workload: Workload, num_requests: int) -> list[list[int]]:
    import random

    draw = random.Random(0)
    return [[draw.randrange(1000) for _ in range(workload.input_len)] for _ in range(num_requests)]


def run_offline(
    engine: str,
    python: str,
    name: str,
    folder: Path,
    num_requests: int,
    output_lens: Sequence[int],
    threads: int | None,
) -> list[tuple[float, float]]:
    """Processor and wall seconds of each load, from a process of its own."""
    variables = environment(engine, python, threads, folder)
    variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    root = str(Path(__file__).parents[1])
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, variables.get("PYTHONPATH"))))
    words = [engine, name, str(folder), str(num_requests), ",".join(map(str, output_lens))]
    command = [python, "-m", "benchmarks.bench_serving", "--child", *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=root)
    lines = [line for line in done.stdout.splitlines() if line.startswith("BENCH ")]
    if not lines:
        raise RuntimeError(f"{engine} offline failed: {done.stderr[-500:]}")
    return [(cpu, wall) for cpu, wall in json.loads(lines[0].removeprefix("BENCH "))]


# ---------------------------------------------------------------------- figures


def measure_load(
    engines: Mapping[str, str], name: str, rounds: int, folder: Path
) -> tuple[dict[str, Any], dict[str, float]]:
    """Each engine's figures by rate, and its requests a second offline.

    A rate's are of the round with the lowest mean latency, and offline the fastest round counts.
    Served and offline take turns: on a shared machine a quarter of an hour can change both.
    """
    workload = WORKLOADS[name]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {engine: {} for engine in engines}
    offline = dict.fromkeys(engines, 0.0)
    for _ in range(rounds):
        for engine, python in engines.items():
            num, lens = workload.requests, [workload.output_len] * 2
            runs = run_offline(engine, python, name, folder, num, lens, threads=None)
            offline[engine] = max(offline[engine], *(num / wall for _, wall in runs))
            server = Server(engine, python, workload, folder, threads=None)
            try:
                server.load(workload, math.inf, 16, 8)  # warms up
                for rate in workload.rates:
                    requests = round(min(workload.requests, max(16, 20 * rate)))
                    figures = server.load(workload, rate, requests, workload.output_len)
                    found[engine].setdefault(str(rate), []).append(figures)
            finally:
                server.close()
    load = {
        engine: {rate: min(runs, key=lambda run: run["mean_e2el_ms"]) for rate, runs in own.items()}
        for engine, own in found.items()
    }
    return load, offline


def measure_cost(
    engine: str, python: str, name: str, workload: Workload, folder: Path
) -> dict[str, float]:
    """Processor time that serving adds, in microseconds a request and a token; what is left.

    Of each load the least of ``COST_ROUNDS`` counts: what a shared machine adds is no cost.
    ``share`` is the best throughput of the longer load over the engine's best offline.
    """
    lens, num = (1, workload.output_len), workload.cost_requests
    runs = run_offline(engine, python, name, folder, num, lens * COST_ROUNDS, threads=1)
    offline = [min(cpu for cpu, _ in runs[i :: len(lens)]) for i in range(len(lens))]
    server = Server(engine, python, workload, folder, threads=1)
    served: dict[int, float] = {}
    best = 0.0
    try:
        server.load(workload, math.inf, num, 4)  # warms up
        for output_len in lens * COST_ROUNDS:
            before = server.cpu_seconds()
            figures = server.load(workload, math.inf, num, output_len)
            used = server.cpu_seconds() - before
            served[output_len] = min(used, served.get(output_len, math.inf))
            if output_len == workload.output_len:
                best = max(best, figures["request_throughput"])
    finally:
        server.close()
    one, many = (served[length] - cpu for length, cpu in zip(lens, offline, strict=True))
    return {
        "us_a_request": one / num * 1e6,
        "us_a_token": (many - one) / (num * (workload.output_len - 1)) * 1e6,
        "served_cpu_s": served[workload.output_len],
        "offline_cpu_s": offline[1],
        "share": best * min(wall for _, wall in runs[1 :: len(lens)]) / num,
    }


def measure(
    engines: Mapping[str, str], name: str, rounds: int, parts: Sequence[str]
) -> dict[str, Any]:
    workload = WORKLOADS[name]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "load" in parts:
            load, offline = measure_load(engines, name, rounds, folder)
            results |= {"load": load, "offline_requests_per_s": offline}
        if "cost" in parts:
            results["cost"] = {
                engine: measure_cost(engine, python, name, workload, folder)
                for engine, python in engines.items()
            }
    return results


def show(name: str, results: Mapping[str, Any]) -> None:
    words = ("requests/s", "TTFT p50", "p99", "TPOT p50", "ITL p50", "p99")
    print(f"\n{name:<13}{'rate':>6}" + "".join(f"{word:>12}" for word in words))
    for engine, rates in results.get("load", {}).items():
        for rate, figures in rates.items():
            values = "".join(f"{figures[key]:>12.1f}" for key in SHOWN)
            print(f"{engine:<13}{rate:>6}{values}")
        offline = results["offline_requests_per_s"][engine]
        share = rates["inf"]["request_throughput"] / offline
        print(f"{engine:<13}offline {offline:.1f} requests/s; served at once {share:.2f} of that")
    for engine, cost in results.get("cost", {}).items():
        print(
            f"{engine:<13}serving costs {cost['us_a_request']:.0f} us a request and "
            f"{cost['us_a_token']:.1f} us a token over the engine offline; on one thread "
            f"{cost['share']:.2f} of its throughput is left"
        )


def report(folder: Path = Path(__file__).parent / "results") -> str:
    """The saved figures as Markdown: for each kind of machine its tables, after its name."""
    parts = []
    for path in sorted(folder.glob("serving*.json")):
        for name, results in json.loads(path.read_text())["results"].items():
            parts += [f"{describe(name, results['machine'], path.name)}\n\n{tables(name, results)}"]
    return "\n\n".join(parts)


def describe(name: str, machine: Mapping[str, Any], file: str) -> str:
    features = ", ".join(machine["features"])
    where = f"[{file}](../benchmarks/results/{file})"
    return f"**{name}, {machine['cores']} cores, {machine['cpu']}** ({features}; {where}):"


def tables(name: str, results: Mapping[str, Any]) -> str:
    """A table of latencies by rate, and what serving costs."""
    lines = [
        f"| {name}, requests/s | engine | answered/s | TTFT p50, p99 | TPOT p50 | ITL p99 |",
        "|---|---|---|---|---|---|",
    ]
    for rate in next(iter(results["load"].values())):
        for engine, rates in results["load"].items():
            values = [rates[rate][key] for key in SHOWN]
            cells = "| {:.1f} | {:.0f}, {:.0f} ms | {:.1f} ms | {:.0f} ms |".format(
                *values[:4], values[5]
            )
            wanted = "all at once" if rate == "inf" else rate
            lines.append(f"| {wanted} | {engine} {cells}")
    words = "{} {us_a_request:,.0f} µs a request, {us_a_token:.0f} µs a token"
    costs = [words.format(engine, **cost) for engine, cost in results.get("cost", {}).items()]
    shares = [
        f"{engine} {results['load'][engine]['inf']['request_throughput'] / offline:.2f}"
        for engine, offline in results["offline_requests_per_s"].items()
    ]
    told = "What serving costs over the engine offline, in processor time"
    lines += ["", *([f"{told}: {'; '.join(costs)}."] if costs else [])]
    lines += [f"All at once, beside offline: {', '.join(shares)}."]
    alone = [
        f"{engine} {cost['share']:.2f}"
        for engine, cost in results.get("cost", {}).items()
        if "share" in cost
    ]
    lines += [f"The same with each engine on one thread: {', '.join(alone)}."] if alone else []
    return "\n".join(lines)


def save(path: Path, name: str, results: Mapping[str, Any]) -> None:
    """Put one workload's results, with the machine, beside those that the file already has."""
    old = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
    machine = {
        "machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()
    } | cpu()  # fmt: skip
    known = old.get(name, {})
    if known.get("machine") != machine:
        known = {}
    old[name] = {**known, **results, "machine": machine}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps({"results": old}, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["storyteller"])
    parser.add_argument("--parts", nargs="+", choices=("load", "cost"), default=["load", "cost"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", help="interpreter of a venv that has vLLM")
    parser.add_argument(
        "--save",
        nargs="?",
        type=Path,
        const=results_file(cpu()["features"], "serving"),
        help="a JSON file that gets the figures; default: by the CPU's features",
    )
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        engine, name, folder, num, lens = args.child
        offline_child(engine, name, Path(folder), int(num), [int(word) for word in lens.split(",")])
        return
    engines = {"mini_vllm": sys.executable}
    if args.vllm_python:
        engines["vllm"] = args.vllm_python
    for name in args.workloads:
        results = measure(engines, name, args.rounds, args.parts)
        show(name, results)
        if args.save:
            save(args.save, name, results)


if __name__ == "__main__":
    main()
