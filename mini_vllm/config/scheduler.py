"""The limits that one scheduling step lives under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of

Policy = Literal["fcfs", "priority"]
POLICIES = ("fcfs", "priority")
FLAGS = (
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "uncache_refunded_blocks",
    "disable_chunked_mm_input",
    "async_scheduling",
)


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits one scheduling step lives under.

    Source: vllm/config/scheduler.py#L25-L308 (SchedulerConfig) @ v0.22.1
    """

    max_num_batched_tokens: int = 2048
    """Token budget of a step: the sum over requests of the tokens computed in it."""
    max_num_seqs: int = 128
    """Most requests that may be running, that is, hold KV blocks and a row in the batch."""
    max_model_len: int = 2048
    """Most tokens of prompt and output together that a request may reach."""
    policy: Policy = "fcfs"
    """Order of the waiting queue and choice of preemption victims."""
    long_prefill_token_threshold: int = 0
    """Cap on the tokens that one request gets in one step; 0 means no cap."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be split over several steps when the budget is short."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if its whole present sequence fits the free blocks, not just its
    first chunk ("isl" is upstream's abbreviation for input sequence length)."""
    uncache_refunded_blocks: bool = True
    """Take the blocks that a step was to fill out of the prefix cache again if their request is
    preempted in that very step. Upstream leaves them, so that a later request may read slots
    that were never written; False does the same, to compare with it step by step."""
    num_lookahead_tokens: int = 0
    """KV slots to allocate beyond the scheduled tokens, for draft tokens of the next step."""
    max_num_encoder_input_tokens: int | None = None
    """Tokens of images that one step may encode. None: as many as it may compute of others."""
    encoder_cache_size: int | None = None
    """Tokens of images whose encodings are kept. None: the same number."""
    disable_chunked_mm_input: bool = False
    """Never compute a part of an image in one step and the rest in the next."""
    async_scheduling: bool | None = None
    """Plan a step before the tokens of the step before are known, so that the device never waits
    for Python. None: on a GPU, unless another setting forbids it."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            require_at_least(name, getattr(self, name), 1, "raise it")
        for name in ("long_prefill_token_threshold", "num_lookahead_tokens"):
            require_at_least(name, getattr(self, name), 0, "use 0 to switch it off")
        for name in ("max_num_encoder_input_tokens", "encoder_cache_size"):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), 1, "leave it out for the default")
        for name in FLAGS:
            if name != "async_scheduling" or self.async_scheduling is not None:
                require_flag(name, getattr(self, name))
        require_one_of("policy", self.policy, POLICIES)
