"""What `make run-08` measures: the same prompts without drafts, and with each kind of them."""

from __future__ import annotations

import time
from typing import Any

AGAIN = "Say it again: " + "the little dog ran. " * 3 + "the little"
"""What follows repeats itself, so that a text's own end finds drafts."""
PROMPTS = (AGAIN, "Once upon a time there was a fox")
TOKENS, DRAFTS = 32, 3
KINDS: dict[str, dict[str, Any] | None] = {
    "no drafts": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": DRAFTS},
    "draft model": {"model": "storyteller-draft", "num_speculative_tokens": DRAFTS},
}
ABOUT_DRAFTS = (
    f"{len(PROMPTS)} prompts, {TOKENS} tokens each, greedy and at temperature 1; without drafts,"
    " from the text itself, and from a smaller model: steps, and tokens that a draft brings"
)


def measure_drafts() -> dict[str, Any]:
    """Greedy rows and random ones in each batch, so that both ways of judging take part."""
    from mini_vllm import LLM, SamplingParams

    begin = time.perf_counter()
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "rows": []}
    params = [
        SamplingParams(temperature=heat, seed=7, max_tokens=TOKENS, ignore_eos=True)
        for heat in (0.0, 1.0)
        for _ in PROMPTS
    ]
    for title, config in KINDS.items():
        llm = LLM(
            "storyteller",
            dtype="float32",
            num_gpu_blocks=128,
            max_model_len=192,
            speculative_config=config,
        )
        outputs = llm.generate([*PROMPTS] * 2, params, use_tqdm=False)
        result["tokens"] += [list(output.outputs[0].token_ids) for output in outputs]
        result["names"] += [f"{title}, request {number}" for number in range(len(outputs))]
        result["errors"] += [str(output.error) for output in outputs if output.error]
        stats = llm.engine.stats.summary()
        brings = stats.get("mean_acceptance_length", 1.0)
        result["rows"].append([title, f"{stats['steps']:.0f} steps, {brings:.2f}"])
    return result | {"seconds": time.perf_counter() - begin}
