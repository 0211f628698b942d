"""Tensor parallelism: which rows and columns of a matrix one rank has.

A layer is two products, and what is between them works on each feature alone::

                 column-parallel              row-parallel
    x [T, in] ─► W rows of rank 0 ─► act ─►  V columns of rank 0 ─► partial sum ─┐
    x [T, in] ─► W rows of rank 1 ─► act ─►  V columns of rank 1 ─► partial sum ─┴► all-reduce

So there is one exchange in the MLP, and one in attention, where the features are heads.

A layout describes one role on one rank. It does not depend on how numbers are stored: a
:class:`~mini_vllm.model.layout.ParamSpec` translates its rows and columns into entries.

Source: vllm/model_executor/layers/linear.py#L411-L1574 (ColumnParallelLinear, RowParallelLinear)
@ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mini_vllm.distributed.expert_parallel import ExpertParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.distributed.utils import divide, get_pp_indices
from mini_vllm.distributed.vocab import VocabParallelEmbedding, VocabParallelHead
from mini_vllm.model.layout import WHOLE, Layout, Part, Stage


class ColumnParallel:
    """Every stacked projection's rows are divided; each rank has its own features."""

    adds_bias = True

    def __init__(self, group: GroupCoordinator) -> None:
        self.group = group

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        """Rows ``rank * n .. (rank + 1) * n`` of *each* projection, n its share; all columns.

        Of gate and up, stacked, every rank must have some of both: a rank with all of gate and
        none of up could not multiply them.

        Raises:
            ValueError: if a projection's rows do not come out even.

        Source: vllm/model_executor/layers/linear.py#L693-L872
        (MergedColumnParallelLinear.weight_loader) @ v0.22.1
        """
        # TODO 10.3
        raise NotImplementedError(
            "TODO 10.3: write ColumnParallel.parts in labs/10-distributed/linear.py"
            " (phase 10, 02-mini-build.md#task-3)"
        )

    def finish(self, y: Tensor) -> Tensor:
        return y


class QKVParallel(ColumnParallel):
    """The rows of q, k and v, by whole heads.

    Args:
        num_heads, num_kv_heads: of the whole model.
    """

    def __init__(self, group: GroupCoordinator, num_heads: int, num_kv_heads: int) -> None:
        super().__init__(group)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        """Each rank's share of the query heads, and the KV heads that these look at.

        With as many KV heads as ranks, or more, those are shared out, too. With fewer, each is on
        ``world_size // num_kv_heads`` neighbouring ranks: the query heads of one KV head are
        neighbours.

        ::

            8 query heads, 2 KV heads, 4 ranks     q  0 1 | 2 3 | 4 5 | 6 7
                                                   kv  0  |  0  |  1  |  1

        Args:
            output_sizes: rows of q, k and v in the whole model.

        Raises:
            ValueError: if heads do not come out even.

        Source: vllm/model_executor/layers/linear.py#L1027-L1068 (QKVParallelLinear.__init__)
        @ v0.22.1
        """
        # TODO 10.4
        raise NotImplementedError(
            "TODO 10.4: write QKVParallel.parts in labs/10-distributed/linear.py"
            " (phase 10, 02-mini-build.md#task-4)"
        )


class RowParallel:
    """The columns are divided, as the features that come in are; the results are partial sums."""

    def __init__(self, group: GroupCoordinator) -> None:
        self.group = group

    @property
    def adds_bias(self) -> bool:
        """The bias is in the sum once: the first rank of the group adds it."""
        # TODO 10.5
        raise NotImplementedError(
            "TODO 10.5: write RowParallel.adds_bias in labs/10-distributed/linear.py"
            " (phase 10, 02-mini-build.md#task-5)"
        )

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        """All rows of each projection, and this rank's share of the columns.

        Raises:
            ValueError: if the columns do not come out even.

        Source: vllm/model_executor/layers/linear.py#L1436-L1504 (RowParallelLinear.__init__)
        @ v0.22.1
        """
        # TODO 10.5
        raise NotImplementedError(
            "TODO 10.5: write RowParallel.parts in labs/10-distributed/linear.py"
            " (phase 10, 02-mini-build.md#task-5)"
        )

    def finish(self, y: Tensor) -> Tensor:
        """The sum of all ranks' partial results ``[T, out]``, by one all-reduce of the group, in
        the dtype of ``y``: a wider one would take twice the bytes on the way.

        Source: vllm/model_executor/layers/linear.py#L1539-L1570 (RowParallelLinear.forward)
        @ v0.22.1
        """
        # TODO 10.5
        raise NotImplementedError(
            "TODO 10.5: write RowParallel.finish in labs/10-distributed/linear.py"
            " (phase 10, 02-mini-build.md#task-5)"
        )


class ModelParallel:
    """The layouts of one rank: its shard of every layer that its stage has.

    Args:
        expert_parallel: the TP group shares out whole experts, and cuts none.
        num_redundant_experts: copies that a layer has of some of them.

    It is a :class:`~mini_vllm.model.layout.Parallel`.
    """

    def __init__(
        self,
        tp_group: GroupCoordinator,
        pp_group: GroupCoordinator,
        expert_parallel: bool = False,
        num_redundant_experts: int = 0,
    ) -> None:
        self.tp, self.pp = tp_group, pp_group
        self.expert_parallel, self.num_redundant = expert_parallel, num_redundant_experts

    def stage(self, num_layers: int) -> Stage:
        start, end = get_pp_indices(num_layers, self.pp.rank_in_group, self.pp.world_size)
        return Stage(start, end, num_layers)

    def column(self) -> ColumnParallel:
        return ColumnParallel(self.tp)

    def qkv(self, num_heads: int, num_kv_heads: int) -> QKVParallel:
        return QKVParallel(self.tp, num_heads, num_kv_heads)

    def row(self) -> RowParallel:
        return RowParallel(self.tp)

    def experts(self, num_experts: int) -> ExpertParallel | None:
        if not self.expert_parallel or self.tp.world_size == 1:
            return None
        return ExpertParallel(self.tp, num_experts, self.num_redundant)

    def vocab(self, vocab_size: int) -> Layout:
        alone = self.tp.world_size == 1  # then there is no padding
        return WHOLE if alone else VocabParallelHead(self.tp, vocab_size)

    def embedding(self, vocab_size: int) -> Layout:
        alone = self.tp.world_size == 1
        return WHOLE if alone else VocabParallelEmbedding(self.tp, vocab_size)
