"""Static inputs of recorded decode steps that one launch fills, where kernels run.

Elsewhere :meth:`~mini_vllm.worker.cuda_graphs.StaticInputs.fill` does it, with five copies and two
fills. On a GPU each of these is a launch, and the graph that they prepare is one launch itself.
"""

from __future__ import annotations

from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.kernels import can_launch_on
from mini_vllm.worker.cuda_graphs import StaticInputs


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
        from mini_vllm.kernels.replay import DECODE_INPUTS  # a CPU loads no launchers

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
