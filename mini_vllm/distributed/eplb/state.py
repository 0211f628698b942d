"""How busy each expert is, and moving them when that has changed.

Every step each rank learns how many tokens went to each place (`ExpertParallel.load`, the same
numbers on all ranks). Every `step_interval` steps the loads of the last `window_size` decide anew
where experts are, and weights travel. All ranks decide alike, for they count alike: no rank asks.

Source: vllm/distributed/eplb/eplb_state.py#L210-L923 (EplbState) @ v0.22.1. Differences: the window
holds the loads of logical experts, so that it means the same after a move; weights move between two
steps, and never beside them (`use_async`).
"""

from __future__ import annotations

import logging
from collections import Counter, deque

import torch
from torch import Tensor, nn

from mini_vllm.config import EPLBConfig
from mini_vllm.distributed.eplb.policy import rebalance_experts
from mini_vllm.distributed.expert_parallel import ExpertParallel
from mini_vllm.model.moe.experts import Experts

logger = logging.getLogger(__name__)


class EplbState:
    """The loads of one rank's layers, and when they lead to a move.

    Args:
        model: its experts are placed by :class:`ExpertParallel`, all alike at first.
        config: the window and the interval. The first move comes after a quarter of it.
        num_groups: of experts, as the router has them.

    Attributes:
        window: loads `[layers, E]` of the last steps.
        num_moves: how many expert weights this rank has received.
    """

    def __init__(self, model: nn.Module, config: EPLBConfig, num_groups: int) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, Experts)]
        self.placements: list[ExpertParallel] = [layer.placement for layer in self.layers]  # type: ignore[misc]
        self.config, self.num_groups = config, num_groups
        self.window: deque[Tensor] = deque(maxlen=config.window_size)
        self.num_steps = config.step_interval - config.step_interval // 4
        self.num_moves = 0
        self.forget()

    def forget(self) -> None:
        """What was counted since the last step does not count: no request asked for it."""
        for placement in self.placements:
            placement.load.zero_()

    @property
    def places(self) -> Tensor:
        """The logical expert of each place, `[layers, P]`."""
        return torch.stack([placement.physical_to_logical for placement in self.placements])

    def loads(self) -> Tensor:
        """Tokens of each logical expert in the window, `[layers, E]`."""
        shape = len(self.layers), self.layers[0].num_experts
        return sum(self.window, torch.zeros(shape, dtype=torch.int64))

    def step(self) -> None:
        """A step has run: count it, and move experts if it is time."""
        by_place = torch.stack([placement.load for placement in self.placements])
        self.forget()
        loads = torch.zeros(len(self.layers), self.layers[0].num_experts, dtype=torch.int64)
        self.window.append(loads.scatter_add_(1, self.places, by_place))
        config = self.config
        if config.log_balancedness and self.num_steps % config.log_balancedness_interval == 0:
            self._log(by_place)
        self.num_steps += 1
        if self.num_steps >= config.step_interval:
            self.num_steps = 0
            self.rearrange()

    def _log(self, by_place: Tensor) -> None:
        average, most = balancedness(by_place, self.placements[0].group.world_size)
        logger.info(
            "EPLB step: %d: avg_tokens=%.2f, max_tokens=%d, balancedness=%.4f, steps until the "
            "next rearrangement: %d",
            self.num_steps,
            average,
            most,
            average / most if most else 0.0,
            self.config.step_interval - self.num_steps,
        )

    def rearrange(self) -> None:
        """Place experts by the loads of the window; their weights travel. All ranks call it."""
        first = self.placements[0]
        new = rebalance_experts(
            self.loads(),
            first.num_physical,
            self.num_groups,
            1,
            first.group.world_size,
            self.places,
        )
        for layer, placement, places in zip(self.layers, self.placements, new, strict=True):
            if not torch.equal(places, placement.physical_to_logical):
                self.num_moves += move_weights(layer, placement, places)
                placement.arrange(places)
                layer.local_experts = placement.local_experts


def balancedness(by_place: Tensor, num_ranks: int) -> tuple[float, float]:
    """Tokens of a rank on average, and of the busiest one, summed over layers `[layers, P]`.

    The busiest is asked layer by layer: for it all others wait, in each.
    """
    by_rank = by_place.view(len(by_place), num_ranks, -1).sum(-1).float()
    return float(by_rank.mean(1).sum()), float(by_rank.max(1).values.sum())


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


def move_weights(layer: nn.Module, placement: ExpertParallel, places: Tensor) -> int:
    """Bring the weights of a layer's experts to their new places `[P]`; how many came here."""
    group, num_local = placement.group, placement.num_local
    me = group.rank_in_group
    moves = plan_moves(placement.physical_to_logical, places, num_local)
    leaving = [(old, new) for old, new in moves if old // num_local == me]  # by their new places
    coming = [(old // num_local, new) for old, new in moves if new // num_local == me]
    coming.sort()  # as they arrive: rank by rank
    sent, received = [0] * group.world_size, [0] * group.world_size
    for _, new in leaving:
        sent[new // num_local] += 1
    for rank, _ in coming:
        received[rank] += 1
    sources = [old % num_local for old, _ in leaving]
    targets = [new % num_local for _, new in coming]
    for weight in layer.parameters():
        weight.data[targets] = group.all_to_all(weight.data[sources], sent, received)
    return len(coming)
