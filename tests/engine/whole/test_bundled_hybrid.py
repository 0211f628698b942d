"""storyteller-hybrid: a small real model whose layers remember differently."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from mini_vllm import LLM, SamplingParams, bundled

NAME = "storyteller-hybrid"
QUESTIONS = (
    "Tell me a story about a fox named Pip.",
    "What is the capital of Italy?",
    "Write a JSON record for a person named Ada.",
    "What is 3 + 4?",
)
TOKENS = 48


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, ...], list[int]]:
    """transformers' greedy tokens, by prompt."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(bundled.path(NAME), dtype=torch.float32).eval()
    llm = LLM(NAME, dtype="float32", max_model_len=256, num_gpu_blocks=24)
    found = {}
    for question in QUESTIONS:
        prompt = llm.apply_chat_template([{"role": "user", "content": question}])
        ids = torch.tensor([prompt])
        output = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        found[tuple(prompt)] = output[0, ids.shape[1] :].tolist()
    return found


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({"num_gpu_blocks": 100}, False),
        ({"num_gpu_blocks": 100, "max_num_batched_tokens": 33}, False),
        ({"num_gpu_blocks": 15, "max_num_batched_tokens": 40}, False),
        ({"num_gpu_blocks": 100, "enable_prefix_caching": True}, True),
    ],
    ids=["together", "in chunks", "preempted", "sent again"],
)
def test_greedy_tokens_equal_hf(
    expected: dict[tuple[int, ...], list[int]], options: dict[str, Any], again: bool
) -> None:
    llm = LLM(NAME, dtype="float32", block_size=32, max_model_len=256, max_num_seqs=4, **options)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    prompts: list[Any] = [{"prompt_token_ids": list(prompt)} for prompt in expected]
    for _ in range(1 + again):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == list(expected.values())
    if options["num_gpu_blocks"] < 100:
        assert llm.engine.stats.num_preemptions > 0


def test_it_needs_its_states_and_all_experts() -> None:
    """Measured by `python -m training.train` and `python -m training.evaluate --write`."""
    path = bundled.path(NAME) / "training_report.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["move_of_lost_states"] > 1
    for shares in report["expert_shares"]:
        assert len(shares) == 8 and min(shares) > 0.02
