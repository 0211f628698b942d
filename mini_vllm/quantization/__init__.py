"""Quantisation: the formats of checkpoints, and matrix products with quantised weights."""

from mini_vllm.quantization.config import QuantizationConfig, get_quantization_config
from mini_vllm.quantization.oneshot import oneshot

__all__ = ["QuantizationConfig", "get_quantization_config", "oneshot"]
