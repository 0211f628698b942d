"""An engine's settings: plain data, checked on construction, without torch.

Each section is a frozen dataclass in its own module. :class:`EngineConfig` has all sections.
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
"""vLLM's name of the class, for type hints in logits processors."""

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
