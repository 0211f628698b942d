"""Your files in the whole engine: the text is that without drafts, and steps are saved."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.process.worker import Program

DRAFTERS = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "draft_model": {"method": "draft_model", "model": "storyteller-draft"},
    "medusa": {"method": "medusa", "model": "storyteller-medusa"},
}
TASKS = {"ngram": "08.3", "draft_model": "08.9", "medusa": "08.10"}
PROMPTS = ([301, 402, 503] * 8, list(range(600, 640)), [700, 701, 702])


def told(worker: Any, drafts: dict[str, Any] | None, temperature: float, **more: Any) -> list[Any]:
    """Token ids of all prompts, steps, and accepted tokens, with these drafts or without any."""
    p = Program()
    speculative = drafts and drafts | {"num_speculative_tokens": 3}
    llm = p.new(
        "mini_vllm.engine.llm:LLM", "storyteller", skip_tokenizer_init=True, dtype="float32",
        max_model_len=96, speculative_config=speculative, **({"num_gpu_blocks": 64} | more),
    )  # fmt: skip
    params = p.new(
        "mini_vllm.sampling_params:SamplingParams", temperature=temperature, seed=5,
        max_tokens=24, ignore_eos=True, presence_penalty=0.5,
    )  # fmt: skip
    outputs = llm.generate([list(prompt) for prompt in PROMPTS], params, use_tqdm=False)
    for number in range(len(PROMPTS)):
        p.see(outputs[number].outputs[0].token_ids)
    p.see(llm.engine.stats.num_steps)
    if drafts:
        p.see(llm.engine.stats.spec_decode.num_accepted_tokens)
    return list(worker.run(p))


CASES = [
    ("ngram", 0.0, {}),
    ("ngram", 0.8, {"block_size": 4, "num_gpu_blocks": 40}),
    ("draft_model", 0.0, {"block_size": 4, "num_gpu_blocks": 40}),
    ("draft_model", 0.8, {"max_num_batched_tokens": 12}),
    ("medusa", 0.0, {}),
]


@pytest.mark.parametrize(("method", "temperature", "more"), CASES)
def test_08_9_the_text_stays_and_steps_are_saved(
    subject: Any, reference: Any, method: str, temperature: float, more: dict[str, Any]
) -> None:
    """Small blocks, small budgets, penalties, greedy and seeded, all with your files."""
    *expected, _ = told(reference, None, temperature, **more)
    *texts, steps, accepted = told(subject, DRAFTERS[method], temperature, **more)
    assert texts == expected
    *_, wanted_steps, wanted = told(reference, DRAFTERS[method], temperature, **more)
    assert accepted >= wanted - 1, f"{accepted} drafts accepted, {wanted} with the reference"
    assert steps <= wanted_steps + 1, f"{steps} steps, {wanted_steps} with the reference"
