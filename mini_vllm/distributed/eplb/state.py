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
import re
from collections import deque
from typing import cast

import torch
from torch import Tensor, nn

from mini_vllm.config import EPLBConfig
from mini_vllm.core.scheduler_output import ExpertLoad
from mini_vllm.distributed.eplb.moves import move_experts
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
        loads: their sum: tokens of each logical expert in the window.
        rank_tokens: rows that each rank's experts have multiplied since the start, `[ranks]`.
        num_moves: how many experts have come to this rank.
        num_rearrangements: how often they were placed anew.
    """

    def __init__(self, model: nn.Module, config: EPLBConfig, num_groups: int) -> None:
        found = [pair for pair in model.named_modules() if isinstance(pair[1], Experts)]
        self.layers = [cast(Experts, module) for _, module in found]
        self.layer_numbers = [number_in(name, index) for index, (name, _) in enumerate(found)]
        self.placements: list[ExpertParallel] = [layer.placement for layer in self.layers]  # type: ignore[misc]
        self.config, self.num_groups = config, num_groups
        self.device = next(model.parameters()).device
        self.window: deque[Tensor] = deque(maxlen=config.window_size)
        self.num_steps = config.step_interval - config.step_interval // 4
        num_experts = self.layers[0].num_experts if found else 0
        self.loads = torch.zeros(len(found), num_experts, dtype=torch.int64)
        self.rank_tokens = torch.zeros(1, dtype=torch.int64)
        self.num_moves = self.num_rearrangements = 0
        self.forget()

    def forget(self) -> None:
        """What was counted since the last step does not count: no request asked for it."""
        for placement in self.placements:
            placement.load.zero_()

    @property
    def places(self) -> Tensor:
        """The logical expert of each place, `[layers, P]`."""
        return torch.stack([placement.physical_to_logical for placement in self.placements])

    def step(self) -> None:
        """A step has run: count it, and move experts if it is time."""
        by_place = torch.stack([placement.load for placement in self.placements])
        self.forget()
        self._count(by_place)
        config = self.config
        if config.log_balancedness and self.num_steps % config.log_balancedness_interval == 0:
            self._log(by_place)
        self.num_steps += 1
        if self.num_steps >= config.step_interval:
            self.num_steps = 0
            self.rearrange()

    def _count(self, by_place: Tensor) -> None:
        """A step's tokens `[layers, P]` come into the window, and its oldest step goes."""
        if len(self.window) == self.window.maxlen:
            self.loads -= self.window[0]
        loads = torch.zeros_like(self.loads).scatter_add_(1, self.places, by_place)
        self.window.append(loads)
        self.loads += loads
        num_ranks = self.placements[0].group.world_size
        self.rank_tokens = self.rank_tokens + by_place.view(len(by_place), num_ranks, -1).sum(
            (0, 2)
        )

    def report(self) -> ExpertLoad:
        """What the window says of each layer, and the totals of ranks, for metrics."""
        most, busiest = self.loads.max(1)
        ratios = most / self.loads.double().mean(1).clamp(min=1e-9)
        return ExpertLoad(
            self.layer_numbers,
            busiest.tolist(),
            ratios.tolist(),
            (self.loads == 0).sum(1).tolist(),
            self.rank_tokens.tolist(),
            self.num_rearrangements,
        )

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
        self.num_rearrangements += 1
        new = rebalance_experts(
            self.loads,
            first.num_physical,
            self.num_groups,
            1,
            first.group.world_size,
            self.places,
        )
        for layer, placement, places in zip(self.layers, self.placements, new, strict=True):
            if not torch.equal(places, placement.physical_to_logical):
                self.num_moves += move_experts(layer, placement, places, self.device)


def number_in(name: str, index: int) -> int:
    """The number of a layer by its name in the model, `index` if it has none there."""
    found = re.search(r"layers\.(\d+)\.", name)
    return int(found[1]) if found else index


def balancedness(by_place: Tensor, num_ranks: int) -> tuple[float, float]:
    """Tokens of a rank on average, and of the busiest one, summed over layers `[layers, P]`.

    The busiest is asked layer by layer: for it all others wait, in each.
    """
    by_rank = by_place.view(len(by_place), num_ranks, -1).sum(-1).float()
    return float(by_rank.mean(1).sum()), float(by_rank.max(1).values.sum())
