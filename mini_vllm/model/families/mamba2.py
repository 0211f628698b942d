"""Mamba2: each layer has a state, and neither attention nor an MLP.

    x + mixer(norm(x))

Its files name the decoder `backbone`. It does not use positions, so any length works; the default
maximum is 32,768 tokens.

Source: vllm/model_executor/models/mamba2.py#L47-L94 (Mamba2DecoderLayer) @ v0.22.1.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, Rule, integer
from mini_vllm.model.families.table import ONE_NORM, Config, Family, Parts
from mini_vllm.model.mixers.args import Mamba2Args

SIZE = integer(1, 2**16)
NO_END = (float("inf"), {"__float__": "Infinity"})
"""Infinity as older files write it, and as newer ones do."""
UNLIMITED = Rule(
    lambda value: value is None or any(value == [0.0, end] for end in NO_END),
    "only [0.0, Infinity] is supported",
)


def checked(args: Mamba2Args) -> Mamba2Args:
    """Raises ValueError for heads that groups cannot share evenly."""
    if args.num_heads % args.n_groups:
        raise ValueError(
            f"the state space has {args.num_heads} heads in {args.n_groups} groups; the first "
            "number must be a multiple of the second"
        )
    return args


def parts(config: Config) -> Parts:
    num_layers = config["num_hidden_layers"]
    return Parts(
        norms=ONE_NORM,
        mixers=["mamba2"] * num_layers,
        feed_forwards=["none"] * num_layers,
    )


def args(config: Config) -> dict[str, Any]:
    found = Mamba2Args(
        num_heads=config["num_heads"],
        head_dim=config["head_dim"],
        state_size=config["state_size"],
        n_groups=config["n_groups"],
        conv_kernel=config["conv_kernel"],
        use_conv_bias=config["use_conv_bias"],
        use_bias=config["use_bias"],
    )
    return {"mamba2": checked(found)}


MAMBA2 = Family(
    defaults={
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "use_bias": False,
        "layer_norm_epsilon": 1e-5,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32768,
        "num_attention_heads": 1,  # it has no attention and no MLP; required entries get 1
        "intermediate_size": 1,
    },
    spelled={"layer_norm_epsilon": "rms_norm_eps"},
    rules={
        "num_heads": SIZE,
        "state_size": SIZE,
        "n_groups": SIZE,
        "conv_kernel": integer(2, 64),
        "use_conv_bias": BOOLEAN,
        "use_bias": BOOLEAN,
        "time_step_limit": UNLIMITED,
    },
    parts=parts,
    args=args,
    names={
        "model.embed_tokens.": "backbone.embeddings.",
        "model.layers.": "backbone.layers.",
        "model.norm.": "backbone.norm_f.",
        ".input_layernorm.": ".norm.",
        ".self_attn.": ".mixer.",
    },
    stacked={"in_proj": ["in_proj"], "conv1d": ["conv1d"]},
    supports=frozenset({"states", "tp"}),
    can_be_recorded=False,
)
