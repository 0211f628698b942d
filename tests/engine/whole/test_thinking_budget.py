"""``thinking_token_budget``: a thought ends after so many tokens, and the content follows."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams

END = "</think>"
SMALL: dict[str, Any] = {"num_gpu_blocks": 200, "dtype": "float32", "max_model_len": 256}
TAGS = {"reasoning_parser": "<think>...</think>"}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
PROMPT = "Once upon a time, the fox and the fox and the"


def params(budget: int | None, **more: Any) -> SamplingParams:
    given = {"temperature": 0, "max_tokens": 40, "ignore_eos": True} | more
    return SamplingParams(**given, thinking_token_budget=budget)


@pytest.mark.parametrize("drafter", [None, DRAFTS], ids=["plain", "ngram"])
def test_a_thought_ends_where_its_budget_does(drafter: dict[str, Any] | None) -> None:
    llm = LLM("storyteller-draft", **SMALL, **TAGS, speculative_config=drafter)
    budgets = [None, -1, 30, 7, 1, 0]
    wanted = [params(budget) for budget in budgets]
    form = params(9, structured_outputs={"regex": "ab{3}a"}, ignore_eos=False)
    free, unlimited, *limited = llm.generate([PROMPT] * 6, wanted, use_tqdm=False)
    assert free.outputs[0].token_ids == unlimited.outputs[0].token_ids
    assert END not in free.outputs[0].text
    for budget, output in zip(budgets[2:], limited, strict=True):
        completion = output.outputs[0]
        assert completion.token_ids[:budget] == free.outputs[0].token_ids[:budget]
        thought, end, content = completion.text.partition(END)
        assert end and content.strip() and len(completion.token_ids) == 40
        ids = llm.get_tokenizer().encode(thought, add_special_tokens=False)
        assert abs(len(ids) - budget) <= 1
    (formed,) = llm.generate(PROMPT, form, use_tqdm=False)
    assert formed.outputs[0].text.partition(END)[2] == "abbba"
    (drawn,) = llm.generate(PROMPT, params(5, temperature=1, seed=3, n=2), use_tqdm=False)
    assert all(END in completion.text for completion in drawn.outputs)
    (behind,) = llm.generate(PROMPT + END, params(2), use_tqdm=False)
    assert END not in behind.outputs[0].text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "does not know the model's tags; start it with reasoning_parser"),
        (
            {"structured_outputs_config": {**TAGS, "enable_in_reasoning": True}},
            "start without enable_in_reasoning",
        ),
        ({**TAGS, "skip_tokenizer_init": True}, "leave out skip_tokenizer_init"),
    ],
)
def test_where_there_is_no_thought_to_end(options: dict[str, Any], message: str) -> None:
    llm = LLM("storyteller-draft", **SMALL, **options)
    wanted = params(9, detokenize=False, max_tokens=1)
    with pytest.raises(ValueError, match=f"thinking_token_budget is 9; .*{message}"):
        llm.generate([{"prompt_token_ids": [5]}], wanted, use_tqdm=False)
