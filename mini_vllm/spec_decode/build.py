"""From a configuration to a speculator: load the drafter, and put it beside the runner.

Source: vllm/v1/worker/gpu_model_runner.py#L581-L660 (GPUModelRunner.__init__) @ v0.22.1
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from mini_vllm.attention import get_backend
from mini_vllm.config import EngineConfig, SpeculativeConfig
from mini_vllm.model.build import load_model
from mini_vllm.model.interface import KVCacheSpec
from mini_vllm.model.layers import to_compute_dtype
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.spec_decode.checks import check_drafter, drafter_folder
from mini_vllm.spec_decode.draft_model import DraftModelProposer
from mini_vllm.spec_decode.eagle import EagleHead, EagleProposer
from mini_vllm.spec_decode.medusa import MedusaHeads, MedusaProposer
from mini_vllm.spec_decode.ngram_proposer import NgramProposer
from mini_vllm.spec_decode.proposer import Proposer
from mini_vllm.spec_decode.speculator import Speculator
from mini_vllm.worker.kv_cache import KVCache
from mini_vllm.worker.runner_frame import RunnerFrame

logger = logging.getLogger(__name__)


@dataclass
class Drafter:
    """What a method has loaded: weights, and the shape of the KV cache that they need."""

    model: LlamaForCausalLM | MedusaHeads | EagleHead | None = None
    kv_cache_spec: KVCacheSpec | None = None


def load_drafter(config: EngineConfig, target: LlamaForCausalLM, device: torch.device) -> Drafter:
    """Load what the configured method guesses with; speculation is on.

    Raises:
        ValueError: if it does not fit the target; the message has both sizes.
        FileNotFoundError: if there is no such model.
    """
    speculative = config.speculative
    assert speculative is not None
    _warn_of_small_budget(config, speculative.num_speculative_tokens)
    if speculative.method == "ngram":
        return Drafter()
    check_drafter(config, target.config)
    folder = drafter_folder(config)
    if speculative.method == "medusa":
        dtype = to_compute_dtype(torch.empty(0, dtype=target.dtype, device=device)).dtype
        return Drafter(MedusaHeads.load(folder, dtype, device))
    if speculative.method == "eagle":
        backend = get_backend(device, config.model.attention_backend)
        head = EagleHead.load(folder, target, backend, config.model.dtype)
        return Drafter(head, head.kv_cache_spec(target.cache_dtype))
    backend = get_backend(device, config.model.attention_backend)
    quant = get_quantization_config(folder)  # of its own: it need not be held as the model is
    model = load_model(folder, config.model.dtype, device, backend, quant=quant)
    return Drafter(model, model.kv_cache_spec())


def make_speculator(
    config: EngineConfig, drafter: Drafter, runner: RunnerFrame, num_blocks: int
) -> Speculator:
    """The runner's speculator, with a KV cache for the drafter if it needs one."""
    speculative = config.speculative
    assert speculative is not None
    rates = speculative.conditional_acceptance_rates
    sampler = RejectionSampler(runner.sample_step.sampler, rates)
    proposer = _make_proposer(config, speculative, drafter, runner, num_blocks)
    return Speculator(proposer, sampler, runner.batch, runner.device)


def _make_proposer(
    config: EngineConfig,
    speculative: SpeculativeConfig,
    drafter: Drafter,
    runner: RunnerFrame,
    num_blocks: int,
) -> Proposer:
    limit = config.scheduler.max_model_len
    if speculative.max_model_len is not None:
        limit = min(limit, speculative.max_model_len)
    if isinstance(drafter.model, MedusaHeads):
        return MedusaProposer(drafter.model, runner.model, speculative.num_speculative_tokens)
    if drafter.model is None:
        shortest, longest = speculative.prompt_lookup_min, speculative.prompt_lookup_max
        assert shortest is not None and longest is not None
        return NgramProposer(shortest, longest, speculative.num_speculative_tokens, limit)
    positions = drafter.model.config.max_position_embeddings
    if positions < limit:
        logger.info(
            "the draft model has %d positions and max_model_len is %d: texts beyond %d tokens go "
            "on without drafts", positions, limit, positions
        )  # fmt: skip
    assert drafter.kv_cache_spec is not None
    cache = KVCache(drafter.kv_cache_spec, num_blocks, config.cache.block_size, runner.device)
    limit = min(limit, positions)
    if isinstance(drafter.model, EagleHead):
        target: Any = runner.model
        return EagleProposer(
            drafter.model, target, cache, speculative.num_speculative_tokens, limit, runner.device
        )
    return DraftModelProposer(
        drafter.model,
        cache,
        speculative.num_speculative_tokens,
        limit,
        runner.device,
        probabilistic=speculative.draft_sample_method == "probabilistic",
    )


def _warn_of_small_budget(config: EngineConfig, k: int) -> None:
    budget = config.scheduler.max_num_batched_tokens
    if budget < k + 1:
        logger.warning(
            "max_num_batched_tokens is %d, but one request with %d drafts needs %d: drafts are "
            "always cut; raise it, or lower num_speculative_tokens", budget, k, k + 1
        )  # fmt: skip
