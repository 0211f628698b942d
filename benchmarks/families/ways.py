"""A tiny checkpoint through the engine, one way or another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.families.tiny import prompts
from mini_vllm import LLM, RequestOutput, SamplingParams

BASE: dict[str, Any] = dict(
    skip_tokenizer_init=True, dtype="float32", block_size=4, num_gpu_blocks=300, max_model_len=128
)
WAYS: dict[str, dict[str, Any]] = {
    "alone": dict(max_num_seqs=1, enable_prefix_caching=False),
    "batch": dict(enable_prefix_caching=False),
    "chunks": dict(max_num_batched_tokens=7, enable_prefix_caching=False),
    "preempted": dict(enable_prefix_caching=False),
    "hits": dict(),
    "int8": dict(quantization="int8"),
}
POOLS = (4, 8, 10, 12, 13, 14, 16, 18, 20, 22, 26, 32, 40, 52, 68, 90, 120)
"""Blocks to try, fewest first: which pool is tight depends on how a family's layers are grouped."""


@dataclass(frozen=True)
class Found:
    """What came out.

    Args:
        same: answers that are transformers'.
        total: answers.
        begun: tokens before the first that differs, of all answers.
        happened: requests that were preempted ("preempted") or had a prefix found ("hits").
    """

    same: int
    total: int
    begun: int
    happened: int


def go(folder: Path, way: str, wanted: list[list[int]], keeps_states: bool = False) -> Found:
    """Generate `way` and compare with `wanted`. A step of a model with states fills a block."""
    wanted = wanted * 3 if way == "preempted" else wanted  # more than fit
    options = WAYS[way]
    if keeps_states and way == "chunks":
        options = options | {"max_num_batched_tokens": 33}
    outputs = _tight(folder, wanted) if way == "preempted" else _generate(folder, options, wanted)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    counts = [num_preemptions(o) if way == "preempted" else o.num_cached_tokens for o in outputs]
    return Found(
        same=sum(ours == theirs for ours, theirs in zip(tokens, wanted, strict=True)),
        total=len(wanted),
        begun=sum(map(begun, tokens, wanted)),
        happened=sum(bool(count) for count in counts),
    )


def num_preemptions(output: RequestOutput) -> int:
    return output.metrics.num_preemptions if output.metrics is not None else 0


def begun(ours: list[int], theirs: list[int]) -> int:
    """How many tokens two answers have in common before they part."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((index for index, (a, b) in pairs if a != b), len(ours))


def _generate(
    folder: Path, options: dict[str, Any], wanted: list[list[int]]
) -> list[RequestOutput]:
    llm = LLM(folder, **(BASE | options))
    params = SamplingParams(temperature=0, max_tokens=len(wanted[0]), ignore_eos=True)
    texts = prompts() * (len(wanted) // len(prompts()))
    outputs = llm.generate(texts, params, use_tqdm=False)
    if options.get("enable_prefix_caching", True):  # again: now every prompt is there
        outputs = llm.generate(texts, params, use_tqdm=False)
    return outputs


def _tight(folder: Path, wanted: list[list[int]]) -> list[RequestOutput]:
    """With the smallest pool that holds each request, so that not all run side by side."""
    outputs: list[RequestOutput] = []
    for pool in POOLS:
        try:
            outputs = _generate(folder, WAYS["preempted"] | {"num_gpu_blocks": pool}, wanted)
        except ValueError:  # no room for a block of each kind
            continue
        if all(len(output.outputs[0].token_ids) == len(wanted[0]) for output in outputs):
            break
    return outputs
