"""Historic bugs of engine parts that no other test would notice. The catalogue is
`upstream_notes/HISTORY.md`."""

from __future__ import annotations

import pytest

from mini_vllm import LLM, SamplingParams


@pytest.mark.history("nano-vllm#39")
@pytest.mark.parametrize("budget", [2, 63, 64, 500])
def test_bug_nano_vllm_39_a_small_budget_warms_up(budget: int) -> None:
    """The warm-up divided by the number of full-length requests that a step holds: here 64 tokens
    are one, and a smaller budget none."""
    llm = LLM("storyteller-draft", dtype="float32", max_model_len=64, max_num_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    before = llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0].token_ids
    llm.engine.core.model_runner.warm_up(budget, record=None)
    assert llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0].token_ids == before
