"""The part `smoke` of `gpu-report`: each feature's tokens on the GPU against the CPU's, in 90 s.

Greedy or seeded, in float32, with the bundled models. Whatever rounds is left out: its tokens may
differ in the last bit, and says nothing about the engine.
"""

from __future__ import annotations

from typing import Any

from labkit.gpu.checks import expect_equal, tokens_of

Feature = tuple[dict[str, Any], dict[str, Any]]
FEATURES: dict[str, Feature] = {
    "plain": ({}, {}),
    "launched_one_by_one": ({}, {"enforce_eager": True}),
    "results_in_time": ({}, {"async_scheduling": False}),
    "chunks": ({}, {"max_num_batched_tokens": 4}),
    "tight_pool": ({}, {"num_gpu_blocks": 6, "block_size": 4}),
    "seeds": ({"temperature": 1.0, "seed": 3}, {}),
    "three_each": ({"temperature": 1.0, "seed": 3, "n": 3}, {}),
    "penalties": ({"repetition_penalty": 1.3, "presence_penalty": 0.5}, {}),
    "bad_words": ({"bad_words": ["a", "the"]}, {}),
    "logprobs": ({"logprobs": 3, "prompt_logprobs": 2}, {}),
    "a_grammar": ({"structured_outputs": {"regex": "[a-z ]{20}"}}, {}),
    "n_grams": ({}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}),
    "priorities": ({}, {"policy": "priority"}),
}
"""By name: sampling parameters, and arguments of `LLM`."""


def run(name: str, device: str = "cuda") -> dict[str, Any]:
    """What was compared; raises AssertionError for the first prompt that differs."""
    sampling, options = FEATURES[name]
    right = tokens_of("cpu", sampling, **options)
    expect_equal(name, tokens_of(device, sampling, **options), right)
    return {"saw": f"{sum(map(len, right))} tokens"}
