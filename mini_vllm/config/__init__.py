"""An engine's settings: plain data, checked on construction, no torch.

One section a module, one frozen dataclass a section, and :class:`EngineConfig` holds them all.
"""

from mini_vllm.config.cache import CacheConfig
from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.kv_transfer import KVEventsConfig, KVTransferConfig
from mini_vllm.config.lora import LoRAConfig
from mini_vllm.config.model import DTYPES, ModelConfig
from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.config.parallel import EPLBConfig, ParallelConfig
from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.config.scheduler import POLICIES, Policy, SchedulerConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.structured import StructuredOutputsConfig

VllmConfig = EngineConfig
"""vLLM's name, for the type hints of logits processors."""

__all__ = [
    "DTYPES",
    "POLICIES",
    "CacheConfig",
    "EPLBConfig",
    "EngineConfig",
    "KVEventsConfig",
    "KVTransferConfig",
    "LoRAConfig",
    "ModelConfig",
    "MultiModalConfig",
    "ParallelConfig",
    "Policy",
    "PoolerConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
    "StructuredOutputsConfig",
    "VllmConfig",
]
