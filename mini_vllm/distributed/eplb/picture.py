"""The loads of a model's experts as text, and what moving them would gain."""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.distributed.eplb.policy import rebalance_experts
from mini_vllm.distributed.expert_parallel import at_first

SHADES = " ▁▂▃▄▅▆▇█"
EVEN = 2
"""The shade of an even share of the tokens; each further one is half a share more."""
MOST_COLUMNS = 128


def shade(share: float) -> str:
    """A character for an expert with `share` times its even share of the tokens."""
    level = max(1, min(round(share * EVEN), len(SHADES) - 1)) if share else 0
    return SHADES[level]


def heat_map(loads: Tensor) -> list[str]:
    """A line for each layer of `loads` `[layers, E]`, with a character for each expert.

    With more than `MOST_COLUMNS` experts a character stands for several: for the busiest of them.
    """
    lines = []
    together = -(-loads.shape[1] // MOST_COLUMNS)
    for index, load in enumerate(loads.double()):
        shares = load / load.mean().clamp(min=1e-9)
        shades = "".join(shade(float(part.max())) for part in shares.split(together))
        busiest, idle = int(shares.argmax()), int((load == 0).sum())
        lines.append(
            f"{index:5} |{shades}| expert {busiest} has {float(shares.max()):.1f} x its share, "
            f"{idle} idle"
        )
    return lines


def busiest_rank(loads: Tensor, places: Tensor, num_ranks: int) -> float:
    """How much the busiest rank has to do, as a multiple of the average, over layers `[layers, E]`.

    `places` `[layers, P]` has the expert of each place; tokens of an expert take turns with its
    copies. All ranks wait for the busiest one in each layer.
    """
    copies = torch.zeros_like(loads).scatter_add_(1, places, torch.ones_like(places))
    by_place = (loads.double() / copies).gather(1, places)
    by_rank = by_place.view(len(loads), num_ranks, -1).sum(-1)
    average = by_rank.mean(1).sum()
    return float(by_rank.max(1).values.sum() / average) if average else 1.0


def forecast(loads: Tensor, num_ranks: int, copies: int, num_groups: int = 1) -> list[str]:
    """What the busiest of `num_ranks` ranks would have to do, before and after a move."""
    number = loads.shape[1] + copies
    before = at_first(loads.shape[1], number).repeat(len(loads), 1)
    after = rebalance_experts(loads, number, num_groups, 1, num_ranks)
    return [
        f"{num_ranks} ranks with {number // num_ranks} places each; the busiest has of the average",
        f"  as they are at first    {busiest_rank(loads, before, num_ranks):.2f} x",
        f"  moved by these loads    {busiest_rank(loads, after, num_ranks):.2f} x",
    ]
