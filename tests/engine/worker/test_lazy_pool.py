"""A large KV pool in main memory takes room as it is used: at the start it takes none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import KVTransferConfig
from mini_vllm.kv_transfer.base import ConnectorContext, KVConnectorRole
from mini_vllm.kv_transfer.factory import KVConnectorFactory
from mini_vllm.model.interface import KVCacheSpec
from mini_vllm.worker.kv_cache import KVCache, bytes_per_block

CPU = torch.device("cpu")
MIB = 2**20
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8]


def resident() -> int:
    """Bytes of main memory that this process takes now, without pages of libraries it calls."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/self/status has no RssAnon")


def pool(dtype: torch.dtype, num_bytes: int = 512 * MIB, host: bool = False) -> KVCache:
    spec = KVCacheSpec(4, 2, 64, dtype)
    num_blocks = num_bytes // bytes_per_block(spec, 16)
    return KVCache(spec, num_blocks, 16, CPU, num_blocks if host else 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pool_takes_no_memory_before_it_is_used(dtype: torch.dtype) -> None:
    before = resident()
    cache = pool(dtype, host=True)
    assert resident() - before < 16 * MIB
    cache.copy([(5, 7)])
    cache.swap_out([(5, 3)])
    assert resident() - before < 32 * MIB
    assert all(layer[:, 7].view(torch.uint8).count_nonzero() == 0 for layer in cache.layers)


def test_memory_grows_with_the_blocks_that_are_written() -> None:
    before = resident()
    cache = pool(torch.float32)
    for layer in cache.layers:
        layer[:, : layer.shape[1] // 4] = 1.0
    grown = resident() - before
    assert 120 * MIB < grown < 160 * MIB


def test_scrubbing_reads_and_does_not_write() -> None:
    before = resident()
    cache = pool(torch.float32)
    cache.layers[0][0, 1] = float("nan")
    cache.layers[1][1, 2] = -float("inf")
    cache.scrub()
    grown = resident() - before  # before the lines below, whose masks malloc may keep
    assert cache.layers[0].isfinite().all() and cache.layers[1].isfinite().all()
    assert grown < 32 * MIB


def test_a_released_pool_gives_its_memory_back_and_keeps_its_addresses() -> None:
    before = resident()
    cache = pool(torch.bfloat16)
    places = [layer.data_ptr() for layer in cache.layers]
    for layer in cache.layers:
        layer.fill_(1)
    cache.release()
    assert resident() - before < 16 * MIB
    cache.restore()
    assert [layer.data_ptr() for layer in cache.layers] == places
    assert resident() - before < 16 * MIB
    assert all(layer.count_nonzero() == 0 for layer in cache.layers)


def test_a_host_tier_takes_no_memory_before_blocks_come() -> None:
    before = resident()
    cache = pool(torch.bfloat16)
    config = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 512 * MIB},
    )
    block_bytes = bytes_per_block(KVCacheSpec(4, 2, 64, torch.bfloat16), 16)
    context = ConnectorContext(b"\0" * 32, 16, block_bytes, cache.layers[0].shape[1])
    half = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, context)
    half.register_kv_caches({str(i): layer for i, layer in enumerate(cache.layers)})
    assert resident() - before < 16 * MIB


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "int8_per_token_head"])
def test_an_engine_with_a_large_pool_starts_small_and_sleeps_smaller(kv_cache_dtype: str) -> None:
    LLM("storyteller", num_gpu_blocks=64).shutdown()  # what is loaded once is loaded
    before = resident()
    llm = LLM(
        "storyteller",
        kv_cache_memory_bytes=2**30,
        kv_cache_dtype=kv_cache_dtype,
        max_num_seqs=2048,
        max_num_batched_tokens=2048,
    )
    cache = llm.engine.core.model_runner.kv_cache
    size = sum(layer.numel() * layer.itemsize for layer in cache.layers)
    assert size > 900 * MIB
    params = SamplingParams(temperature=0, max_tokens=8)
    first = llm.generate(["Once upon a time"], params, use_tqdm=False)[0].outputs[0].token_ids
    assert resident() - before < 200 * MIB
    llm.sleep()
    llm.wake_up()
    again = llm.generate(["Once upon a time"], params, use_tqdm=False)[0].outputs[0].token_ids
    assert again == first
    llm.shutdown()


def test_a_drafters_cache_sleeps_too() -> None:
    llm = LLM(
        "storyteller",
        num_gpu_blocks=64,
        speculative_config={
            "method": "draft_model", "model": "storyteller-draft", "num_speculative_tokens": 2,
        },
    )  # fmt: skip
    runner = llm.engine.core.model_runner
    params = SamplingParams(temperature=0, max_tokens=12)
    first = llm.generate(["The little dog"], params, use_tqdm=False)[0].outputs[0].token_ids
    assert runner.speculator is not None
    drafted = runner.speculator.proposer.kv_cache  # type: ignore[attr-defined]
    assert any(layer.count_nonzero() for layer in drafted.layers)
    llm.sleep()
    assert not any(layer.count_nonzero() for layer in drafted.layers)
    llm.wake_up()
    again = llm.generate(["The little dog"], params, use_tqdm=False)[0].outputs[0].token_ids
    assert again == first
    llm.shutdown()
