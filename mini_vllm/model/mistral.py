"""Mistral: Llama, with a window in all layers if the config has one.

The window is a matter of the config (`families.sliding_windows`), and attention supports windows.
Source: vllm/model_executor/models/mistral.py#L230-L342 (MistralForCausalLM) @ v0.22.1.
"""

from __future__ import annotations

from mini_vllm.model.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """The same layers under another name."""
