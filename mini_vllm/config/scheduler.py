"""The limits of one scheduling step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of
from mini_vllm.config.profiles import PROFILES, Profile, SchedulerRules

Policy = Literal["fcfs", "priority"]
POLICIES = ("fcfs", "priority")
FLAGS = (
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "uncache_refunded_blocks",
    "disable_chunked_mm_input",
    "async_scheduling",
    "disable_hybrid_kv_cache_manager",
    "long_prefill_token_threshold_adaptive",
)
LEFT_OPEN = ("async_scheduling", "disable_hybrid_kv_cache_manager")
"""Flags for which the engine chooses a value if they are None."""


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of one scheduling step.

    Source: vllm/config/scheduler.py#L25-L308 (SchedulerConfig) @ v0.22.1
    """

    max_num_batched_tokens: int = 2048
    """Token budget of a step: the sum over requests of the tokens computed in it."""
    max_num_seqs: int = 128
    """Most running requests, that is, requests with KV blocks and a row in the batch."""
    max_model_len: int = 2048
    """Most tokens of a request, prompt and output together."""
    policy: Policy = "fcfs"
    """Order of the waiting queue and choice of preemption victims."""
    long_prefill_token_threshold: int = 0
    """Cap on the tokens that one request gets in one step; 0 means no cap."""
    long_prefill_token_threshold_adaptive: bool = False
    """Never cap a request below its fair share of the budget: ``max_num_batched_tokens`` divided by
    the unfinished requests. Not in 0.22; vLLM 0.32 has it."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be split over several steps when the budget is short."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if its whole present sequence fits the free blocks, not just its
    first chunk ("isl" is upstream's abbreviation for input sequence length)."""
    uncache_refunded_blocks: bool = True
    """If a request is preempted in a step, remove the blocks that this step was to fill from the
    prefix cache. vLLM does not, so a later request may read slots that were never written; False
    does the same, to compare with vLLM step by step."""
    watermark: float = 0.0
    """Share of the blocks, from 0 to below 1, that must stay free when a request is admitted beside
    others, so that they need not be preempted soon. Not in vLLM 0.22; vLLM 0.32 has it."""
    num_lookahead_tokens: int = 0
    """KV slots to allocate beyond the scheduled tokens, for draft tokens of the next step."""
    max_num_encoder_input_tokens: int | None = None
    """Most image tokens that one step may encode. None: `max_num_batched_tokens`."""
    encoder_cache_size: int | None = None
    """Most image tokens in the encoder cache. None: the same number."""
    disable_chunked_mm_input: bool = False
    """Never split the tokens of an image between two steps."""
    async_scheduling: bool | None = None
    """Schedule a step before the tokens of the previous step are known, so that the device does not
    wait for Python. None: on a GPU, unless another setting forbids it."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """Keep the KV of the whole text in layers with a window, too. None: free the blocks before the
    windows, unless another setting forbids it."""
    profile: Profile = "v0.22"
    """The release of vLLM whose scheduling decisions are made: "v0.22", the pinned one, or
    "current", a newer one; see :mod:`mini_vllm.config.profiles`."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            require_at_least(name, getattr(self, name), 1, "raise it")
        for name in ("long_prefill_token_threshold", "num_lookahead_tokens"):
            require_at_least(name, getattr(self, name), 0, "use 0 to switch it off")
        for name in ("max_num_encoder_input_tokens", "encoder_cache_size"):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), 1, "leave it out for the default")
        for name in FLAGS:
            if name not in LEFT_OPEN or getattr(self, name) is not None:
                require_flag(name, getattr(self, name))
        require_one_of("policy", self.policy, POLICIES)
        require_one_of("profile", self.profile, tuple(PROFILES))
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(
                f"watermark is {self.watermark}; it must be at least 0 and below 1; use 0 to "
                "switch it off"
            )

    @property
    def rules(self) -> SchedulerRules:
        """The rules of the profile."""
        return PROFILES[self.profile]
