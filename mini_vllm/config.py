"""What an engine is told before it starts. Plain data, checked on construction, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Policy = Literal["fcfs", "priority"]
POLICIES = ("fcfs", "priority")


def _require_at_least(name: str, value: int, minimum: int, fix: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}; it must be a whole number; {fix}")
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be at least {minimum}; {fix}")


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

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            _require_at_least(name, getattr(self, name), 1, "raise it")
        for name in ("long_prefill_token_threshold", "num_lookahead_tokens"):
            _require_at_least(name, getattr(self, name), 0, "use 0 to switch it off")
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}; it must be one of {', '.join(POLICIES)}")


@dataclass(frozen=True)
class CacheConfig:
    """How the KV cache is cut into blocks.

    Source: vllm/config/cache.py#L41-L268 (CacheConfig) @ v0.22.1
    """

    block_size: int = 16
    """Tokens per block."""
    num_gpu_blocks: int | None = None
    """Blocks in the pool, the null block included. None: size the pool from free memory."""
    enable_prefix_caching: bool = True
    """Whether full blocks are kept after use and shared between equal prefixes."""
    num_cpu_blocks: int = 0
    """Blocks in host memory that a swapping policy may use; the V1 scheduler never swaps."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory that weights, activations and KV cache may use together."""
    kv_cache_dtype: str = "auto"
    """What the cache holds; "auto": what the checkpoint says, or the model's dtype. "fp8" has one
    scale a layer, from the checkpoint; "int8_per_token_head" and "fp8_per_token_head" choose one
    for each head of each token."""

    def __post_init__(self) -> None:
        _require_at_least("block_size", self.block_size, 1, "16 is the usual choice")
        if self.num_gpu_blocks is not None:
            _require_at_least(
                "num_gpu_blocks",
                self.num_gpu_blocks,
                2,
                "block 0 is the null block, so one request needs a second one",
            )
        _require_at_least("num_cpu_blocks", self.num_cpu_blocks, 0, "use 0 for no swapping")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; it must be above 0 and "
                "at most 1; 0.9 is the default"
            )
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ValueError(
                f"kv_cache_dtype is {self.kv_cache_dtype!r}; it must be one of "
                f"{', '.join(KV_CACHE_DTYPES)}"
            )


DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = (*DTYPES, "fp8", "fp8_e4m3", "int8_per_token_head", "fp8_per_token_head")


@dataclass(frozen=True)
class ModelConfig:
    """Which model to load, and how.

    Source: vllm/config/model.py#L116-L1898 (ModelConfig) @ v0.22.1
    """

    model: str
    """A folder in Hugging Face layout, or the name of a bundled model."""
    tokenizer: str | None = None
    """Another folder for the tokenizer; None: the model's own."""
    dtype: str = "auto"
    """Element type of weights and KV cache; "auto": the type the checkpoint names."""
    device: str = "auto"
    """ "cpu", "cuda", or "auto": cuda where there is one."""
    load_format: str = "auto"
    """ "auto": read the safetensors; "dummy": seeded random weights, for benchmarks."""
    seed: int = 0
    """Root of all random numbers of requests that bring no seed of their own."""
    num_threads: int | None = None
    """Threads torch may use on a CPU, in the whole process. None: one for a small model, whose
    products are not worth splitting, and as many as torch likes for others."""
    attention_backend: str | None = None
    """Name of an attention backend; None: the fastest one for the device."""
    enforce_eager: bool = False
    """Launch every kernel of every step from Python: no CUDA graphs. They are used on GPUs only."""
    quantization: str | None = None
    """How weights are held; None: as the checkpoint says. "int8" and "fp8" round a checkpoint in
    full precision while it is loaded."""
    compile_model: bool = False
    """Let `torch.compile` fuse what lies between attention calls; the first steps wait for it."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.num_threads is not None:
            _require_at_least("num_threads", self.num_threads, 1, "leave it out to let us choose")
        if self.load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format is {self.load_format!r}; it must be 'auto' or 'dummy'")


@dataclass(frozen=True)
class EngineConfig:
    """Everything that :class:`~mini_vllm.engine.core.EngineCore` needs to start."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        scheduler = self.scheduler
        too_small = scheduler.max_num_batched_tokens < scheduler.max_model_len
        if too_small and not scheduler.enable_chunked_prefill:
            raise ValueError(
                f"max_num_batched_tokens is {scheduler.max_num_batched_tokens}; without chunked "
                f"prefill it must be at least max_model_len={scheduler.max_model_len}, or a long "
                "request could never run; raise it, lower max_model_len or set "
                "enable_chunked_prefill=True"
            )
