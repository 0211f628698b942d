"""The two functions that the engine finds by the package's entry points.

Nothing of the engine is imported before one of them is called.
"""

from __future__ import annotations


def platform() -> str | None:
    """The path of the platform; None would say that its device is not in this machine."""
    return "tutor.platform.TutorPlatform"


def register() -> None:
    """Add the attention backend, a name for models, and a name for quantised checkpoints."""
    from mini_vllm.attention.selector import register_backend
    from mini_vllm.model.registry import register_model
    from mini_vllm.quantization.config import Fp8Config, register_quantization_config

    register_backend("counting", "tutor.attention.CountingAttention")
    register_model("TutorForCausalLM", "mini_vllm.model.llama:LlamaForCausalLM")
    register_quantization_config("tutor_fp8")(Fp8Config)
