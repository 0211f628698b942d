"""Experts on several ranks: where they go, how rows get there, and how they move."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

from mini_vllm.config import EPLBConfig
from mini_vllm.core.scheduler_output import ExpertLoad
from mini_vllm.distributed.eplb import rebalance_experts
from mini_vllm.distributed.eplb.moves import plan_moves
from mini_vllm.distributed.eplb.state import EplbState, balancedness
from mini_vllm.distributed.expert_parallel import ExpertParallel
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks
from mini_vllm.model.layers import Build
from mini_vllm.model.moe.args import MoEArgs
from mini_vllm.model.moe.layer import SparseMoE
from tests.engine.distributed.eplb_cases import RECORDED, cases, results


def test_experts_go_where_upstream_puts_them() -> None:
    """40 random loads, from nothing and from an arrangement: `eplb_cases` has recorded upstream."""
    recorded = json.loads(RECORDED.read_text())
    ours = results(rebalance_experts)
    assert len(recorded) == 40
    assert {name for name in recorded if recorded[name] != ours[name]} == set()


def test_a_busy_expert_has_copies_and_no_rank_most_of_the_work() -> None:
    alone = [(loads, sizes) for _, loads, sizes in cases() if sizes[1:3] == (1, 1)]
    assert len(alone) == 12
    for loads, sizes in alone:
        places = rebalance_experts(loads, *sizes)
        for layer, own in zip(loads, places, strict=True):
            counts = own.bincount(minlength=len(layer))
            assert counts.min() == 1 and len(own) == sizes[0]
            at_first = torch.arange(sizes[0]) % len(layer)
            assert busiest_rank(layer, own, sizes[-1]) <= busiest_rank(layer, at_first, sizes[-1])


def busiest_rank(loads: torch.Tensor, places: torch.Tensor, num_ranks: int) -> float:
    each = loads / places.bincount()
    return round(float(each[places].view(num_ranks, -1).sum(-1).max()), 2)


# ---------------------------------------------------------------- rows travel
ALONE = GroupCoordinator([0], 0)
ARGS = MoEArgs(6, 2, 16, norm_topk_prob=True, shared_expert_intermediate_size=8)
H = 12


def filled(moe: SparseMoE) -> SparseMoE:
    """With numbers that depend on a parameter's name and its expert alone."""
    for name, parameter in moe.requires_grad_(False).named_parameters():
        numbers = torch.Generator().manual_seed(len(name) * 101 + sum(map(ord, name)))
        if re.search(r"experts\.\D", name) is None:  # no stack of them
            parameter.copy_(torch.randn(parameter.shape, generator=numbers) * 0.3)
            continue
        every = torch.randn(ARGS.num_experts, *parameter.shape[1:], generator=numbers) * 0.3
        parameter.copy_(every[moe.experts.local_experts])
    return moe


@pytest.mark.parametrize(
    "ranks, redundant, apart", [(2, 0, False), (3, 0, True), (4, 2, False), (2, 2, True)]
)
def test_experts_on_several_ranks_say_what_one_says(
    ranks: int, redundant: int, apart: bool
) -> None:
    """In one tensor, or apart as quantised ones are."""
    whole = filled(SparseMoE(H, ARGS, Build(separates_experts=apart), "mlp"))
    inputs = [torch.randn(n, H, generator=torch.Generator().manual_seed(n)) for n in (1, 3, 17)]
    wanted = [whole(x) for x in inputs]

    def work(group: SimulatedGroup) -> tuple[list[torch.Tensor], torch.Tensor]:
        parallel = ModelParallel(group, ALONE, True, redundant)
        build = Build(parallel=parallel, separates_experts=apart)
        moe = filled(SparseMoE(H, ARGS, build, "mlp"))
        assert len(moe.experts.local_experts) == (ARGS.num_experts + redundant) // ranks
        return [moe(x) for x in inputs], moe.shares.load

    for outputs, load in run_ranks(ranks, work):
        for ours, theirs in zip(outputs, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert int(load.sum()) == 2 * (1 + 3 + 17)


def test_places_that_do_not_come_out_even_are_refused() -> None:
    group = GroupCoordinator(range(4), 1)
    with pytest.raises(
        ValueError, match=r"6 places, which 4 ranks cannot share .*_experts=2 can be"
    ):
        ExpertParallel(group, 6)
    assert ExpertParallel(group, 6, 2).local_experts == [2, 3]


# ---------------------------------------------------------------- experts move
def test_an_expert_comes_from_its_own_rank_if_it_can() -> None:
    old, new = torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([0, 1, 3, 3, 2, 3])
    assert plan_moves(old, new, 2) == [(3, 2), (2, 4), (3, 5)]
    assert plan_moves(old, torch.tensor([1, 0, 2, 3, 0, 1]), 2) == [(1, 0), (0, 1)]


def test_the_window_reports_the_experts_with_most_load() -> None:
    """Of three steps the last two count; the ranks' totals are those of all."""
    config = EPLBConfig(window_size=2, step_interval=100)

    def work(group: SimulatedGroup) -> ExpertLoad:
        moe = SparseMoE(H, ARGS, Build(parallel=ModelParallel(group, ALONE, True)), "mlp")
        stack = nn.ModuleDict({"layers": nn.ModuleList([nn.Identity(), moe])})
        state = EplbState(stack, config, 1)
        for loads in ([50, 0, 0, 0, 0, 0], [1, 2, 9, 0, 0, 0], [0, 2, 3, 1, 0, 0]):
            state.placements[0].load.copy_(torch.tensor(loads))
            state.step()
        return state.report()

    one, other = run_ranks(2, work)
    assert one == other == ExpertLoad([1], [2], [pytest.approx(12 / 3)], [2], [67, 1], 0)


def test_experts_move_to_where_they_are_needed_and_say_the_same() -> None:
    """Tokens of a few kinds choose few experts; after the move each rank has as much to do."""
    whole = filled(SparseMoE(H, ARGS, Build(), "mlp"))
    x = torch.randn(3, H, generator=torch.Generator().manual_seed(5)).repeat(8, 1)
    config = EPLBConfig(window_size=4, step_interval=8, num_redundant_experts=2)

    def work(group: SimulatedGroup) -> tuple[list[torch.Tensor], list[list[int]], list[float], int]:
        parallel = ModelParallel(group, ALONE, True, config.num_redundant_experts)
        moe = filled(SparseMoE(H, ARGS, Build(parallel=parallel), "mlp"))
        state, outputs, evenness = EplbState(moe, config, 1), [], []
        for _ in range(4):
            outputs.append(moe(x))
            average, most = balancedness(moe.shares.load[None], group.world_size)
            evenness.append(average / most)
            state.step()
        return outputs, state.places.tolist(), evenness, state.num_moves

    seen = run_ranks(4, work)
    for outputs, places, evenness, _ in seen:
        for ours in outputs:
            torch.testing.assert_close(ours, whole(x), rtol=1e-4, atol=1e-5)
        assert places == seen[0][1] and sorted(set(places[0])) == list(range(6))
        assert evenness[0] == evenness[1] < evenness[2] == evenness[3]  # 6 of 8 steps were over
    assert sum(moves for *_, moves in seen) > 0
