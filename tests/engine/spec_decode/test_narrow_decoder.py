"""A pass of a draft model as one call says what the model says, and asks for no more than it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from labkit.inside.drafting import make_step
from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import get_backend
from mini_vllm.kernels import native
from mini_vllm.model.build import load_model
from mini_vllm.spec_decode.draft_model import DraftModelProposer
from mini_vllm.spec_decode.narrow_decoder import DecoderCall
from mini_vllm.spec_decode.proposer import ProposerInput
from mini_vllm.worker.kv_cache import KVCache
from tests.engine.model.test_model_parity import EXPERTS, MODELS, save_random_model
from tests.engine.model.test_narrow import ROUND

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
CPU = torch.device("cpu")
WHOLE = ["qwen3", "qwen3-gqa4-bias", "qwen3-window", "llama-mha-bias", "llama-yarn", "qwen2"]
IN_PARTS = {"olmo2": {}, "gemma3": {}, "qwen3-moe": EXPERTS, "qwen3": dict(head_dim=20)}
STEP = [
    {"id": "chunk", "tokens": range(40, 52), "computed": 3, "scheduled": 6},
    {"id": "a", "tokens": [5, 9, 60, 7, 33], "computed": 2, "scheduled": 3, "drafts": 2,
     "sampled": 2},
    {"id": "b", "tokens": [8, 1, 90], "computed": 1, "scheduled": 1, "sampled": 1},
]  # fmt: skip
"""A chunk of a prompt, a request of whose two drafts one was right, and a decode."""


def proposer_of(folder: Path, name: str, dtype: str = "float32", **more: Any) -> DraftModelProposer:
    family, overrides = MODELS[name]
    save_random_model(family, overrides | ROUND | more, folder)
    model = load_model(folder, backend=get_backend("cpu", "cpu"), dtype=dtype)
    cache = KVCache(model.kv_cache_spec(), 64, 4, CPU)
    return DraftModelProposer(model, cache, 3, 64, CPU, probabilistic=True)


def drafted(proposer: DraftModelProposer, step: ProposerInput) -> list[Any]:
    """The drafts, the logits' distributions and what is in the cache; the cache is empty then."""
    drafts = proposer.propose(step)
    probs = {i: proposer.draft_probs(i, len(d)) for i, d in drafts.items()}
    held = [layer.clone() for layer in proposer.kv_cache.layers]
    for layer in proposer.kv_cache.layers:
        layer.zero_()
    proposer._probs = {}
    return [drafts, *probs.values(), *held]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each pass had that was one call."""
    counts: list[int] = []
    call = DecoderCall.__call__

    def counted(self: DecoderCall, batch: Any, rows: Any, *rest: Any) -> Tensor:
        counts.append(len(rows))
        return call(self, batch, rows, *rest)

    monkeypatch.setattr(DecoderCall, "__call__", counted)
    return counts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WHOLE)
@torch.inference_mode()
def test_one_call_is_the_pass_to_the_bit(
    name: str, dtype: str, tmp_path: Path, passes: list[int]
) -> None:
    """Drafts, their distributions, and keys and values, of greedy and of drawn ones."""
    proposer = proposer_of(tmp_path, name, dtype)
    if proposer.model.model.norm.weight.dtype != torch.float32:
        pytest.skip("activations are bfloat16 here, and such layers are not one call")
    drawn = {"params": {"temperature": 0.9, "seed": 4}}
    step = make_step([STEP[0], STEP[1] | drawn, STEP[2]])
    whole = drafted(proposer, step)
    assert passes == [3, 2, 2], "of the chunk only the first"
    vars(proposer)["call"] = None
    parts = drafted(proposer, step)
    assert whole[0] == parts[0]
    assert {i: len(d) for i, d in whole[0].items()} == {"a": 3, "b": 3}
    for ours, wanted in zip(whole[1:], parts[1:], strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0)
    assert len(passes) == 3


@pytest.mark.parametrize("name", IN_PARTS)
@torch.inference_mode()
def test_a_model_that_does_more_is_computed_in_parts(name: str, tmp_path: Path) -> None:
    proposer = proposer_of(tmp_path, name, **IN_PARTS[name])
    assert proposer.call is None
    assert len(proposer.propose(make_step(STEP))) == 2


@torch.inference_mode()
def test_hooks_adapters_and_long_passes_are_computed_in_parts(
    tmp_path: Path, passes: list[int]
) -> None:
    proposer = proposer_of(tmp_path, "qwen3")
    seen: list[int] = []
    hook = proposer.model.model.layers[1].mlp.register_forward_hook(lambda *_: seen.append(1))
    proposer.propose(make_step(STEP))
    assert (len(seen), passes) == (3, [])
    hook.remove()
    proposer.model.lm_head.adapters = lambda x, y: y + 1
    proposer.propose(make_step(STEP))
    assert passes == []
    proposer.model.lm_head.adapters = None
    long = {"id": "long", "tokens": range(40), "computed": 0, "scheduled": 39, "sampled": 1}
    proposer.propose(make_step([long]))
    assert passes == [1, 1], "all but the first pass, which has more than 32 tokens"


@pytest.mark.parametrize("start, token", [(64, 5), (-1, 5), (0, 97), (0, -1), (0, 1 << 40)])
@torch.inference_mode()
def test_what_is_not_there_is_an_error(start: int, token: int, tmp_path: Path) -> None:
    """Positions behind the last, and tokens that no vocabulary has."""
    proposer = proposer_of(tmp_path, "qwen3", vocab_size=96)
    step = make_step(STEP)
    one, at = np.ones(1, dtype=np.int32), np.array([start], dtype=np.int32)
    with pytest.raises(IndexError, match=f"row 2 of the batch is to read 1 .* position {start}"):
        proposer._run(step.batch, np.array([2]), at, one, torch.tensor([token]))


@torch.inference_mode()
def test_a_page_outside_the_cache_is_an_error(tmp_path: Path) -> None:
    proposer = proposer_of(tmp_path, "qwen3")
    step = make_step(STEP)
    step.batch.block_table[1, 0] = 64
    with pytest.raises(IndexError, match="row 1 of the batch is to read 3 tokens from position 2"):
        proposer.propose(step)


@pytest.mark.parametrize("name", ["propose", "num_drafts", "first_pass_counts"])
def test_a_learners_own_function_is_what_runs(
    name: str, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call is a pass, and no more: what is to be read, and how far, others decide."""
    entered: list[str] = []
    written = getattr(DraftModelProposer, name)

    def own(self: DraftModelProposer, step: ProposerInput) -> Any:
        entered.append(name)
        return written(self, step)

    monkeypatch.setattr(DraftModelProposer, name, own)
    config = {"method": "draft_model", "model": "storyteller-draft", "num_speculative_tokens": 2}
    llm = LLM(
        "storyteller", dtype="float32", max_model_len=64, num_gpu_blocks=20,
        speculative_config=config,
    )  # fmt: skip
    llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    assert len(entered) == llm.engine.stats.num_steps
    assert passes
