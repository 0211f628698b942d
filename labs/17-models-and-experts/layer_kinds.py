"""Which layer of a model is of which kind, by its config.

    layer                    0   1   2   3   4   5
    every = 3                w   w   .   w   w   .      w: attention in a window; .: over everything
    decoder_sparse_step 2    M   e   M   e   M   e      M: an MLP; e: experts
    moe_layer_freq 2         e   M   e   M   e   M
    first_k_dense_replace 1  M   e   e   e   e   e

Source: vllm/model_executor/models/qwen3_moe.py#L391-L403 (Qwen3MoeDecoderLayer) @ v0.22.1.
Source: vllm/model_executor/models/deepseek_v2.py#L1127-L1140 (DeepseekV2DecoderLayer) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def layer_windows(config: Mapping[str, Any], every: int) -> tuple[int | None, ...]:
    """The attention window of each of `num_hidden_layers` layers, None for the whole context.

    `layer_types` names the kind of each layer. A layer has the config's `sliding_window` if its
    kind is "sliding_attention", and none if it is any other. Where the config has no `layer_types`,
    or an empty or null one, every `every`-th layer sees everything, counted from 1, and all others
    have the window. A config whose `sliding_window` is missing or null has no windows at all.
    """
    # TODO 17.1
    raise NotImplementedError(
        "TODO 17.1: write layer_windows in labs/17-models-and-experts/layer_kinds.py"
        " (phase 17, 02-mini-build.md#task-1)"
    )


def dense_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Which of `num_hidden_layers` layers of a mixture of experts have an MLP, in ascending order.

    A config says it in four ways, and one that is missing or null says nothing. A layer has an MLP
    if any of them says so:

    - `first_k_dense_replace`: the first layers, so many.
    - `mlp_only_layers`: those whose numbers are listed.
    - `decoder_sparse_step` n: all but each n-th, counted from 1, so that layer n - 1 has experts.
    - `moe_layer_freq` n: all but each n-th, counted from 0, so that layer 0 has experts.
    """
    # TODO 17.1
    raise NotImplementedError(
        "TODO 17.1: write dense_layers in labs/17-models-and-experts/layer_kinds.py"
        " (phase 17, 02-mini-build.md#task-1)"
    )
