"""``python -m benchmarks.bench_lora_base``: what ``enable_lora`` costs requests without an adapter.

Three engines decode the same 8 prompts in turns, in one process: without adapters; with slots for
them, none used; and the same with every layer taken apart, as it was before base steps kept the
call of a whole layer. Prints tokens a second of each, and the ratio to the first.
"""

from __future__ import annotations

import statistics
import time

from mini_vllm import LLM, SamplingParams
from mini_vllm.lora.layers import LinearLoRA

ROUNDS = 7
PARAMS = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
PROMPTS = [[5 + n + 7 * k for k in range(16)] for n in range(8)]


def rate(llm: LLM) -> float:
    begin = time.perf_counter()
    llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return len(PROMPTS) * 64 / (time.perf_counter() - begin)


def main() -> None:
    options = {"num_gpu_blocks": 256, "enable_prefix_caching": False, "num_threads": 1}
    plain, slots = LLM("storyteller", **options), LLM("storyteller", enable_lora=True, **options)  # type: ignore[arg-type]
    idle = LinearLoRA.idle
    rates: dict[str, list[float]] = {"without": [], "enable_lora": [], "taken apart": []}
    for turn in range(ROUNDS + 1):
        found = {"without": rate(plain), "enable_lora": rate(slots)}
        LinearLoRA.idle = property(lambda self: False)  # type: ignore[method-assign,assignment]
        found["taken apart"] = rate(slots)
        LinearLoRA.idle = idle  # type: ignore[method-assign]
        if turn:  # the first warms up
            for name, value in found.items():
                rates[name].append(value)
    for name, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, rates["without"], strict=True))
        print(f"{name:12} {statistics.median(values):7.0f} tokens/s  {ratio:.2f}")


if __name__ == "__main__":
    main()
