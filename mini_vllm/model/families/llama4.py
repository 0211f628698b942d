"""Llama 4 (text): three layers of four have a rotation, and attention within chunks of the text.

    with rotation      neighbours are pairs; queries and keys are scaled to length sqrt(D); a token
                       attends to its own chunk of `attention_chunk_size` tokens
    without rotation   full attention; queries grow slowly with the position
    experts            sigmoid of the best logit times the *input*; a shared expert; some layers
                       have an MLP

Source: vllm/model_executor/models/llama4.py#L168-L311 (Llama4Attention) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, integer, list_of, number, one_of
from mini_vllm.model.families.experts import COUNT, SIZE, feed_forwards
from mini_vllm.model.families.table import Config, Family, Parts, QueryGrowth, rotates
from mini_vllm.model.moe.args import MoEArgs

KINDS = ("full_attention", "chunked_attention")


def chunks(config: Config) -> list[int | None]:
    """The chunk size of each layer; None: full attention."""
    size = config["attention_chunk_size"]
    kinds = config.get("layer_types") or [KINDS[turns] for turns in rotates(config)]
    return [size if kind == "chunked_attention" else None for kind in kinds]


def dense_layers(config: Config) -> list[int]:
    every = config["interleave_moe_layer_step"]
    sparse = config.get("moe_layers")
    if sparse is None:
        sparse = range(every - 1, config["num_hidden_layers"], every)
    return [index for index in range(config["num_hidden_layers"]) if index not in sparse]


def parts(config: Config) -> Parts:
    growth = QueryGrowth(rate=config["attn_scale"], every=config["floor_scale"], offset=1)
    return Parts(
        feed_forwards=feed_forwards(config, dense_layers(config)),
        qk_norm="length" if config["use_qk_norm"] else None,
        norms_after_rotation=True,
        rotates=rotates(config),
        turns_neighbours=True,
        chunks=chunks(config),
        query_growth=growth if config["attn_temperature_tuning"] else None,
    )


def experts(config: Config) -> dict[str, Any]:
    moe = MoEArgs(
        num_experts=config["num_local_experts"],
        num_experts_per_tok=config["num_experts_per_tok"],
        moe_intermediate_size=config["moe_intermediate_size"],
        routing="topk_sigmoid",
        hidden_act=config.get("hidden_act", "silu"),
        shared_expert_intermediate_size=config["moe_intermediate_size"],
        is_transposed=True,
        dense_layers=tuple(dense_layers(config)),
    )
    return {"moe": moe}


SWITCHES = list_of(integer(0, 1), "zeros and ones, one a layer").or_null()
LLAMA4 = Family(
    defaults={
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "head_dim": 128,
        "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 131072,
        "no_rope_layer_interval": 4,
        "num_experts_per_tok": 1,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "use_qk_norm": True,
    },
    spelled={  # in this order
        "intermediate_size": "moe_intermediate_size",
        "intermediate_size_mlp": "intermediate_size",
    },
    rules={
        "attention_chunk_size": SIZE.or_null(),
        "attn_scale": number(0, 1e6),
        "attn_temperature_tuning": BOOLEAN,
        "floor_scale": number(1, 1e9),
        "interleave_moe_layer_step": integer(1, 1024),
        "intermediate_size_mlp": SIZE,
        "layer_types": list_of(one_of(*KINDS), f"kinds, one a layer: {', '.join(KINDS)}").or_null(),
        "moe_layers": list_of(integer(0, 1024), "layer numbers").or_null(),
        "no_rope_layers": SWITCHES,
        "no_rope_layer_interval": integer(1, 1024),
        "num_experts_per_tok": COUNT,
        "num_local_experts": COUNT,
        "use_qk_norm": BOOLEAN,
    },
    args=experts,
    parts=parts,
    supports=frozenset({"pp"}),
    can_be_recorded=False,
)
