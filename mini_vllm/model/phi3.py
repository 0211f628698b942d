"""Phi-3: Llama, in a checkpoint that has stacked its projections already.

    Llama's file   q_proj [q, H], k_proj [k, H], v_proj [k, H]  -> our qkv_proj [q + 2k, H]
    Phi-3's file   qkv_proj [q + 2k, H]                         -> the same, whole

Phi-4-mini is one, too: only a part of each head turns, and its angles are stretched ("longrope").
Source: vllm/model_executor/models/phi3.py#L10-L18 (Phi3ForCausalLM) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mini_vllm.model.llama import LlamaForCausalLM


class Phi3ForCausalLM(LlamaForCausalLM):
    stacked: Mapping[str, Sequence[str]] = {
        "qkv_proj": ["qkv_proj"],
        "gate_up_proj": ["gate_up_proj"],
    }
    supports = LlamaForCausalLM.supports - {"tp", "lora"}
