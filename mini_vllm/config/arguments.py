"""The keyword arguments of ``LLM``, ``EngineArgs`` and ``AsyncEngineArgs``, for type checkers.

The configuration classes define the arguments and check the values. A type checker cannot derive
the arguments from them, so this class repeats names and types.
`tests/engine/config/test_arguments.py` checks that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from mini_vllm.config.kv_transfer import KVEventsConfig, KVTransferConfig
from mini_vllm.config.parallel import EPLBConfig
from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.config.profiles import Profile
from mini_vllm.config.scheduler import Policy
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.structured import StructuredOutputsConfig


class EngineOptions(TypedDict, total=False):
    """Arguments of :meth:`~mini_vllm.config.EngineConfig.from_kwargs` beside the model."""

    # ModelConfig
    tokenizer: str | None
    revision: str | None
    tokenizer_revision: str | None
    download_dir: str | None
    hf_token: str | bool | None
    dtype: str
    device: str
    load_format: str
    use_tqdm_on_load: bool
    seed: int
    num_threads: int | None
    attention_backend: str | None
    enforce_eager: bool
    generation_config: str
    override_generation_config: Mapping[str, Any] | None
    hf_overrides: Mapping[str, Any] | None
    logits_processors: Sequence[str | type] | None
    max_logprobs: int
    quantization: str | None
    runner: str
    convert: str
    compile_model: bool
    # CacheConfig
    block_size: int | None
    num_gpu_blocks: int | None
    enable_prefix_caching: bool | None
    prefix_cache_retention_interval: int | None
    num_cpu_blocks: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    cpu_offload_gb: float
    kv_cache_dtype: str
    # SchedulerConfig
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_model_len: int | None
    policy: Policy
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: bool
    enable_chunked_prefill: bool | None
    scheduler_reserve_full_isl: bool
    uncache_refunded_blocks: bool
    watermark: float
    num_lookahead_tokens: int
    max_num_encoder_input_tokens: int | None
    encoder_cache_size: int | None
    disable_chunked_mm_input: bool
    async_scheduling: bool | None
    disable_hybrid_kv_cache_manager: bool | None
    scheduler_profile: Profile
    # ParallelConfig
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    data_parallel_routing: str
    distributed_executor_backend: str | None
    distributed_timeout_seconds: int | None
    enable_expert_parallel: bool
    enable_eplb: bool
    eplb_config: Mapping[str, Any] | str | EPLBConfig
    disable_custom_all_reduce: bool
    # MultiModalConfig
    limit_mm_per_prompt: Mapping[str, int]
    mm_processor_kwargs: Mapping[str, Any] | None
    allowed_media_domains: list[str]
    allowed_local_media_path: str
    # LoRAConfig, with enable_lora
    enable_lora: bool
    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int | None
    lora_dtype: str
    reasoning_parser: str | None
    # Sections that are one argument each: a dict, its JSON, or the dataclass.
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None
    spec_method: str | None
    spec_model: str | None
    spec_tokens: int | None
    structured_outputs_config: Mapping[str, Any] | str | StructuredOutputsConfig | None
    kv_transfer_config: Mapping[str, Any] | str | KVTransferConfig | None
    kv_events_config: Mapping[str, Any] | str | KVEventsConfig | None
    pooler_config: Mapping[str, Any] | str | PoolerConfig | None
    # vLLM's names of arguments that have other names here
    num_gpu_blocks_override: int | None
    scheduling_policy: Policy
    # Arguments of vLLM that are accepted without effect: `vllm_names.IGNORED`
    trust_remote_code: bool
    served_model_name: str | list[str] | None
    shutdown_timeout: float
    safetensors_load_strategy: str | None
    ignore_patterns: str | list[str]
    code_revision: str | None
    max_seq_len_to_capture: int
    swap_space: float
    disable_cascade_attn: bool
    enable_log_requests: bool
    disable_log_requests: bool
    enable_server_load_tracking: bool
    prefix_caching_hash_algo: str
    enable_sleep_mode: bool
    additional_config: Mapping[str, Any]
    nccl_so_path: str | None
    # Arguments of vLLM with only these legal values: `vllm_names.AS_IT_IS`
    logprobs_mode: Literal["raw_logprobs"]
    tokenizer_mode: Literal["auto", "hf", "slow"]
    config_format: Literal["auto", "hf"]
    model_impl: Literal["auto", "vllm"]
    performance_mode: Literal["balanced"]
