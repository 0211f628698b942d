"""Greedy output in float32 is that of Hugging Face transformers, token for token, however the
requests are scheduled: any block size, budget, pool, with and without prefix caching and chunked
prefill, in any order of arrival, and with requests preempted at random.

A token may differ only where HF's own two best logits are closer than ``GAP``; such excuses are
counted and printed.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput

GAP = 1e-4
MAX_MODEL_LEN = 64
NUM_PROMPTS = 7

SMALL = dict(vocab_size=97, intermediate_size=48, max_position_embeddings=128, num_hidden_layers=2)
CONFIGS = {
    "qwen3-gqa1-tied": Qwen3Config(
        **SMALL, hidden_size=32, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        tie_word_embeddings=True,
    ),
    "qwen3-gqa2-odd-head": Qwen3Config(
        **SMALL, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=False,
    ),
    "llama-gqa4-odd-head": LlamaConfig(
        **SMALL, hidden_size=24, num_attention_heads=4, num_key_value_heads=1, head_dim=12,
        tie_word_embeddings=False,
    ),
    "llama-gqa2-tied": LlamaConfig(
        **SMALL, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
}  # fmt: skip
MODELS = ["storyteller", *CONFIGS]

BLOCK_SIZES = (1, 4, 16)
BUDGETS_AND_CHUNKING = ((7, True), (64, True), (2048, True), (2048, False))


@dataclass(frozen=True)
class Case:
    """Prompts and what HF makes of them."""

    folder: str
    prompts: list[list[int]]
    outputs: list[list[int]]
    gaps: list[list[float]]
    """Difference of HF's two best logits at each output token."""
    max_tokens: list[int]


class RandomlyPreempting(Scheduler):
    """A scheduler that now and then throws out the request it admitted last."""

    forced = 0

    def schedule(self) -> SchedulerOutput:
        draw = random.Random(f"{self.forced}:{len(self.running)}:{self.kv_cache_manager.usage}")
        victims = []
        if self.running and draw.random() < 0.3:
            victims.append(self.running[-1])
            self._preempt(victims[0])
            self.forced += 1
        output = super().schedule()
        output.preempted_req_ids[:0] = [victim.request_id for victim in victims]
        return output


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """One model with prompts of many lengths, two of which share a long prefix."""
    torch.set_num_threads(1)
    if request.param in CONFIGS:
        folder = tmp_path_factory.mktemp(request.param)
        torch.manual_seed(len(request.param))
        model = AutoModelForCausalLM.from_config(CONFIGS[request.param])
        for weight in model.parameters():  # HF's initial weights make flat logits; spread them
            if weight.dim() > 1:
                weight.data.normal_(0, 0.35)
        model.save_pretrained(folder)
    else:
        folder = bundled.path(request.param)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return _ask_hf(model.float().eval(), folder)


def _ask_hf(model: torch.nn.Module, folder: Path) -> Case:
    draw = random.Random(7)
    shared = [draw.randrange(model.config.vocab_size) for _ in range(33)]
    lengths = (1, 4, 16, 17, 31)
    prompts = [[draw.randrange(model.config.vocab_size) for _ in range(n)] for n in lengths]
    prompts += [shared, shared[:32] + prompts[0]]
    max_tokens = [draw.randrange(4, 24) for _ in prompts]
    outputs, gaps = [], []
    for prompt, count in zip(prompts, max_tokens, strict=True):
        tokens, gap = _greedy(model, prompt, count)
        outputs.append(tokens)
        gaps.append(gap)
    return Case(str(folder), prompts, outputs, gaps, max_tokens)


@torch.inference_mode()
def _greedy(model: torch.nn.Module, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """HF's greedy continuation, with the gap between the best two logits at every token."""
    tokens, gaps, past = [], [], None
    inputs = torch.tensor([prompt])
    for _ in range(count):
        result = model(inputs, past_key_values=past, use_cache=True)
        best = result.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        past, inputs = result.past_key_values, best.indices[:1].unsqueeze(0)
    return tokens, gaps


def _num_excused(case: Case, outputs: list[list[int]]) -> int:
    """Compare with HF; returns how many outputs differ from a near-tie on."""
    excused = 0
    for index, (ours, theirs) in enumerate(zip(outputs, case.outputs, strict=True)):
        assert len(ours) == len(theirs), f"prompt {index}: {len(ours)} tokens, HF {len(theirs)}"
        pairs = enumerate(zip(ours, theirs, strict=True))
        place = next((i for i, (a, b) in pairs if a != b), None)
        if place is None:
            continue
        gap = case.gaps[index][place]
        assert gap < GAP, (
            f"prompt {index}, output token {place}: {ours[place]}, HF has {theirs[place]}; its two "
            f"best logits are {gap:.2g} apart, so this is no tie"
        )
        excused += 1
    return excused


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
def test_greedy_tokens_equal_hf(case: Case, block_size: int, tight: bool) -> None:
    """Every budget, chunking and caching, with a fresh arrival order for each."""
    longest = max(len(p) + n for p, n in zip(case.prompts, case.max_tokens, strict=True))
    one_request = -(-longest // block_size)
    num_blocks = 1 + (one_request + 2 if tight else 6 * one_request)
    excused = preempted = hits = 0
    settings = itertools.product(BUDGETS_AND_CHUNKING, (False, True))
    for number, ((budget, chunked), caching) in enumerate(settings):
        llm = LLM(
            case.folder,
            skip_tokenizer_init=True,
            dtype="float32",
            block_size=block_size,
            num_gpu_blocks=num_blocks,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=4,
            enable_chunked_prefill=chunked,
            enable_prefix_caching=caching,
            scheduler_cls=RandomlyPreempting if number % 2 else Scheduler,
        )
        outputs = _generate_in_random_order(llm, case, seed=number)
        excused += _num_excused(case, outputs)
        preempted += llm.engine.stats.num_preemptions
        hits += llm.engine.stats.prefix_hits
        llm.engine.core.scheduler.check_integrity()
        assert llm.engine.core.scheduler.kv_cache_manager.usage == 0
    print(f"excused {excused} of {8 * NUM_PROMPTS}; {preempted} preemptions, {hits} cached tokens")
    assert hits > 0
    assert preempted > 0


def _generate_in_random_order(llm: LLM, case: Case, seed: int) -> list[list[int]]:
    """Run all prompts, some of them arriving while others run; outputs in the case's order."""
    draw = random.Random(seed)
    order = list(range(len(case.prompts)))
    draw.shuffle(order)
    results = {}
    while order or llm.engine.has_unfinished_requests():
        while order and (draw.random() < 0.5 or not llm.engine.has_unfinished_requests()):
            index = order.pop()
            params = SamplingParams(
                temperature=0, max_tokens=case.max_tokens[index], ignore_eos=True
            )
            results[index] = llm.engine.submit(str(index), case.prompts[index], params)
        llm.engine.step()
        llm.engine.core.scheduler.check_integrity()
    return [results[index].outputs[0].token_ids for index in range(len(case.prompts))]
