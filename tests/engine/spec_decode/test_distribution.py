"""The engine with drawn drafts says three tokens with the target's own law, by chi-square.

A prompt's first token is drawn without drafts; the second and third are drafts judged in one pass.
With top_k 3 there are 27 texts, whose probabilities are computed one token at a time. The threshold
rejects a right sampler once in 10,000 runs, and the mistake that most explanations make, to replace
a rejected draft from p, is far beyond it: the second test says how far.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.naive import ContiguousKVCache, next_token_logits
from mini_vllm.sample import rejection_sampler
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_output.token_index import unpack_bits

PROMPT = [301, 402, 503, 604]
TEMPERATURE, TOP_K, NUM_REQUESTS = 1.4, 3, 1500
THRESHOLD = 61.9
"""Of chi-square with 26 degrees of freedom, exceeded with probability 1e-4; less so with fewer."""


GRAMMAR = "[^r]{60,80}"
"""Forbids a part of what the draft model likes to say."""


def make() -> LLM:
    drafts = {"method": "draft_model", "model": "storyteller-draft", "num_speculative_tokens": 2,
              "draft_sample_method": "probabilistic"}  # fmt: skip
    return LLM("storyteller", dtype="float32", max_model_len=64, num_gpu_blocks=600,
               speculative_config=drafts)  # fmt: skip


def exact_law(llm: LLM, regex: str | None = None) -> dict[tuple[int, ...], float]:
    """Every text of three tokens, and its probability, by plain passes of the target."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, share in law.items():
            tokens = [*PROMPT, *text]
            cache = ContiguousKVCache(llm.engine.core.model, len(tokens))
            logits = next_token_logits(llm.engine.core.model, cache, tokens, 0)
            if regex is not None:
                logits = masked(llm, regex, text, logits.flatten())
            best = (logits.flatten() / TEMPERATURE).topk(TOP_K)
            for token, p in zip(
                best.indices.tolist(), best.values.softmax(0).tolist(), strict=True
            ):
                longer[(*text, token)] = share * p
        law = longer
    return law


def masked(llm: LLM, regex: str, text: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
    """-inf wherever `regex` does not go on from `text`."""
    backend = llm.engine.core.structured_output_manager.backend
    grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, regex)
    assert grammar.accept_tokens("", list(text))
    row = backend.allocate_token_bitmask(1)
    grammar.fill_bitmask(row, 0)
    allowed = unpack_bits(row[0].numpy(), len(logits))
    return logits.where(torch.from_numpy(allowed), float("-inf"))


def chi_square(llm: LLM, regex: str | None = None) -> float:
    law = exact_law(llm, regex)
    constraint = None if regex is None else StructuredOutputsParams(regex=regex)
    params = [
        SamplingParams(
            temperature=TEMPERATURE, top_k=TOP_K, seed=seed, max_tokens=3, ignore_eos=True,
            structured_outputs=constraint,
        )
        for seed in range(NUM_REQUESTS)
    ]  # fmt: skip
    outputs = llm.generate([PROMPT] * NUM_REQUESTS, params, use_tqdm=False)
    counts = Counter(tuple(output.outputs[0].token_ids) for output in outputs)
    assert set(counts) <= set(law)
    cells = [(counts[text], NUM_REQUESTS * p) for text, p in law.items()]
    rare = [cell for cell in cells if cell[1] < 8]  # too few for the theory: they count as one
    cells = [cell for cell in cells if cell[1] >= 8] + [tuple(map(sum, zip(*rare, strict=True)))]
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)


def test_three_tokens_have_the_targets_law() -> None:
    llm = make()
    assert chi_square(llm) < THRESHOLD
    stats = llm.engine.stats.spec_decode
    assert stats is not None and 0.2 < stats.acceptance_rates[0] < 0.95  # both ways were taken


def test_a_replacement_from_p_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_p(draft_token_ids: Any, draft_probs: Any, target_probs: torch.Tensor) -> torch.Tensor:
        return target_probs

    monkeypatch.setattr(rejection_sampler, "recovered_probs", from_p)
    assert chi_square(make()) > 1.5 * THRESHOLD


def test_a_grammar_keeps_the_law_too() -> None:
    llm = make()
    assert chi_square(llm, GRAMMAR) < THRESHOLD
    stats = llm.engine.stats.spec_decode
    assert stats is not None and 0.1 < stats.acceptance_rates[0] < 0.9


def test_an_illegal_draft_is_replaced_from_the_residual() -> None:
    """Why `limit_drafts` keeps the first illegal one of drawn drafts, on paper: p and q of three
    tokens, of which the grammar forbids the last."""
    p, q = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.0, 0.75]])
    kept = torch.minimum(p, q)
    residual = rejection_sampler.recovered_probs(torch.tensor([2]), q, p)
    assert torch.allclose(kept + 0.75 * residual, p)
    assert torch.allclose(kept + 0.75 * p, torch.tensor([[0.625, 0.375, 0.0]]))  # were it dropped


def test_the_texts_are_all_there_is() -> None:
    law = exact_law(make())
    assert len(law) == TOP_K**3 == len(list(itertools.product(range(TOP_K), repeat=3)))
    assert abs(sum(law.values()) - 1) < 1e-5
