"""FlexOlmo: experts that were trained apart, and joined by a router.

Source: vllm/model_executor/models/flex_olmo.py#L88-L150 (FlexOlmoDecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.families.experts import COUNT, feed_forwards
from mini_vllm.model.families.table import POST_NORM, Config, Family, Parts
from mini_vllm.model.moe.args import MoEArgs


def parts(config: Config) -> Parts:
    """What its layers are built of: a value for each field of `Parts` that is not Llama's.

    The file speaks first. Of each layer it has these tensors, for hidden size H, KV heads of C
    numbers together, E experts of size I:

        self_attn    q_proj [H, H]   k_proj, v_proj [C, H]   o_proj [H, H]   q_norm [H]   k_norm [C]
        mlp          gate [E, H]   experts: gate_proj, up_proj [I, H]   down_proj [H, I]
        layer        post_attention_layernorm [H]   post_feedforward_layernorm [H]

    All end in `.weight`, and none has a bias. What the file leaves open, transformers' outputs of
    each layer decide: which norm it is, where in the layer it stands, and whether queries and keys
    are normed before they turn or behind. Every layer is alike, whatever `num_hidden_layers` is.
    """
    # TODO 17.12
    raise NotImplementedError(
        "TODO 17.12: write parts in labs/17-models-and-experts/flex_olmo.py"
        " (phase 17, 02-mini-build.md#task-12)"
    )


def args(config: Config) -> dict[str, Any]:
    """Its experts: `{"moe": MoEArgs(...)}`, a field of `ModelArgs`, by the config.

    There are `num_experts`, a token uses `num_experts_per_tok`, an expert is as wide as
    `intermediate_size` says, and `hidden_act` is between its products, "silu" where the config does
    not say. The router is softmax over all experts; the k weights of a token are divided by
    their sum if `norm_topk_prob` is true.
    """
    # TODO 17.12
    raise NotImplementedError(
        "TODO 17.12: write args in labs/17-models-and-experts/flex_olmo.py"
        " (phase 17, 02-mini-build.md#task-12)"
    )


FLEX_OLMO = Family(
    defaults={
        "max_position_embeddings": 4096,
        "norm_topk_prob": False,
        "num_experts": 7,
        "num_experts_per_tok": 5,
        "rope_theta": 500000.0,
    },
    spelled={"intermediate_size": "moe_intermediate_size"},
    rules={"num_experts": COUNT, "num_experts_per_tok": COUNT},
    args=args,
    parts=parts,
    supports=frozenset({"pp", "lora", "quantization"}),  # a norm over all heads needs them all
    can_be_recorded=False,
)
