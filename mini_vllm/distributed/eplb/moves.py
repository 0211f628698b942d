"""Experts travel to their new places.

    a stack      one tensor has the experts of all places: rows of it go where they are needed
    modules      a quantised expert is packed in a form of its own (words, scales, an order of
                 columns), so the module goes as it is, and nothing is rounded a second time

All ranks plan alike, so each knows what comes and from where, and none asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mini_vllm.distributed.eplb.parcels import from_parcel, to_parcel
from mini_vllm.distributed.expert_parallel import ExpertParallel
from mini_vllm.model.moe.experts import Experts, SeparateExperts


def plan_moves(old: Tensor, new: Tensor, num_local: int) -> list[tuple[int, int]]:
    """From which place to which an expert goes, for each place that gets another one.

    It comes from the same rank, if it is there; otherwise its old places take turns. `old` and
    `new` are `[P]`, of which each rank has `num_local`.
    """
    holders: dict[int, list[int]] = {}
    for place, expert in enumerate(old.tolist()):
        holders.setdefault(expert, []).append(place)
    moves, turns = [], Counter[int]()
    for place, (before, expert) in enumerate(zip(old.tolist(), new.tolist(), strict=True)):
        if before == expert:
            continue
        here = [one for one in holders[expert] if one // num_local == place // num_local]
        sources = here or holders[expert]
        moves.append((sources[turns[expert] % len(sources)], place))
        turns[expert] += not here
    return moves


def move_experts(
    layer: Experts, placement: ExpertParallel, places: Tensor, device: torch.device
) -> int:
    """Bring a layer's experts to their new places `[P]`; how many came.

    `device` is this rank's, where they are kept.
    """
    if isinstance(layer, SeparateExperts):
        count = move_modules(layer, placement, places, device)
    else:
        count = move_weights(layer, placement, places)
    placement.arrange(places)
    layer.take_places(placement.local_experts)
    return count


def total_by_rank(ranks: Sequence[int], sizes: Sequence[int], num_ranks: int) -> list[int]:
    """The sum of the sizes of each rank's things: thing i is of `ranks[i]`."""
    totals = [0] * num_ranks
    for rank, size in zip(ranks, sizes, strict=True):
        totals[rank] += size
    return totals


def counts_by_rank(ranks: Sequence[int], num_ranks: int) -> list[int]:
    return total_by_rank(ranks, [1] * len(ranks), num_ranks)


# ---------------------------------------------------------------- a stack
def move_weights(layer: nn.Module, placement: ExpertParallel, places: Tensor) -> int:
    """`move_experts` for parameters `[places, ...]`. A place may get what its own rank has."""
    group, num_local = placement.group, placement.num_local
    me, num_ranks = group.rank_in_group, group.world_size
    moves = plan_moves(placement.physical_to_logical, places, num_local)
    leaving = [(old, new) for old, new in moves if old // num_local == me]  # by their new places
    coming = [(old // num_local, new) for old, new in moves if new // num_local == me]
    coming.sort()  # as they arrive: rank by rank
    sent = counts_by_rank([new // num_local for _, new in leaving], num_ranks)
    received = counts_by_rank([rank for rank, _ in coming], num_ranks)
    sources = [old % num_local for old, _ in leaving]
    targets = [new % num_local for _, new in coming]
    for weight in layer.parameters():
        weight.data[targets] = group.all_to_all(weight.data[sources], sent, received)
    return len(coming)


# ---------------------------------------------------------------- modules
def move_modules(
    layer: SeparateExperts, placement: ExpertParallel, places: Tensor, device: torch.device
) -> int:
    """`move_experts` for a module an expert. Places of one rank share it, so it comes once."""
    group, num_local = placement.group, placement.num_local
    me, num_ranks = group.rank_in_group, group.world_size
    origins: dict[tuple[int, int], int] = {}  # (rank, expert it lacks) -> the rank that sends it
    for old, new in plan_moves(placement.physical_to_logical, places, num_local):
        if old // num_local != new // num_local:
            origins.setdefault((new // num_local, int(places[new])), old // num_local)
    leaving = sorted(trip for trip, origin in origins.items() if origin == me)
    coming = sorted((origin, e) for (rank, e), origin in origins.items() if rank == me)
    targets, sources = [rank for rank, _ in leaving], [rank for rank, _ in coming]
    parcels = [to_parcel(layer.get_submodule(str(e)), device) for _, e in leaving]
    lengths = group.all_to_all(
        torch.tensor([len(each) for each in parcels], dtype=torch.int64, device=device),
        counts_by_rank(targets, num_ranks),
        counts_by_rank(sources, num_ranks),
    ).tolist()
    arrived = group.all_to_all(
        torch.cat([torch.empty(0, dtype=torch.uint8, device=device), *parcels]),
        total_by_rank(targets, [len(each) for each in parcels], num_ranks),
        total_by_rank(sources, lengths, num_ranks),
    )
    for (_, expert), parcel in zip(coming, arrived.split(lengths), strict=True):
        layer.add_module(str(expert), from_parcel(parcel, device))
    return len(coming)
