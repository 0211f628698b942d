"""Attention through block tables in plain torch: slow, and obviously right.

Every other backend is compared with this one. A request's keys live in pages scattered over the
cache; its block table says where:

    block_size 4, block table [7, 2]      logical position   0  1  2  3 | 4  5
                                          slot              28 29 30 31 | 8  9

Shapes: T new tokens, R requests, L context tokens of one request, Hq query heads,
Hkv key/value heads (Hq is a multiple of Hkv), D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.attention.metadata import AttentionMetadata


def compute_slot_mapping(
    block_table: Tensor, request_of_token: Tensor, positions: Tensor, block_size: int
) -> Tensor:
    """The slot `[T]` (int64) in which each new token's key and value are stored.

    `block_table` `[R, max_blocks]`; `request_of_token` `[T]` is the row each token belongs to;
    `positions` `[T]` is its position in its own request.
    slot = (physical id of the token's block) * block_size + (offset inside that block).
    Source: vllm/v1/worker/block_table.py#L141-L164 (BlockTable.compute_slot_mapping) @ v0.22.1.
    """
    # TODO 04.1
    raise NotImplementedError(
        "TODO 04.1: write compute_slot_mapping in labs/04-attention-kernels/reference.py"
        " (phase 04, 02-mini-build.md#task-1)"
    )


def store_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value `[T, Hkv, D]` into its slot of `kv_cache`, in place.

    `kv_cache` is `[2, num_blocks, block_size, Hkv, D]`. Tokens whose slot is -1 (padding) are
    left out.
    """
    stored = slot_mapping >= 0
    slots = slot_mapping[stored]
    keys, values = kv_cache.flatten(1, 2)  # [num_slots, Hkv, D] each
    keys[slots] = key[stored].to(kv_cache.dtype)
    values[slots] = value[stored].to(kv_cache.dtype)


def gather_kv(kv_cache: Tensor, block_table: Tensor, seq_len: int) -> tuple[Tensor, Tensor]:
    """Copy one request's pages into dense keys and values, `[seq_len, Hkv, D]` each.

    `block_table` `[max_blocks]` is the request's own row; entries past its last block are unused.
    """
    # TODO 04.3
    raise NotImplementedError(
        "TODO 04.3: write gather_kv in labs/04-attention-kernels/reference.py"
        " (phase 04, 02-mini-build.md#task-3)"
    )


def causal_mask(
    query_len: int, seq_len: int, sliding_window: int | None, device: torch.device | str = "cpu"
) -> Tensor:
    """Which context positions each new token may see: `[query_len, seq_len]`, True = visible.

    The new tokens are the last `query_len` of the context, so row i stands at position
    `seq_len - query_len + i`. It sees itself and what comes before it; with a window of W, only
    the last W of these positions.

        query_len 2, seq_len 5      1 1 1 1 0          and with a window of 3      0 1 1 1 0
                                    1 1 1 1 1                                      0 0 1 1 1
    """
    # TODO 04.3
    raise NotImplementedError(
        "TODO 04.3: write causal_mask in labs/04-attention-kernels/reference.py"
        " (phase 04, 02-mini-build.md#task-3)"
    )


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of one request: `[Q, Hq, D]` over `[L, Hkv, D]` keys and values -> `[Q, Hq, D]`.

    softmax(scale * query @ keys^T) @ values in float32, with -inf where `mask` `[Q, L]` is False.
    Query heads share key/value heads in groups: head h reads h // (Hq // Hkv).
    """
    # TODO 04.3
    raise NotImplementedError(
        "TODO 04.3: write attend in labs/04-attention-kernels/reference.py"
        " (phase 04, 02-mini-build.md#task-3)"
    )


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """Causal attention of every new token over its own request's pages: `[T, Hq, D]` -> the same.

    One request after another: gather its pages, build its mask, attend.
    """
    # TODO 04.3
    raise NotImplementedError(
        "TODO 04.3: write paged_attention in labs/04-attention-kernels/reference.py"
        " (phase 04, 02-mini-build.md#task-3)"
    )


class ReferenceAttention:
    """The functions of this module as an `AttentionBackend`."""

    store = staticmethod(store_kv)
    forward = staticmethod(paged_attention)
