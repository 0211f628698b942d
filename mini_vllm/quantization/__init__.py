"""Fewer bytes a number: formats that checkpoints come in, and how layers multiply by them."""

from mini_vllm.quantization.config import QuantizationConfig, get_quantization_config
from mini_vllm.quantization.oneshot import oneshot

__all__ = ["QuantizationConfig", "get_quantization_config", "oneshot"]
