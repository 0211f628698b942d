"""Where experts go, by their loads: DeepSeek's algorithm, as vLLM has it.

    1. groups to nodes    the busiest group to the node with the least to do, each node equally many
    2. copies             one at a time: of the expert whose copies have the most to do each
    3. places to ranks    as in 1.: the busiest place to the rank with the least to do

Experts of a group stay on one node, where exchanges are fast: a router with a group limit sends a
token to few groups. Where groups do not divide, all experts are one group on one node.

Source: vllm/distributed/eplb/policy/default.py#L21-L332 (DefaultEplbPolicy) @ v0.22.1
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Loads = NDArray[np.floating]
Places = NDArray[np.int64]


def balanced_packing(loads: Loads, num_packs: int) -> Places:
    """The place of each of n things in packs of n / num_packs, one pack behind the other.

    The heaviest comes first (in the order of ``np.argsort(-loads)``); each goes into the lightest
    pack that is not full, the first of equal ones. With one thing a pack, thing i is in pack i,
    whatever it weighs. `loads` is `[n]`, and so is the result: pack = place // (n / num_packs).
    """
    # TODO 17.9
    raise NotImplementedError(
        "TODO 17.9: write balanced_packing in labs/17-models-and-experts/policy.py"
        " (phase 17, 02-mini-build.md#task-9)"
    )


def replicate_experts(loads: Loads, num_physical: int) -> tuple[Places, Places]:
    """Each expert once, then copies of those whose copies have the most to do, one at a time; of
    equally busy ones the first.

    Returns:
        the expert of each of `num_physical`, and how many each of the `[n]` has.
    """
    # TODO 17.9
    raise NotImplementedError(
        "TODO 17.9: write replicate_experts in labs/17-models-and-experts/policy.py"
        " (phase 17, 02-mini-build.md#task-9)"
    )


def _in_places(things: Places, places: Places) -> Places:
    """The things in the order of their places."""
    found = np.empty_like(things)
    found[places] = things
    return found


def rebalance_layer(
    loads: Loads, num_physical: int, num_groups: int, num_nodes: int, num_ranks: int
) -> Places:
    """The logical expert of each place `[num_physical]`, by the loads `[E]` of one layer."""
    members = np.arange(len(loads)).reshape(num_groups, -1)
    order = balanced_packing(loads[members].sum(-1), num_nodes)
    of_node = _in_places(np.arange(num_groups), order).reshape(num_nodes, -1)
    result = []
    for groups in of_node:
        experts = members[groups].flatten()
        own = loads[experts]
        copies, counts = replicate_experts(own, num_physical // num_nodes)
        each = (own / counts)[copies]
        places = balanced_packing(each, num_ranks // num_nodes)
        result.append(_in_places(experts[copies], places))
    return np.concatenate(result)


def keep_places(new: Places, old: Places, num_ranks: int) -> Places:
    """The same experts on each rank, those that stay there in the place that they have.

    Then nothing is copied for them. The others take the free places of their rank, in their order.
    `new` and `old` are `[P]` of one layer.
    """
    # TODO 17.9
    raise NotImplementedError(
        "TODO 17.9: write keep_places in labs/17-models-and-experts/policy.py"
        " (phase 17, 02-mini-build.md#task-9)"
    )


def rebalance_experts(
    weight: Tensor,
    num_replicas: int,
    num_groups: int,
    num_nodes: int,
    num_ranks: int,
    old_global_expert_indices: Tensor | None = None,
) -> Tensor:
    """The logical expert of each physical one, `[layers, num_replicas]`, by loads `[layers, E]`.

    Args:
        num_replicas: physical experts, a multiple of `num_ranks`.
        num_groups: of the experts; 1: they have none.
        num_nodes: inside which exchanges are fast; it divides `num_ranks`.
        num_ranks: places are dealt to them evenly, neighbours together.
        old_global_expert_indices: the arrangement now, in the form of the result. Experts that stay
            on a rank keep their places then.

    Source: vllm/distributed/eplb/policy/default.py#L274-L332 (DefaultEplbPolicy.rebalance_experts)
    @ v0.22.1
    """
    if num_groups % num_nodes:
        num_groups = num_nodes = 1
    loads = weight.float().cpu().numpy()
    found = [
        rebalance_layer(layer, num_replicas, num_groups, num_nodes, num_ranks) for layer in loads
    ]
    if old_global_expert_indices is not None:
        old = old_global_expert_indices.cpu().numpy()
        found = [keep_places(*pair, num_ranks) for pair in zip(found, old, strict=True)]
    return torch.from_numpy(np.stack(found))
