"""Granite 4, dense: Mamba2 in most layers, attention without positions in the others.

    mamba        a state of Mamba2
    attention    grouped-query attention; no rotation unless position_embedding_type is "rope"

Each layer has an MLP, whose first two projections are one tensor in the file. It also has the four
scale factors of Granite 3 (`granite.py`).

Source: vllm/model_executor/models/granitemoehybrid.py#L55-L140 (GraniteMoeHybridMambaDecoderLayer)
@ v0.22.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, Rule, integer, list_of, one_of
from mini_vllm.model.families.granite import GRANITE
from mini_vllm.model.families.granite import parts as granite_parts
from mini_vllm.model.families.mamba2 import SIZE, UNLIMITED, checked
from mini_vllm.model.families.table import LLAMA_STACKS, Config, Family, Parts
from mini_vllm.model.mixers.args import Mamba2Args

MIXERS = {
    "mamba": "granite_mamba2",
    "linear_attention": "granite_mamba2",  # as newer files of transformers spell it
    "attention": "attention",
    "full_attention": "attention",
}


def parts(config: Config) -> Parts:
    num_layers = config["num_hidden_layers"]
    kinds = config.get("layer_types") or ["mamba"] * num_layers
    turns = config["position_embedding_type"] == "rope"
    return replace(
        granite_parts(config),
        mixers=[MIXERS[kind] for kind in kinds],
        rotates=[turns] * num_layers,
    )


def args(config: Config) -> dict[str, Any]:
    heads = config["mamba_n_heads"]
    head_dim = config["mamba_d_head"]
    if head_dim == "auto":
        head_dim = config["mamba_expand"] * config["hidden_size"] // heads
    found = Mamba2Args(
        num_heads=heads,
        head_dim=head_dim,
        state_size=config["mamba_d_state"],
        n_groups=config["mamba_n_groups"],
        conv_kernel=config["mamba_d_conv"],
        use_conv_bias=config["mamba_conv_bias"],
        use_bias=config["mamba_proj_bias"],
    )
    return {"mamba2": checked(found), "intermediate_size": config["shared_intermediate_size"]}


GRANITE_HYBRID = Family(
    defaults={
        **GRANITE.defaults,
        "intermediate_size": 11008,
        "shared_intermediate_size": 1024,
        "num_local_experts": 8,
        "position_embedding_type": None,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_head": "auto",
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    },
    spelled={"layers_block_type": "layer_types"},
    rules={
        **GRANITE.rules,
        "layer_types": list_of(one_of(*MIXERS), f"kinds of layers: {', '.join(MIXERS)}").or_null(),
        "shared_intermediate_size": SIZE,
        "num_local_experts": Rule(
            lambda value: not value, "only 0 is supported: of Granite 4 the dense models"
        ),
        "num_experts_per_tok": integer(0, 2**16),
        "position_embedding_type": one_of("rope", "nope").or_null(),
        "mamba_n_heads": SIZE,
        "mamba_n_groups": SIZE,
        "mamba_d_state": SIZE,
        "mamba_d_head": Rule(
            lambda value: value == "auto" or SIZE.legal(value), f'{SIZE.says}, or "auto"'
        ),
        "mamba_d_conv": integer(2, 64),
        "mamba_expand": SIZE,
        "mamba_conv_bias": BOOLEAN,
        "mamba_proj_bias": BOOLEAN,
        "time_step_limit": UNLIMITED,
    },
    parts=parts,
    args=args,
    names={
        **{
            f"self_attn.{name}": f"mamba.{name}"
            for name in ("in_proj.", "conv1d.", "A_log", "dt_bias", "D", "norm.", "out_proj.")
        },
        "mlp.gate_up_proj.": "shared_mlp.input_linear.",
        "mlp.down_proj.": "shared_mlp.output_linear.",
    },
    stacked={
        "qkv_proj": LLAMA_STACKS["qkv_proj"],
        **{name: [name] for name in ("gate_up_proj", "in_proj", "conv1d")},
    },
    supports=frozenset({"states", "tp"}),
    can_be_recorded=False,
)
