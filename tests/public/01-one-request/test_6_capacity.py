"""Task 01.6: how many requests fit."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.worker.capacity import bytes_per_token, num_blocks_in, requests_that_fit

SHAPES = {
    "storyteller": ({"num_layers": 4, "num_kv_heads": 2, "head_dim": 64}, 2048),
    "Qwen3-0.6B": ({"num_layers": 28, "num_kv_heads": 8, "head_dim": 128}, 114_688),
    "float32": ({"num_layers": 3, "num_kv_heads": 8, "head_dim": 128, "dtype": "float32"}, 24_576),
    "one KV head": ({"num_layers": 28, "num_kv_heads": 1, "head_dim": 128}, 14_336),
    "int8 and 4 bytes of scale a head": (
        {"num_layers": 3, "num_kv_heads": 2, "head_dim": 8, "dtype": "int8", "pad_bytes": 4}, 144),
    "a latent": ({"num_layers": 61, "num_kv_heads": 1, "head_dim": 576, "planes": 1}, 70_272),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_01_6_vectors_of_every_layer_and_kv_head(
    lab_cache: Any, shape: dict[str, Any], expected: int
) -> None:
    """Bytes: planes, KV heads, width and bytes of an entry, in each layer."""
    expect(bytes_per_token(lab_cache(**shape)), expected, at=f"a cache with {shape}")


def test_01_6_a_layer_with_a_state_takes_nothing_a_token(lab_cache: Any) -> None:
    """Bytes: a state has one size whatever the length."""
    spec = lab_cache(num_layers=4, num_kv_heads=2, head_dim=8, kinds=["mamba", "full"] * 2)
    expect(bytes_per_token(spec), 2 * 64, at="4 layers, 2 of them with a state; 64 bytes a layer")


def test_01_6_a_layer_with_a_window_counts(lab_cache: Any) -> None:
    """Bytes: its tokens lie in blocks like those of others, as long as they are in the window."""
    spec = lab_cache(num_layers=2, num_kv_heads=2, head_dim=8, kinds=["sliding_window", "full"])
    expect(bytes_per_token(spec), 2 * 64, at="2 layers, one with a window; 64 bytes a layer")


@pytest.mark.parametrize("name", SHAPES)
def test_01_6_the_engine_allocates_as_many_bytes(lab_cache: Any, name: str) -> None:
    """Bytes: what the tensors of the engine's own cache take, divided by their tokens."""
    import torch

    from mini_vllm.worker.kv_cache import KVCache

    spec = lab_cache(**SHAPES[name][0])
    cache = KVCache(spec, num_blocks=3, block_size=16, device=torch.device("cpu"))
    taken = sum(tensor.numel() * tensor.itemsize for tensor in cache.tensors)
    at = f"3 blocks of 16 tokens of {name}: {taken} bytes of tensors"
    expect(3 * 16 * bytes_per_token(spec), taken, at=at)


@pytest.mark.parametrize(
    ("memory", "expected"), [(1000, 10), (1099, 10), (99, 0), (0, 0), (-1, 0), (-5000, 0)]
)
def test_01_6_whole_blocks_only(memory: int, expected: int) -> None:
    """Blocks: no part of one; and none where the weights have left less than nothing."""
    expect(num_blocks_in(memory, 100), expected, at=f"{memory} bytes, 100 bytes a block")


@pytest.mark.parametrize(
    ("num_blocks", "num_tokens", "expected"),
    [(9, 16, 8), (9, 17, 4), (9, 32, 4), (9, 33, 2), (9, 128, 1), (9, 129, 0), (1, 1, 0)],
)
def test_01_6_a_block_that_is_begun_is_taken(
    num_blocks: int, num_tokens: int, expected: int
) -> None:
    """Requests: each has whole blocks of 16 tokens, and the null block holds none."""
    at = f"{num_blocks} blocks of 16 tokens, the null block among them; {num_tokens} tokens each"
    expect(requests_that_fit(num_blocks, 16, num_tokens), expected, at=at)


@pytest.mark.parametrize(
    ("shared", "expected"), [(0, 4), (15, 4), (16, 5), (31, 5), (32, 10), (47, 10), (48, 10)]
)
def test_01_6_a_shared_prefix_is_kept_once(shared: int, expected: int) -> None:
    """Requests: full blocks of the prefix are there once, and never the block of the last token."""
    at = f"12 blocks of 16 tokens and the null block; 48 tokens each, {shared} of them shared"
    expect(requests_that_fit(13, 16, 48, shared), expected, at=at)


def test_01_6_a_prefix_that_does_not_fit_leaves_no_room() -> None:
    """Requests: never less than none."""
    expect(requests_that_fit(3, 16, 100, 90), 0, at="2 blocks of 16 tokens; 90 of 100 are shared")


@pytest.mark.parametrize(("num_tokens", "shared"), [(40, 0), (48, 0), (48, 33), (48, 48), (20, 19)])
def test_01_6_the_engine_serves_as_many(num_tokens: int, shared: int) -> None:
    """Requests: the engine's own block manager gives blocks to as many, and to no more."""
    from mini_vllm.core.kv_cache_manager import KVCacheManager
    from mini_vllm.request import Request

    manager, served = KVCacheManager(24, 16, max_model_len=64), 0
    while True:
        own = range(1000 * served + 1000, 1000 * served + 1000 + num_tokens - shared)
        request = Request(f"r{served}", [*range(shared), *own])
        request.set_block_hasher(manager.block_hasher)
        hits, num_hits = manager.get_computed_blocks(request)
        new = num_tokens - num_hits
        if manager.allocate_slots(request, new, num_hits, hits) is None:
            break
        served += 1
    at = f"24 blocks of 16 tokens; {num_tokens} tokens a request, the first {shared} the same"
    expect(requests_that_fit(24, 16, num_tokens, shared), served, at=at)
