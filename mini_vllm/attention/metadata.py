"""What every attention layer needs to know about one step's batch.

    request          A (decode)   B (decode)   C (a prefill chunk of 3 tokens)
    flat tokens      a9           b4           c0   c1   c2          T = 5
    query_start_loc  0            1            2              5      R + 1 = 4 entries
    seq_lens         10           5            3                     context after this step
    slot_mapping     where each of the T new tokens' keys and values go

Decodes (one token each) come first, so that a backend can treat them as one dense batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class AttentionMetadata:
    """One step's batch as attention sees it; the same object serves all layers.

    R is the number of requests, T the number of new tokens of all of them together.
    Source: vllm/v1/attention/backend.py#L352-L493 (CommonAttentionMetadata) @ v0.22.1.
    """

    query_start_loc: Tensor  # [R + 1] int32: where each request's new tokens begin
    seq_lens: Tensor  # [R] int32: tokens of context after this step (computed + scheduled)
    block_table: Tensor  # [R, max_blocks] int32: physical block ids; unused entries are 0
    slot_mapping: Tensor  # [T] int64: block_id * block_size + offset; -1 = do not store
    max_query_len: int
    max_seq_len: int
    num_decode_reqs: int  # the first so many requests have exactly one new token
    query_lens_cpu: list[int]  # new tokens of each request, on the host: no wait for the device
    seq_lens_cpu: list[int]  # `seq_lens` on the host
    plan: Any = None  # what a backend derives once and reuses in every layer of the step
    order: Tensor | None = None  # [R] int64: decodes as they start on a GPU, derived once
    places: Any = None  # the same for layers that are one call, see `model/narrow.py`
    groups: Sequence[AttentionMetadata | StateMetadata] = ()  # one per cache group, if several
    layer_groups: Sequence[int] = ()  # the group of each layer
    skipped_cpu: Sequence[int] = ()  # of a window: tokens of each text that are before it

    @property
    def num_reqs(self) -> int:
        return len(self.query_lens_cpu)

    @property
    def text_lens_cpu(self) -> list[int]:
        """Tokens of each text after this step, including those before a window."""
        if not self.skipped_cpu:
            return self.seq_lens_cpu
        return [a + b for a, b in zip(self.skipped_cpu, self.seq_lens_cpu, strict=True)]

    def of_layer(self, index: int) -> Any:
        """The metadata of layer `index`: a `StateMetadata` if the layer has a state, else this one,
        or that of its group."""
        return self.groups[self.layer_groups[index]] if self.groups else self

    def underived(self) -> AttentionMetadata:
        """The same step, of which layers derive anew what they share."""
        groups = [group.underived() for group in self.groups]
        return replace(self, plan=None, order=None, places=None, groups=groups)

    @classmethod
    def from_lists(
        cls,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> AttentionMetadata:
        """Build the metadata of one step from plain lists, one entry per request.

        `query_lens[i]` new tokens of request i end at context length `seq_lens[i]`; its pages are
        `block_tables[i]`. Requests with one new token must come first: they are the decodes.
        """
        num_decodes = next((i for i, n in enumerate(query_lens) if n != 1), len(query_lens))
        width = max(map(len, block_tables), default=0)
        slots = [
            table[position // block_size] * block_size + position % block_size
            for n, length, table in zip(query_lens, seq_lens, block_tables, strict=True)
            for position in range(length - n, length)
        ]
        starts = torch.tensor([0, *query_lens]).cumsum(0)
        rows = [list(table) + [0] * (width - len(table)) for table in block_tables]
        return cls(
            query_start_loc=starts.to(device, torch.int32),
            seq_lens=torch.tensor(list(seq_lens), dtype=torch.int32, device=device),
            block_table=torch.tensor(rows, dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
            max_query_len=max(query_lens, default=0),
            max_seq_len=max(seq_lens, default=0),
            num_decode_reqs=num_decodes,
            query_lens_cpu=list(query_lens),
            seq_lens_cpu=list(seq_lens),
        )


@dataclass
class StateMetadata:
    """One step's batch for layers that keep a state in place of keys and values.

    A state is read before the step and written behind it, in the same block. To know whether a
    request is new, look at `is_new`: a prompt of one token has as many new tokens as a decode.
    Source: vllm/v1/attention/backends/utils.py#L897-L937 (mamba_get_block_table_tensor) @ v0.22.1.
    """

    query_start_loc: Tensor  # [R + 1] int32: where each request's new tokens begin
    block_ids: Tensor  # [R] int64: the block that holds each request's state
    is_new: Tensor  # [R] bool: nothing is computed yet: it starts from zeros, whatever lies there
    max_query_len: int
    num_decode_reqs: int  # the first so many requests have exactly one new token
    query_lens_cpu: list[int]
    seq_lens_cpu: list[int]  # after this step
    plan: Any = None  # what a layer derives once and others reuse

    @property
    def num_reqs(self) -> int:
        return len(self.query_lens_cpu)

    def underived(self) -> StateMetadata:
        """See `AttentionMetadata`."""
        return replace(self, plan=None)

    def load(self, states: Tensor, rows: slice = slice(None)) -> Tensor:
        """The states `[R, ...]` before this step, copied out of `states` `[blocks, ...]`; with
        `rows` those of some requests only."""
        found = states[self.block_ids[rows]]
        found[self.is_new[rows]] = 0  # not times 0: NaN of an earlier request would stay
        return found

    def store(self, states: Tensor, values: Tensor, rows: slice = slice(None)) -> None:
        """Write the states `[R, ...]` behind this step into `states` `[blocks, ...]`."""
        states[self.block_ids[rows]] = values.to(states.dtype)
