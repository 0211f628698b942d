"""The size and the layout of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of

KV_CACHE_DTYPES = (
    "auto",
    "float32",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "int8_per_token_head",
    "fp8_per_token_head",
)


@dataclass(frozen=True)
class CacheConfig:
    """The size and the layout of the KV cache.

    Source: vllm/config/cache.py#L41-L268 (CacheConfig) @ v0.22.1
    """

    block_size: int = 16
    """Tokens per block."""
    num_gpu_blocks: int | None = None
    """Blocks in the pool, the null block included. None: size the pool from free memory."""
    enable_prefix_caching: bool = True
    """Whether full blocks are kept after use and shared between equal prefixes."""
    prefix_cache_retention_interval: int | None = None
    """For layers with windows or states: one block is kept in the prefix cache for each interval of
    so many tokens, besides the end of the prompt and of prefixes that requests share; 0: only
    those. None: as the scheduler's profile says ("v0.22" keeps every block, "current" is as 0).
    Not in vLLM 0.22; vLLM 0.32 has it."""
    num_cpu_blocks: int = 0
    """Blocks in host memory that a swapping policy may use; the V1 scheduler never swaps."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory that weights, activations and KV cache may use together."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV cache of one worker; None: by `gpu_memory_utilization`."""
    cpu_offload_gb: float = 0
    """An argument of vLLM. Weights are on one device here, so it must be 0."""
    kv_cache_dtype: str = "auto"
    """Element type of the cache; "auto": the checkpoint's choice, or else the model's dtype. "fp8"
    has one scale a layer, from the checkpoint; "int8_per_token_head" and "fp8_per_token_head"
    compute one for each head of each token."""

    def __post_init__(self) -> None:
        require_flag("enable_prefix_caching", self.enable_prefix_caching)
        require_at_least("block_size", self.block_size, 1, "16 is the usual choice")
        if self.num_gpu_blocks is not None:
            require_at_least(
                "num_gpu_blocks",
                self.num_gpu_blocks,
                2,
                "block 0 is the null block, so one request needs a second one",
            )
        if self.prefix_cache_retention_interval is not None:
            require_at_least(
                "prefix_cache_retention_interval",
                self.prefix_cache_retention_interval,
                0,
                "leave it out for what the profile does",
            )
        if self.kv_cache_memory_bytes is not None:
            require_at_least(
                "kv_cache_memory_bytes",
                self.kv_cache_memory_bytes,
                1,
                "leave it out to let us choose",
            )
        if self.cpu_offload_gb:
            raise ValueError(
                f"cpu_offload_gb is {self.cpu_offload_gb}; weights lie on one device; leave it "
                "out, use quantization, or device='cpu'"
            )
        require_at_least("num_cpu_blocks", self.num_cpu_blocks, 0, "use 0 for no swapping")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; it must be above 0 and "
                "at most 1; 0.9 is the default"
            )
        require_one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
