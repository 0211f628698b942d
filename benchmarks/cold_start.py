"""Seconds until something happens: an import, and the first token of the bundled model.

    python -m benchmarks.cold_start                         five rounds, in turns, the best of each
    python -m benchmarks.cold_start --vllm-python PATH      also vLLM's, from its own environment

Each line is a program of its own, from its start to its end. The first round is not counted: it
brings the files into memory, and builds `cpu.cpp` where that has not been done.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from mini_vllm import bundled

FIRST_TOKEN = """
if __name__ == "__main__":
    from {package} import LLM, SamplingParams
    llm = LLM({model!r}, max_model_len=256)
    llm.generate("Once upon a time", SamplingParams(max_tokens=1), use_tqdm=False)
"""


def programs(vllm_python: str | None) -> dict[str, list[str]]:
    """What is timed, by name."""
    model = str(bundled.path("storyteller"))
    ours = [sys.executable, "-m", "mini_vllm", "generate", "Once upon a time", "--max-tokens", "1"]
    found = {
        "import torch": [sys.executable, "-c", "import torch"],
        "import mini_vllm": [sys.executable, "-c", "import mini_vllm"],
        "mini_vllm, first token": ours,
    }
    if vllm_python:
        program = FIRST_TOKEN.format(package="vllm", model=model)
        found["import vllm"] = [vllm_python, "-c", "import vllm"]
        found["vllm, first token"] = [vllm_python, "-c", program]
    return found


def seconds_of(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vllm-python", help="interpreter of an environment that has vLLM")
    args = parser.parse_args()
    commands = programs(args.vllm_python)
    best = dict.fromkeys(commands, float("inf"))
    for turn in range(args.rounds + 1):
        for name, command in commands.items():
            seconds = seconds_of(command)
            if turn:
                best[name] = min(best[name], seconds)
    for name, seconds in best.items():
        print(f"{name:<26}{seconds:6.2f} s")


if __name__ == "__main__":
    main()
