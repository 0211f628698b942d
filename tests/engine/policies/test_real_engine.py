"""Every policy in the real engine: the same tokens in float32, however they are scheduled.

The pool is too small for all prompts and answers, so that requests are preempted, swapped and
forked. Token ids only: no tokenizer is loaded.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.policies import POLICIES
from mini_vllm.policies.v0_plan import PreemptionMode, V0Options
from mini_vllm.policies.vllm_v0 import VllmV0, VllmV0Chunked

SWAP = V0Options(preemption_mode=PreemptionMode.SWAP)


class Swapping(VllmV0):
    options = SWAP


class SwappingChunked(VllmV0Chunked):
    options = SWAP


SUBJECTS: dict[str, type[Scheduler]] = POLICIES | {
    "vllm-v0, swap": Swapping,
    "vllm-v0-chunked, swap": SwappingChunked,
}
CONFIG: dict[str, Any] = dict(
    dtype="float32", skip_tokenizer_init=True, block_size=8, num_gpu_blocks=28, num_cpu_blocks=64,
    max_model_len=128, max_num_batched_tokens=128, max_num_seqs=8,
)  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, seed=3, max_tokens=24, ignore_eos=True, n=3)


def make_prompts() -> list[list[int]]:
    """Six prompts of 13 to 51 tokens; three of them share their first 12 tokens."""
    draw = random.Random(1)
    head = [draw.randrange(1000) for _ in range(12)]
    bodies = [[draw.randrange(1000) for _ in range(n)] for n in (1, 39, 20, 33, 13, 45)]
    return [head + body if len(body) % 3 == 0 else body for body in bodies] + [head]


def run(llm: LLM, params: SamplingParams) -> tuple[list[list[int]], Counter[str]]:
    """The tokens of all completions, and what the plans did besides."""
    counts: Counter[str] = Counter()

    def watch(plan: SchedulerOutput, *rest: object) -> None:
        llm.engine.core.scheduler.check_integrity()
        counts["preempted"] += len(plan.preempted_req_ids)
        counts["swapped out"] += len(plan.blocks_to_swap_out)
        counts["swapped in"] += len(plan.blocks_to_swap_in)
        counts["copied"] += len(plan.blocks_to_copy)

    llm.engine.core.observers.append(watch)
    outputs = llm.generate(make_prompts(), params, use_tqdm=False)
    assert all(output.error is None for output in outputs)
    return [c.token_ids for output in outputs for c in output.outputs], counts


@cache
def reference(drawn: bool) -> list[list[int]]:
    """The tokens that vLLM V1's scheduler gives with room for all requests and no cache."""
    config = CONFIG | {"num_gpu_blocks": 256, "enable_prefix_caching": False}
    tokens, counts = run(LLM("storyteller", **config), DRAWN if drawn else GREEDY)
    assert counts["preempted"] == 0
    return tokens


@pytest.mark.parametrize("name", SUBJECTS)
def test_greedy_tokens_do_not_depend_on_the_policy(name: str) -> None:
    tokens, counts = run(LLM("storyteller", scheduler_cls=SUBJECTS[name], **CONFIG), GREEDY)
    print(name, dict(counts))
    assert tokens == reference(drawn=False)
    assert (counts["preempted"] > 0) == (name != "static")
    assert bool(counts["swapped out"]) == bool(counts["swapped in"]) == ("swap" in name)


@pytest.mark.parametrize("name", ["vllm-v0", "vllm-v0-chunked", "vllm-v1"])
def test_three_completions_of_a_prompt_are_the_same_forked_or_not(name: str) -> None:
    """V0 forks them: they share the prompt's blocks and copy the last before they write to it."""
    tokens, counts = run(LLM("storyteller", scheduler_cls=POLICIES[name], **CONFIG), DRAWN)
    print(name, dict(counts))
    assert len({tuple(completion) for completion in tokens}) == len(tokens) == 21
    assert tokens == reference(drawn=True)
    assert counts["preempted"] > 0
    assert (counts["copied"] > 0) == ("v0" in name)
    assert (counts["swapped in"] > 0) == ("v0" in name), "groups of several are swapped"


def test_a_swapped_block_really_lies_on_the_host() -> None:
    """Corrupting it there changes the tokens of its request, and of no other."""
    llm = LLM("storyteller", scheduler_cls=SUBJECTS["vllm-v0, swap"], **CONFIG)
    scheduler, kv_cache = llm.engine.core.scheduler, llm.engine.core.model_runner.kv_cache
    assert isinstance(scheduler, VllmV0)
    victims = []

    def corrupt(*step: object) -> None:
        if scheduler.swapped and not victims:
            victims.append(scheduler.swapped[0][0].request_id)
            blocks = scheduler.kv_cache_manager.host_tables[victims[0]]
            for layer in kv_cache.host_tensors:
                assert torch.all(layer[:, blocks[:-1]].abs().sum(dim=-1) > 0), "nothing was moved"
                layer[:, blocks] = -layer[:, blocks]

    llm.engine.core.observers.append(corrupt)
    tokens, _ = run(llm, GREEDY)
    changed = [str(i) for i, true in enumerate(reference(drawn=False)) if tokens[i] != true]
    assert changed == victims
