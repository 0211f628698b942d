"""Expert parallelism: each rank has whole experts, and rows travel to them.

    tokens        every rank has all of a step; each takes a share, and routes that
    dispatch      an all-to-all brings each row to the rank of its expert         p x p messages
    experts       every rank multiplies what has come
    combine       the same all-to-all back; results are weighed and added
    gather        all ranks have all tokens again

    rank 0  t0 t1 | t0:e5 t1:e0 | --> e0: t1 t3      With tensor parallelism a rank has a share of
    rank 1  t2 t3 | t2:e5 t3:e0 | --> e5: t0 t2      every expert instead, and adds up all tokens.

Source: vllm/model_executor/layers/fused_moe/prepare_finalize/naive_dp_ep.py#L71-L208
(MoEPrepareAndFinalizeNaiveDPEPModular) @ v0.22.1. Difference: there the ranks of data parallelism
exchange, here those of tensor parallelism, which is what vLLM calls a sequence-parallel MoE.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mini_vllm.distributed.parallel_state import GroupCoordinator


def at_first(num_experts: int, num_physical: int) -> Tensor:
    """The expert of each place `[P]` before any load is known: all in their order, then copies."""
    return torch.arange(num_physical, device="cpu") % num_experts


class ExpertParallel:
    """One rank's part in the experts of one layer: which are here, and how rows travel.

    Args:
        group: the ranks that share the experts.
        num_experts: logical ones, E.
        num_redundant: copies of some of them.

    Attributes: in main memory, whatever device layers are made on,
        physical_to_logical: the expert of each place `[P]`; each rank has P / p neighbours.
        load: tokens that came to each place since the last look, `[P]` int64, of all ranks.

    Raises:
        ValueError: if the places do not come out even.
    """

    def __init__(self, group: GroupCoordinator, num_experts: int, num_redundant: int = 0) -> None:
        self.group, self.num_experts, p = group, num_experts, group.world_size
        self.num_physical = num_experts + num_redundant
        if self.num_physical % p:
            raise ValueError(
                f"{num_experts} experts and num_redundant_experts={num_redundant} are "
                f"{self.num_physical} places, which {p} ranks cannot share evenly; "
                f"num_redundant_experts={num_redundant + -self.num_physical % p} can be"
            )
        self.num_local = self.num_physical // p
        first = group.rank_in_group * self.num_local
        self.here = slice(first, first + self.num_local)
        self.load = torch.zeros(self.num_physical, dtype=torch.int64, device="cpu")
        self.arrange(at_first(num_experts, self.num_physical))

    def arrange(self, physical_to_logical: Tensor) -> None:
        """Let the places have these experts `[P]`; every expert has one at least."""
        self.physical_to_logical = physical_to_logical
        self.replica_count = physical_to_logical.bincount(minlength=self.num_experts)
        most = int(self.replica_count.max())
        self.logical_to_physical = torch.full((self.num_experts, most), -1, device="cpu")
        for expert in range(self.num_experts):
            places = (physical_to_logical == expert).nonzero().flatten()
            self.logical_to_physical[expert, : len(places)] = places

    @property
    def local_experts(self) -> list[int]:
        """The logical expert of each place on this rank."""
        experts: list[int] = self.physical_to_logical[self.here].tolist()
        return experts

    def to_places(self, ids: Tensor) -> Tensor:
        """A place for each pair of token and expert, `[T, k]`: pairs take turns with copies."""
        device = ids.device
        turn = torch.arange(ids.numel(), device=device).view(ids.shape)
        copy = turn % self.replica_count.to(device)[ids]
        return self.logical_to_physical.to(device)[ids, copy]

    # ------------------------------------------------------------ tokens
    def own_tokens(self, x: Tensor) -> Tensor:
        """This rank's share of the rows of `x` `[T, H]`; none, if there are fewer than ranks."""
        share = -(-len(x) // self.group.world_size)
        first = share * self.group.rank_in_group
        return x[first : first + share]

    def gather(self, y: Tensor, num_tokens: int) -> Tensor:
        """All ranks' results, `[T, H]`, of the shares."""
        share = -(-num_tokens // self.group.world_size)
        padded = torch.nn.functional.pad(y, (0, 0, 0, share - len(y)))
        return self.group.all_gather(padded, 0)[:num_tokens]

    # ------------------------------------------------------------ rows
    def exchange(
        self, rows: Tensor, places: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Each row's result by the expert in its place, wherever that is: `[P, H] -> [P, H]`.

        `places` `[P]` is sorted. `multiply(rows, local places)` is what a rank does with the rows
        that come.
        """
        counts = places.bincount(minlength=self.num_physical)
        of_ranks = self.group.all_gather(counts[None], 0)  # [p, P]: rows of each rank, by place
        self.load += of_ranks.sum(0).to(self.load.device)
        coming = of_ranks[:, self.here]
        sent = counts.view(self.group.world_size, -1).sum(1).tolist()
        received = coming.sum(1).tolist()
        arrived = self.group.all_to_all(rows, sent, received)
        local = torch.arange(self.num_local, device=rows.device).repeat(len(received))
        results = multiply(arrived, local.repeat_interleave(coming.flatten()))
        return self.group.all_to_all(results, received, sent)
