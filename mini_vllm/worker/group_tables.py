"""Block tables by group, for layers with different caches, and the part that each layer reads.

The batch keeps the table of group 0; all of them are here. A request keeps its row as long as it
runs. Positions, lengths and the places of tokens in a step are the same for all groups: only tables
differ, and with them slots.

A window's layers see a shortened sequence, whose table begins at the first block that they read::

    table   [ b4 ][ b7 ][ b3 ][ b9 ]     window of 5, blocks of 2, token 7 is new: it reads 3 to 7
    seen          [ b7 ][ b3 ][ b9 ]     6 tokens of context in place of 8; distances are the same

So attention does no work for what has left the window, and never reads a block that the scheduler
has given to another request meanwhile: the worker does not learn of that.

Source: vllm/v1/worker/gpu_model_runner.py#L2183-L2482 (GPUModelRunner._build_attention_metadata)
@ v0.22.1. Difference: there a window's table keeps its length, and kernels skip its begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.attention import AttentionMetadata, StateMetadata
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.worker.cache_layout import CacheLayout
from mini_vllm.worker.input_batch import flatten_tokens
from mini_vllm.worker.step_inputs import StepInputs


class Table:
    """The block tables of one group: a row of block ids for each request.

    Args:
        spec: what the group's layers remember.
        num_rows: requests that may run at once.
    """

    def __init__(self, spec: GroupSpec, num_rows: int, max_model_len: int) -> None:
        self.spec = spec
        self.blocks = np.zeros((num_rows, cdiv(max_model_len, spec.block_size)), dtype=np.int32)
        self.num_blocks = np.zeros(num_rows, dtype=np.int32)

    def clear(self, row: int) -> None:
        self.blocks[row, : self.num_blocks[row]] = 0
        self.num_blocks[row] = 0

    def append(self, row: int, block_ids: Sequence[int]) -> None:
        start = self.num_blocks[row]
        self.num_blocks[row] = end = start + len(block_ids)
        self.blocks[row, start:end] = block_ids

    def state_blocks(
        self, rows: NDArray[np.int64], seq_lens: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """``[R]``: the block in which each request's state is, by the tokens after this step."""
        if self.spec.mode == "none":
            return self.blocks[rows, 0].astype(np.int64)
        return self.blocks[rows, (seq_lens - 1) // self.spec.block_size].astype(np.int64)


class View:
    """The part of each sequence that layers with the cache ``spec`` read in a step over R requests:
    it begins at the first block that the next token reads. Groups with equal specs share it.

    Args:
        num_computed, seq_lens: ``[R]``, tokens before and after the step.
    """

    def __init__(
        self, spec: GroupSpec, num_computed: NDArray[np.int32], seq_lens: NDArray[np.int32]
    ) -> None:
        self.block_size = block_size = spec.block_size
        read = np.zeros_like(num_computed)
        if spec.kind == "sliding_window":
            read = np.maximum(num_computed - spec.window + 1, 0)
        elif spec.kind == "chunked_local":  # so that chunks begin where they did
            read = num_computed // spec.chunk * spec.chunk
        first = read // block_size
        num_blocks = -(-seq_lens // block_size) - first
        columns = np.arange(num_blocks.max())
        is_behind = columns >= num_blocks[:, None]
        self.places = np.where(is_behind, -1, first[:, None] + columns)
        """``[R, width]``, places in a table; -1 behind a sequence's last."""
        self.skipped = first * block_size
        self.seq_lens = seq_lens - self.skipped
        flat = flatten_tokens(seq_lens - num_computed, num_computed)
        self.token_rows = flat.req_indices
        self.token_columns = flat.positions // block_size - first[flat.req_indices]
        self.token_offsets = flat.positions % block_size

    def blocks(self, table: Table, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """``[R, width]``: this part of the tables in ``rows``."""
        found = table.blocks[rows[:, None], self.places]
        found[self.places < 0] = 0
        return found

    def slots(self, blocks: NDArray[np.int32]) -> NDArray[np.int64]:
        """``[T]``: where keys and values of each new token go."""
        own = blocks[self.token_rows, self.token_columns].astype(np.int64)
        return own * self.block_size + self.token_offsets


class GroupTables:
    """The tables of all groups, kept in step with the scheduler's plans.

    Args:
        layout: which layers are in which group.
        max_num_reqs, max_model_len: as of the batch.
        to_device: makes a copy of an array on the device.
    """

    def __init__(
        self,
        layout: CacheLayout,
        max_num_reqs: int,
        max_model_len: int,
        to_device: Callable[[NDArray[Any]], Tensor],
    ) -> None:
        self.layout, self.to_device = layout, to_device
        self.layer_groups = layout.layer_groups()
        self.tables = [Table(group, max_num_reqs, max_model_len) for group in layout.groups]
        self.max_num_reqs = max_num_reqs
        self.clear()

    def clear(self) -> None:
        """Forget all requests; unfinished ones come back with their whole tables."""
        self.row_of: dict[str, int] = {}
        self.free_rows = list(range(self.max_num_reqs))

    def update(self, plan: SchedulerOutput) -> list[int]:
        """Bring the tables in line with a plan: remove requests, add requests, and extend tables.

        Returns:
            Blocks for keys and values that were handed out now, in which a state may have lain.
        """
        new_blocks: list[int] = []
        for req_id in (*plan.finished_req_ids, *plan.preempted_req_ids):
            row = self.row_of.pop(req_id, None)
            if row is not None:
                self.free_rows.append(row)
        for new in plan.scheduled_new_reqs:
            self._begin(new.req_id)
            tables = (new.block_ids, *plan.group_block_ids.get(new.req_id, ()))
            new_blocks += self._append(new.req_id, tables, new.num_computed_tokens)
        cached = plan.scheduled_cached_reqs
        for req_id, num_computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if req_id in cached.resumed_req_ids:
                self._begin(req_id)
            tables = (plan.new_block_ids.get(req_id, ()), *plan.group_block_ids.get(req_id, ()))
            new_blocks += self._append(req_id, tables, num_computed)
        return new_blocks if self.layout.spec.keeps_states else []

    def _begin(self, req_id: str) -> None:
        self.row_of[req_id] = row = self.free_rows.pop()
        for table in self.tables:
            table.clear(row)

    def _append(self, req_id: str, tables: Iterable[Sequence[int]], num_computed: int) -> list[int]:
        """Append to a request's tables; those of groups 1 and up may be left out.

        Returns:
            The appended blocks of attention that hold nothing yet.
        """
        row = self.row_of[req_id]
        found: list[int] = []
        for table, block_ids in zip(self.tables, tables, strict=False):
            start = int(table.num_blocks[row])
            table.append(row, block_ids)
            if table.spec.kind != "mamba":
                num_held = max(num_computed // table.spec.block_size - start, 0)
                found += [block_id for block_id in block_ids[num_held:] if block_id]
        return found

    def apply(self, inputs: StepInputs) -> None:
        """Put into a step's metadata what each group's layers see."""
        metadata = inputs.metadata
        seq_lens = np.array(metadata.seq_lens_cpu, dtype=np.int32)
        num_computed = seq_lens - np.array(metadata.query_lens_cpu, dtype=np.int32)
        rows = np.array([self.row_of[req_id] for req_id in inputs.req_ids], dtype=np.int64)
        kinds = {table.spec for table in self.tables if table.spec.kind != "mamba"}
        views = {spec: View(spec, num_computed, seq_lens) for spec in kinds}
        ends = {spec: self.to_device(view.seq_lens) for spec, view in views.items()}
        groups: list[AttentionMetadata | StateMetadata] = []
        for table in self.tables:
            if table.spec.kind == "mamba":
                places = self.to_device(table.state_blocks(rows, seq_lens))
                is_new = self.to_device(num_computed == 0)
                groups.append(state_metadata(metadata, places, is_new))
            else:
                view, spec = views[table.spec], table.spec
                blocks = view.blocks(table, rows)
                groups.append(self._attention(metadata, view, ends[spec], blocks))
        metadata.groups, metadata.layer_groups = groups, self.layer_groups

    def _attention(
        self,
        whole: AttentionMetadata,
        view: View,
        seq_lens: Tensor,
        blocks: NDArray[np.int32],
    ) -> AttentionMetadata:
        return replace(
            whole,
            seq_lens=seq_lens,
            block_table=self.to_device(blocks),
            slot_mapping=self.to_device(view.slots(blocks)),
            max_seq_len=int(view.seq_lens.max()),
            seq_lens_cpu=view.seq_lens.tolist(),
            skipped_cpu=view.skipped.tolist(),
        )


def state_metadata(whole: AttentionMetadata, block_ids: Tensor, is_new: Tensor) -> StateMetadata:
    """The batch for layers with states; ``block_ids`` and ``is_new`` are ``[R]``."""
    return StateMetadata(
        query_start_loc=whole.query_start_loc,
        block_ids=block_ids,
        is_new=is_new,
        max_query_len=whole.max_query_len,
        num_decode_reqs=whole.num_decode_reqs,
        query_lens_cpu=whole.query_lens_cpu,
        seq_lens_cpu=whole.seq_lens_cpu,
    )


def show_no_request(layout: CacheLayout, metadata: AttentionMetadata) -> None:
    """Give a warm-up run metadata for layers with states: that of new requests, whose states go
    into the null block."""
    if not layout.spec.keeps_states:
        return
    num_reqs, device = metadata.num_reqs, metadata.seq_lens.device
    states = state_metadata(
        metadata,
        torch.zeros(num_reqs, dtype=torch.int64, device=device),
        torch.ones(num_reqs, dtype=torch.bool, device=device),
    )
    metadata.groups = [states if group.kind == "mamba" else metadata for group in layout.groups]
    metadata.layer_groups = layout.layer_groups()
