"""Fast attention on CPU: dense groups of requests instead of one request after another.

A step's requests are put into groups that need no ragged arithmetic:

    short      up to 16 new tokens each: decodes, and drafts to verify; grouped by query length, and
               by context length within a factor of two, and padded to the longest of the group
    prefills   grouped by equal query and context length, without padding

    4 drafts are verified with a mask like a staircase:      context x x x x x x x . . . .
    each sees the context and the drafts before it           t       x x x x x x x x . . .
                                                             d0      x x x x x x x x x . .

Where `kernels/cpu.cpp` can be built, all short queries are one group, and its kernel reads their
keys and values from the pages where they lie. It takes prompts, too, where it is faster, and packs
their keys and values first. Otherwise:

For each group one gather copies the pages into a dense buffer, and one call of torch's
`scaled_dot_product_attention` (a flash kernel on CPU) does the rest. Indices and masks depend only
on the step, so they are built once and used by every layer.

Shapes: n requests of a group, Q new tokens each, L context tokens, Hq = Hkv * G heads, D head size.
"""

from __future__ import annotations

from math import inf

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.reference import causal_mask
from mini_vllm.attention.selector import AttentionSelectorConfig
from mini_vllm.kernels import native
from mini_vllm.platforms.interface import Platform

MAX_SHORT_QUERY = 16
"""Queries up to this length are computed as decodes are. A whole group of them costs one gather
and one call; each alone would cost as much as a prompt."""


class Group:
    """Requests of one step that are computed together: what is the same for them in every layer."""

    def __init__(
        self, metadata: AttentionMetadata, rows: list[int], num_blocks: int, block_size: int
    ) -> None:
        self.size = len(rows)  # n
        self.query_len = metadata.query_lens_cpu[rows[0]]  # Q, the same for all
        self.is_short = self.query_len <= MAX_SHORT_QUERY
        longest = max(metadata.seq_lens_cpu[row] for row in rows)
        width = -(-longest // block_size)
        self.seq_len = width * block_size if self.is_short else longest  # L
        index = torch.tensor(rows)
        self.seq_lens = metadata.seq_lens[index]  # [n]; all equal to L in a prefill
        starts = metadata.query_start_loc[index]
        self.tokens = as_slice((starts[:, None] + torch.arange(self.query_len)).flatten())
        pages = metadata.block_table[index, :width].flatten().long()
        self.pages = torch.cat((pages, pages + num_blocks))  # key pages of all, then value pages
        self.masks: dict[tuple[int | None, torch.dtype, int], Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype, num_groups: int) -> Tensor | None:
        """What is added to the scores, 0 or -inf: `[n, 1, Q * G, L]` if short, else `[Q, L]`.

        None for whole prompts without a window: plain causal attention.
        """
        if not self.is_short and window is None and self.query_len == self.seq_len:
            return None
        key = (window, dtype, num_groups)
        if key not in self.masks:
            visible = self._visible(window)
            if self.is_short and self.query_len > 1:  # a single row fits all heads as it is
                visible = visible.repeat_interleave(num_groups, dim=2)
            zeros = torch.zeros(visible.shape, dtype=dtype)
            self.masks[key] = zeros.masked_fill_(~visible, float("-inf"))
        return self.masks[key]

    def _visible(self, window: int | None) -> Tensor:
        """Which context tokens each new token sees: `[n, 1, Q, L]` if short, else `[Q, L]`."""
        if not self.is_short:
            return causal_mask(self.query_len, self.seq_len, window)
        context = torch.arange(self.seq_len)
        first = self.seq_lens[:, None, None, None] - self.query_len
        positions = first + torch.arange(self.query_len)[:, None]  # of the new tokens
        visible = context <= positions
        return visible if window is None else visible & (context > positions - window)


def as_slice(rows: Tensor) -> slice | Tensor:
    """Ascending row numbers as a slice if they are consecutive: a view instead of a copy."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


class PagedTokens:
    """Tokens of some requests, for the kernel that reads pages in place.

    Args:
        are_taken: `[num_reqs]` bool, the requests; None: all.
    """

    def __init__(self, metadata: AttentionMetadata, are_taken: np.ndarray | None = None) -> None:
        self.table = metadata.block_table
        num_reqs = metadata.num_reqs
        if metadata.max_query_len == 1:  # only decodes: a token is a request
            self.tokens: slice | Tensor = slice(0, num_reqs)
            self.rows, self.ends = torch.arange(num_reqs, dtype=torch.int32), metadata.seq_lens
            return
        lens, seq_lens = np.array(metadata.query_lens_cpu), np.array(metadata.seq_lens_cpu)
        rows = np.repeat(np.arange(num_reqs, dtype=np.int32), lens)
        behind = seq_lens - lens.cumsum()  # how much further a request's text goes than the batch
        ends = np.arange(1, len(rows) + 1) + behind[rows]  # a token sees what is before, and itself
        self.tokens = slice(0, len(rows))
        if are_taken is not None and not are_taken.all():
            taken = np.flatnonzero(are_taken[rows])
            rows, ends = rows[taken], ends[taken]
            self.tokens = as_slice(torch.from_numpy(taken))
        self.rows, self.ends = torch.from_numpy(rows), torch.from_numpy(ends.astype(np.int32))

    def attend(self, query: Tensor, kv_cache: Tensor, scale: float, window: int | None) -> Tensor:
        return native.paged_attention(
            query, kv_cache, self.table, self.rows, self.ends, scale, window
        )


def make_groups(
    metadata: AttentionMetadata,
    num_blocks: int,
    block_size: int,
    longest: float = 0,
) -> list[Group | PagedTokens]:
    """Group the requests of one step; `num_blocks` is the size of the cache.

    Our kernel takes those of at most `longest` new tokens.
    """
    are_taken = np.array(metadata.query_lens_cpu) <= longest
    groups: list[Group | PagedTokens] = []
    if are_taken.any():
        groups.append(PagedTokens(metadata, are_taken))
    members: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(~are_taken).tolist():
        query_len, seq_len = metadata.query_lens_cpu[row], metadata.seq_lens_cpu[row]
        if query_len <= MAX_SHORT_QUERY:  # up to 64, 128, 256 ... tokens of context share a group
            seq_len = (max(seq_len, 64) - 1).bit_length()
        members.setdefault((query_len, seq_len), []).append(row)
    return groups + [Group(metadata, rows, num_blocks, block_size) for rows in members.values()]


def attend_short(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """`query` `[n * Q, Hq, D]`; `keys` and `values` `[n, Hkv, L, D]`.

    The G query heads that share a key head become G "tokens" of one head: no key is repeated.
    """
    n, num_kv_heads = keys.shape[:2]
    q = query.view(n, -1, num_kv_heads, query.shape[1] // num_kv_heads, query.shape[2])
    if q.shape[1] == 1:
        out = F.scaled_dot_product_attention(q[:, 0], keys, values, mask, scale=scale)
        return out.reshape(query.shape)
    folded = q.transpose(1, 2).flatten(2, 3)  # [n, Hkv, Q * G, D]
    out = F.scaled_dot_product_attention(folded, keys, values, mask, scale=scale)
    return out.unflatten(2, q.shape[1:4:2]).transpose(1, 2).reshape(query.shape)


def attend_prefills(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """`query` `[n * Q, Hq, D]`; without a mask, by the kernel's own causal mode."""
    q = query.view(len(keys), -1, *query.shape[1:]).transpose(1, 2)
    out = F.scaled_dot_product_attention(
        q, keys, values, mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2).reshape(query.shape)


class CpuAttention:
    """The `AttentionBackend` for CPUs. Keeps one scratch buffer, reused by all layers and steps."""

    def __init__(self) -> None:
        self.scratch = torch.empty(0)

    @classmethod
    def validate_configuration(cls, platform: Platform, _: AttentionSelectorConfig) -> list[str]:
        """Every reason why it cannot do the work; none: it can."""
        return [] if platform.is_host else ["it reads pages and tables in main memory"]

    def store(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        """See `AttentionBackend`. Padding (slot -1) is written into the null block, or nowhere."""
        if native.can_run(key) and kv_cache.dtype in native.NAMES:
            native.store(key, value, kv_cache, slot_mapping)
            return
        slots = slot_mapping.clamp(min=0)
        keys, values = kv_cache.flatten(1, 2)
        keys.index_copy_(0, slots, key.to(kv_cache.dtype))
        values.index_copy_(0, slots, value.to(kv_cache.dtype))

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        if metadata.plan is None:
            has_kernel = native.can_run(query) and kv_cache.dtype in native.NAMES
            has_kernel = has_kernel and query.shape[2] % native.LANES == 0
            longest = inf if native.has_narrow_mkl() else MAX_SHORT_QUERY
            num_blocks, block_size = kv_cache.shape[1:3]
            metadata.plan = make_groups(
                metadata, num_blocks, block_size, longest if has_kernel else 0
            )
        groups = metadata.plan
        if len(groups) == 1:
            return self._attend(query, kv_cache, groups[0], scale, sliding_window)
        output = torch.empty_like(query)
        for group in groups:
            rows = query[group.tokens]
            output[group.tokens] = self._attend(rows, kv_cache, group, scale, sliding_window)
        return output

    def _attend(
        self,
        query: Tensor,
        kv_cache: Tensor,
        group: Group | PagedTokens,
        scale: float,
        window: int | None,
    ) -> Tensor:
        if isinstance(group, PagedTokens):
            return group.attend(query, kv_cache, scale, window)
        # A short query reads much and computes little: converting bfloat16 would cost more than
        # the arithmetic. A prefill gains from it, and so does float16, whose kernel is slow.
        as_stored = group.is_short and kv_cache.dtype == torch.bfloat16
        dtype = kv_cache.dtype if as_stored else query.dtype
        keys, values = self._gather(kv_cache, group).to(dtype)
        attend = attend_short if group.is_short else attend_prefills
        mask = group.mask(window, dtype, query.shape[1] // keys.shape[1])
        out = attend(query.to(dtype), keys, values, mask, scale)
        return out.to(query.dtype)

    def _gather(self, kv_cache: Tensor, group: Group) -> Tensor:
        """Copy the group's pages into dense keys and values: `[2, n, Hkv, L, D]` (a view)."""
        pages = kv_cache.flatten(0, 1).flatten(1)  # [2 * num_blocks, elements of one page]
        size = len(group.pages) * pages.shape[1]
        if self.scratch.numel() < size or self.scratch.dtype != kv_cache.dtype:
            self.scratch = torch.empty(size, dtype=kv_cache.dtype)
        dense = self.scratch[:size].view(len(group.pages), -1)
        torch.index_select(pages, 0, group.pages, out=dense)
        dense = dense.view(2, group.size, -1, *kv_cache.shape[3:])
        return dense[:, :, : group.seq_len].transpose(2, 3)
