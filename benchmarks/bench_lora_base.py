"""``python -m benchmarks.bench_lora_base``: what adapters cost requests that have none, on a CPU.

Two engines decode the same 8 prompts in turns, in one process: one without adapters, and one with
slots for them, of whose requests none, one or all have an adapter. The last is also measured with
every layer taken apart, as it is where `model/narrow.py` cannot help. Prints tokens a second of
CPU time, of several rounds the best, and the ratio to the first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from unittest.mock import patch

from mini_vllm import LLM, SamplingParams
from mini_vllm.bundled import adapter_path
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model.narrow import LayerCall

ROUNDS = 7
PARAMS = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
PROMPTS = [[5 + n + 7 * k for k in range(16)] for n in range(8)]
PIRATE = LoRARequest("pirate", 1, str(adapter_path("pirate")))
WISHES: dict[str, list[LoRARequest | None]] = {
    f"{n} of 8 rows": [PIRATE] * n + [None] * (8 - n) for n in (0, 1, 8)
}


def rate(llm: LLM, wish: Sequence[LoRARequest | None] | None = None) -> float:
    begin = time.process_time()
    llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=wish)
    return len(PROMPTS) * 64 / (time.process_time() - begin)


def main() -> None:
    options = {"num_gpu_blocks": 256, "enable_prefix_caching": False, "num_threads": 1}
    plain, slots = LLM("storyteller", **options), LLM("storyteller", enable_lora=True, **options)  # type: ignore[arg-type]
    rates: dict[str, list[float]] = {}
    for turn in range(ROUNDS + 1):
        found = {"no enable_lora": rate(plain)}
        found |= {name: rate(slots, wish) for name, wish in WISHES.items()}
        with patch.object(LayerCall, "takes", lambda *_: False):
            found |= {f"{name}, apart": rate(slots, wish) for name, wish in WISHES.items()}
        if turn:  # the first warms up
            for name, value in found.items():
                rates.setdefault(name, []).append(value)
    best = {name: max(values) for name, values in rates.items()}
    for name, value in best.items():
        print(f"{name:20} {value:7.0f} tokens/s  {value / best['no enable_lora']:.2f}")


if __name__ == "__main__":
    main()
