"""Tiny checkpoints of every family, made from seeds: a config, and weights drawn by their names.

A weight is drawn by a generator of its own, seeded by its name in the file. So a checkpoint is the
same on any machine, in whatever order, and nothing but its config and the names and shapes of its
tensors needs to be kept.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCAB_SIZE = 128
SHAPE: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
STATES = dict(  # of Gated DeltaNets: 2 key heads, 4 value heads
    head_dim=16,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
EXPERTS = dict(
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=24,
)
LATENT: dict[str, Any] = dict(
    num_key_value_heads=4,
    q_lora_rank=12,
    kv_lora_rank=20,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=10,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=16,
    n_shared_experts=2,
    first_k_dense_replace=1,
)
YARN: dict[str, Any] = dict(
    rope_type="yarn", rope_theta=5000.0, factor=4.0, original_max_position_embeddings=32
)
SLIDING = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", dict(attention_bias=True, mlp_bias=True)),
    "qwen2": ("qwen2", dict()),
    "qwen3": ("qwen3", dict(head_dim=16, tie_word_embeddings=True)),
    "qwen3_moe": (
        "qwen3_moe",
        dict(
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            mlp_only_layers=[1],
            norm_topk_prob=True,
        ),
    ),
    "mistral": ("mistral", dict(head_dim=16, sliding_window=None)),
    "phi3": ("phi3", dict()),
    "gemma3_text": ("gemma3_text", dict(head_dim=16, sliding_window=9, layer_types=SLIDING)),
    "olmo2": ("olmo2", dict()),
    "arcee": ("arcee", dict(mlp_bias=True)),
    "cohere": ("cohere", dict(use_qk_norm=True, logit_scale=0.3)),
    "cohere2": ("cohere2", dict(sliding_window=9, layer_types=SLIDING, logit_scale=0.3)),
    "deepseek_v2": (
        "deepseek_v2",
        dict(
            **(LATENT | dict(q_lora_rank=None)),
            topk_method="greedy",
            rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=0.707),
        ),
    ),
    "deepseek_v2_groups": (
        "deepseek_v2",
        dict(
            **LATENT,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.5,
        ),
    ),
    "deepseek_v3": (
        "deepseek_v3",
        dict(
            **LATENT,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=0.707),
        ),
    ),
    "dots1": (
        "dots1",
        dict(
            head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            sliding_window=9,
            max_window_layers=2,
        ),
    ),
    "ernie4_5": ("ernie4_5", dict(head_dim=16, use_bias=True)),
    "exaone4": ("exaone4", dict(sliding_window=9, sliding_window_pattern=3)),
    "flex_olmo": ("flex_olmo", dict(num_experts=6, num_experts_per_tok=3)),
    "gemma": ("gemma", dict(head_dim=12)),
    "gemma2": (
        "gemma2",
        dict(
            head_dim=12,
            query_pre_attn_scalar=9,
            sliding_window=9,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=8.0,
        ),
    ),
    "glm": ("glm", dict(head_dim=16)),
    "glm4_moe": (
        "glm4_moe",
        dict(
            head_dim=8,
            attention_bias=True,
            n_routed_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            n_group=2,
            topk_group=1,
            routed_scaling_factor=1.5,
            use_qk_norm=True,
        ),
    ),
    "gpt_oss": (
        "gpt_oss",
        dict(
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=9,
            swiglu_limit=1.5,
            rope_parameters=YARN | dict(truncate=False),
        ),
    ),
    "glm4": ("glm4", dict(head_dim=12)),
    "granitemoehybrid": (
        "granitemoehybrid",
        dict(
            layer_types=["mamba", "mamba", "attention", "mamba"],
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_d_state=8,
            mamba_n_groups=1,
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=40,
            attention_multiplier=0.2,
            residual_multiplier=0.6,
            logits_scaling=0.5,
        ),
    ),
    "mamba2": ("mamba2", dict(num_heads=8, head_dim=8, state_size=8, n_groups=1)),
    "granite": (
        "granite",
        dict(
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            residual_multiplier=0.6,
            logits_scaling=0.5,
            attention_bias=True,
            mlp_bias=True,
        ),
    ),
    "helium": ("helium", dict(head_dim=8, attention_bias=True)),
    "hunyuan_v1_dense": (
        "hunyuan_v1_dense",
        dict(
            head_dim=8,
            attention_bias=True,
            rope_parameters=dict(rope_type="dynamic", alpha=50.0, factor=1.0, rope_theta=5000.0),
        ),
    ),
    "llama4_text": (
        "llama4_text",
        dict(
            head_dim=16,
            intermediate_size_mlp=40,
            interleave_moe_layer_step=2,
            num_local_experts=4,
            no_rope_layer_interval=3,
            attention_chunk_size=11,
            floor_scale=7,
            rope_parameters=dict(rope_type="default", rope_theta=5000.0),
        ),
    ),
    "ministral": ("ministral", dict(head_dim=8, sliding_window=9, layer_types=SLIDING)),
    "mixtral": ("mixtral", dict(head_dim=16, num_local_experts=6)),
    "nemotron": ("nemotron", dict(head_dim=16)),
    "olmo3": (
        "olmo3",
        dict(
            sliding_window=9,
            layer_types=SLIDING,
            rope_parameters={
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            },
        ),
    ),
    "olmoe": ("olmoe", dict(num_experts=6, num_experts_per_tok=3)),
    "phi": ("phi", dict(num_key_value_heads=4)),
    "qwen2_moe": ("qwen2_moe", dict(**EXPERTS, mlp_only_layers=[1])),
    "qwen3_next": ("qwen3_next", dict(**STATES, **EXPERTS)),
    "qwen3_5_text": ("qwen3_5_text", dict(**STATES)),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", dict(**STATES, **EXPERTS)),
    "seed_oss": ("seed_oss", dict(head_dim=16, attention_out_bias=True)),
    "smollm3": (
        "smollm3",
        dict(no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, sliding_window=9),
    ),
    "stablelm": ("stablelm", dict(use_qkv_bias=True)),
    "stablelm_parallel": ("stablelm", dict(use_parallel_residual=True)),
    "starcoder2": ("starcoder2", dict(sliding_window=9)),
}
"""By name: transformers' `model_type`, and what its config has beside `SHAPE`."""

PROMPT_LENGTHS = (1, 3, 17, 40, 60)
NUM_TOKENS = 12


def prompts() -> list[list[int]]:
    """Token ids; the last begins as the one before it does, so a prefix cache has a hit."""
    generator = torch.Generator().manual_seed(17)
    drawn = [
        torch.randint(1, VOCAB_SIZE, (length,), generator=generator).tolist()
        for length in PROMPT_LENGTHS
    ]
    drawn[-1][:32] = drawn[-2][:32]
    return drawn


def draw(name: str, shape: Sequence[int]) -> Tensor:
    """The float32 weight called `name`: norms near 1, biases and sinks that can be seen, and the
    rest such that activations keep their size and every layer matters."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.randn(*shape, generator=generator)
    last = name.rpartition(".")[2]
    if "norm" in name and len(shape) == 1:
        return 0.3 * x + (0.0 if last == "bias" else 1.0)
    if last in ("A_log", "dt_bias"):  # of a state, which shall remember some 20 tokens
        return x - (1.0 if last == "A_log" else 2.0)
    if len(shape) == 1 or last.endswith("bias"):
        return 0.3 * x
    if "embed" in name or "norm" in name:
        return x
    if "router" in name or name.endswith("gate.weight"):
        return 3.0 * x / shape[-1] ** 0.5
    return 1.6 * x / shape[-1] ** 0.5


def write(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
    """Write a checkpoint of these tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: draw(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors"
    )
