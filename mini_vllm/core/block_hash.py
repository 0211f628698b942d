"""Names for the contents of KV blocks, so that equal prefixes can share them.

A block may be reused only if *everything before it* is equal too: attention has mixed the
whole prefix into its keys and values. So the hashes form a chain, each covering its parent::

    tokens       | t0 t1 t2 t3 | t4 t5 t6 t7 | t8 t9          (block_size 4)
                       │              │             └─ not full: no hash yet
    root ─► hash ─► h0 = H(root, t0..t3, extra)
                       └────► h1 = H(h0, t4..t7, extra)

Source: vllm/v1/core/kv_cache_utils.py#L541-L568 (hash_block_tokens) @ v0.22.1
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Sequence

from mini_vllm.request import Request


def hash_block(
    parent_hash: bytes, token_ids: Sequence[int], extra_keys: tuple[object, ...] = ()
) -> bytes:
    """Hash one full block.

    Args:
        parent_hash: 32 bytes, the hash of the block before it, or the root for the first.
        token_ids: the block's tokens, all ``block_size`` of them.
        extra_keys: whatever else changes the block's keys and values (:func:`extra_hash_keys`).

    Returns:
        32 bytes of SHA-256 over the parent, the tokens as 64-bit integers (array type ``"q"``),
        and the extra keys in any form. A plain ``hash()`` would not do: a user who can make prompts
        collide reads foreign KV.
    """
    digest = hashlib.sha256(parent_hash)
    digest.update(array("q", token_ids).tobytes())
    if extra_keys:
        digest.update(repr(extra_keys).encode())
    return digest.digest()


def extra_hash_keys(request: Request, start: int, end: int) -> tuple[object, ...]:
    """What tells the block ``[start, end)`` apart besides its tokens; empty for plain text.

    - the adapter's name, in every block: an adapter changes every key and value;
    - the cache salt, in the first block only: the chain carries it on. None is no salt, and an
      empty one is a salt like any other;
    - for each image that overlaps the block, its content hash and where it begins relative to
      the block: its placeholder tokens are the same for all images.

    Source: vllm/v1/core/kv_cache_utils.py#L503-L538 (generate_block_hash_extra_keys) @ v0.22.1
    """
    keys: list[object] = []
    if request.lora_name is not None:
        keys.append(("lora", request.lora_name))
    if request.cache_salt is not None and start == 0:
        keys.append(("salt", request.cache_salt))
    for offset, length, content_hash in request.mm_hashes:
        if offset < end and start < offset + length:
            keys.append(("mm", content_hash, offset - start))
    return tuple(keys)


class BlockHasher:
    """Computes the hashes of a request's full blocks, each of them once.

    Args:
        block_size: tokens per block.
        root: the parent of every first block. None: random, so that no outsider can
            predict a hash; pass one to make hashes repeat between processes.
    """

    def __init__(self, block_size: int, root: bytes | None = None) -> None:
        self.block_size = block_size
        self.root = os.urandom(32) if root is None else root

    def __call__(self, request: Request) -> list[bytes]:
        """The hashes of full blocks that ``request.block_hashes`` does not hold yet, in order.

        A call costs what the new blocks cost, however many have a hash already.

        Source: vllm/v1/core/kv_cache_utils.py#L645-L688 (get_request_block_hasher) @ v0.22.1
        """
        size = self.block_size
        start = len(request.block_hashes) * size
        parent = request.block_hashes[-1] if request.block_hashes else self.root
        hashes = []
        for begin in range(start, len(request.all_token_ids) - size + 1, size):
            tokens = request.all_token_ids[begin : begin + size]
            parent = hash_block(parent, tokens, extra_hash_keys(request, begin, begin + size))
            hashes.append(parent)
        return hashes
