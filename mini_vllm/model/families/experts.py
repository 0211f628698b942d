"""What the tables of families with experts have in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mini_vllm.model.config_rules import integer
from mini_vllm.model.families.table import Config

COUNT = integer(1, 2**24, required=True)
"""Of experts, of which there is at least one."""
SIZE = integer(1, 2**24)


def feed_forwards(config: Config, dense: Collection[int] = ()) -> Sequence[str]:
    """Experts in all layers but the `dense` ones, which have an MLP."""
    layers = range(config["num_hidden_layers"])
    return ["gated_mlp" if index in dense else "moe" for index in layers]


def first_dense(config: Config) -> range:
    """The layers in front that have an MLP, by `first_k_dense_replace`."""
    return range(min(config["first_k_dense_replace"] or 0, config["num_hidden_layers"]))


def layers_behind(config: Config) -> tuple[str, ...]:
    """Names of the layers behind the last, which draft several tokens at once (MTP)."""
    last, count = config["num_hidden_layers"], config.get("num_nextn_predict_layers") or 0
    count = max(count, config.get("num_mtp_layers") or 0)
    return tuple(f"model.layers.{last + index}." for index in range(count))
