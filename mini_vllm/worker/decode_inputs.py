"""Static inputs of recorded decode steps that one launch fills, where kernels run.

Elsewhere :meth:`~mini_vllm.worker.cuda_graphs.StaticInputs.fill` does it, with five copies and two
fills. On a GPU each of these is a launch, and the graph that they prepare is one launch itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.kernels import can_launch_on
from mini_vllm.kernels.replay import DECODE_INPUTS
from mini_vllm.worker.cuda_graphs import StaticInputs
from mini_vllm.worker.group_tables import GroupTables


class DecodeInputs(StaticInputs):
    """The inputs of a decode step; arguments as of the base class.

    Attributes:
        has_tokens: whether a launch copies token ids and positions, too.
    """

    has_tokens = True

    def fill(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, bucket: int
    ) -> None:
        """As the base class does it, in one launch where kernels run on the device."""
        if not can_launch_on(self.input_ids.device):
            return super().fill(input_ids, positions, metadata, bucket)
        DECODE_INPUTS.run(
            input_ids=input_ids if self.has_tokens else None,
            positions=positions if self.has_tokens else None,
            slot_mapping=metadata.slot_mapping,
            seq_lens=metadata.seq_lens,
            block_table=metadata.block_table,
            static_input_ids=self.input_ids,
            static_positions=self.positions,
            static_slot_mapping=self.slot_mapping,
            static_seq_lens=self.seq_lens,
            static_block_table=self.block_table,
            bucket=bucket,
        )


class GroupedInputs(DecodeInputs):
    """The inputs of a recorded decode step, with tables that stay where they are for each group.

    Ids and positions are those of the first group. Slots, lengths and the table beside them stay
    inert: each layer reads its group's (`AttentionMetadata.of_layer`).

    Args:
        tables: of the groups, all of which have attention.
        max_num_reqs, max_model_len, block_size: see
            :class:`~mini_vllm.worker.cuda_graphs.StaticInputs`.
    """

    def __init__(
        self,
        tables: GroupTables,
        max_num_reqs: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        super().__init__(max_num_reqs, max_model_len, block_size, device)
        self.layer_groups = tables.layer_groups
        self.groups = [
            DecodeInputs(max_num_reqs, max_model_len, table.spec.block_size, device)
            for table in tables.tables
        ]
        self.input_ids, self.positions = self.groups[0].input_ids, self.groups[0].positions
        for group in self.groups[1:]:
            group.has_tokens = False

    def fill(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, bucket: int
    ) -> None:
        for group, seen in zip(self.groups, metadata.groups, strict=True):
            assert isinstance(seen, AttentionMetadata)
            group.fill(input_ids, positions, seen, bucket)

    def metadata(self, bucket: int) -> AttentionMetadata:
        whole = super().metadata(bucket)
        whole.groups = [group.metadata(bucket) for group in self.groups]
        whole.layer_groups = self.layer_groups
        return whole
