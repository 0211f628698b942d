"""Phi-3: Llama, in a checkpoint whose projections are already stacked.

    Llama's file   q_proj [q, H], k_proj [k, H], v_proj [k, H]  -> our qkv_proj [q + 2k, H]
    Phi-3's file   qkv_proj [q + 2k, H]                         -> the same, as one tensor

Phi-4-mini is a Phi-3, too: only a part of each head is rotated, with scaled angles ("longrope").
Source: vllm/model_executor/models/phi3.py#L10-L18 (Phi3ForCausalLM) @ v0.22.1.
"""

from mini_vllm.model.families.table import Family, window_everywhere

PHI3 = Family(
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    windows=window_everywhere,
    stacked={"qkv_proj": ["qkv_proj"], "gate_up_proj": ["gate_up_proj"]},
    supports=frozenset({"pp", "quantization", "compile"}),
)
