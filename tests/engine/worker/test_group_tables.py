"""Layers with a window in the worker: blocks that went back are never read, tokens do not change.

Tokens are compared with those of the same model when all layers keep the whole text
(`disable_hybrid_kv_cache_manager`); that these are transformers' is shown in test_families.py.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.cache_groups import GroupSpec, group_layers
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.entrypoints import info
from mini_vllm.model.families.table import QueryGrowth
from mini_vllm.model.parts.attention import growth
from mini_vllm.policies import POLICIES
from mini_vllm.request import Request
from mini_vllm.worker.cuda_graphs import record_eagerly
from mini_vllm.worker.group_tables import View

SHAPE: dict[str, Any] = dict(
    vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=6,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=1024,
)  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "gemma": dict(architectures=["Gemma3ForCausalLM"], sliding_window=9),  # 5 windows, 1 full
    "mistral": dict(architectures=["MistralForCausalLM"], sliding_window=9),  # windows only
    "qwen": dict(
        architectures=["Qwen2ForCausalLM"], use_sliding_window=True, sliding_window=9,
        max_window_layers=4,
    ),
    "llama4": dict(
        architectures=["Llama4ForCausalLM"], attention_chunk_size=8, intermediate_size_mlp=32,
        num_local_experts=2, interleave_moe_layer_step=6, no_rope_layer_interval=3, floor_scale=7,
    ),
}  # fmt: skip
PROMPTS = [[5] * 3, list(range(40)), list(range(30)) + [70, 71], [9, 8] * 20, list(range(40))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windows")
    for name, own in MODELS.items():
        (path / name).mkdir()
        (path / name / "config.json").write_text(json.dumps(SHAPE | own))
    return path


def make(model: Path, **options: Any) -> LLM:
    usual: dict[str, Any] = dict(
        load_format="dummy", skip_tokenizer_init=True, dtype="float32", block_size=4,
        num_gpu_blocks=300, max_model_len=96, max_num_seqs=8,
    )  # fmt: skip
    return LLM(model, **(usual | options))


def generate(llm: LLM, prompts: list[list[int]] = PROMPTS, max_tokens: int = 16) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(prompts)
    llm.engine.core.scheduler.check_integrity()
    return [output.outputs[0].token_ids for output in outputs]


@cache
def whole_text(model: Path) -> list[list[int]]:
    """Tokens if every layer keeps the whole text."""
    llm = make(model, disable_hybrid_kv_cache_manager=True)
    assert type(llm.engine.core.scheduler.kv_cache_manager) is KVCacheManager
    return generate(llm)


TIGHT = {"num_gpu_blocks": 64, "max_num_batched_tokens": 16, "scheduler_reserve_full_isl": False}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemma", {"max_num_batched_tokens": 7, "async_scheduling": True}),
        ("gemma", TIGHT),
        ("gemma", {"block_size": 16, "enable_prefix_caching": False}),
        ("mistral", TIGHT | {"num_gpu_blocks": 12}),
        ("qwen", TIGHT | {"num_gpu_blocks": 36}),
        ("llama4", TIGHT | {"num_gpu_blocks": 36}),
    ],
    ids=["late, in chunks", "preempted", "uncached", "mistral", "qwen", "chunks of a text"],
)
def test_tokens_are_those_of_the_whole_text(
    folder: Path, name: str, options: dict[str, Any]
) -> None:
    """With numbers in every free block that would change each token."""
    llm = make(folder / name, **options)
    core = llm.engine.core
    assert isinstance(core.scheduler.kv_cache_manager, HybridKVCacheManager)
    preempted: list[str] = []
    core.observers.append(lambda plan, *_: preempted.extend(plan.preempted_req_ids))
    core.observers.append(lambda *_: spoil_free_blocks(core))
    spoil_free_blocks(core)
    assert generate(llm) == whole_text(folder / name)
    assert generate(llm) == whole_text(folder / name), "with hits"
    assert bool(preempted) == ("num_gpu_blocks" in options)


def spoil_free_blocks(core: Any) -> None:
    """Of the free blocks those stay that are findable. No request holds the null block either."""
    if core.batch_queue:
        return  # a step is on its way: what it writes was counted as held by a request since gone
    pool = core.scheduler.kv_cache_manager.block_pool
    free = [block for block in pool.blocks if not block.ref_cnt and block.block_hash is None]
    for tensor in core.model_runner.kv_cache.tensors:
        tensor[:, [block.block_id for block in free]] = 1e30


@pytest.mark.parametrize("kinds", [["w"] * 5 + ["f"], ["w"]], ids=["gemma", "mistral"])
def test_windows_let_more_requests_into_the_same_memory(kinds: list[str]) -> None:
    """At contexts of 32 windows, 288 tokens and windows of 9, in the memory of 4 whole texts."""
    kinds = (kinds * 24)[:24]
    specs = {"w": GroupSpec("sliding_window", 4, window=9), "f": GroupSpec("full", 4)}
    dealt = group_layers(kinds)
    whole = 4 * 72 * len(kinds)  # pages of one layer
    num_layers = max(map(len, dealt))
    groups = [specs[kinds[layers[0]]] for layers in dealt]
    assert most_running(1 + whole // len(kinds), [specs["f"]]) == 4
    assert most_running(1 + whole // num_layers, groups) >= 1.8 * 4


def most_running(num_blocks: int, groups: list[GroupSpec]) -> int:
    """Requests of 272 + 16 tokens that run side by side, each of which comes in one chunk."""
    scheduler = make_scheduler(
        SchedulerConfig(max_num_batched_tokens=512, max_model_len=288),
        CacheConfig(block_size=4, num_gpu_blocks=num_blocks, enable_prefix_caching=False),
        groups=groups,
    )
    for index in range(60):
        params = SamplingParams(max_tokens=16, ignore_eos=True)
        scheduler.add_request(Request(str(index), [index] * 272, params))
    most = 0
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        if not plan.preempted_req_ids:
            most = max(most, len(scheduler.running))
        tokens = {
            name: [7] for name, request in scheduler.requests.items()
            if name in plan.num_scheduled_tokens
            and request.num_computed_tokens == request.num_tokens
        }  # fmt: skip
        finish_step(scheduler, plan, ModelRunnerOutput(tokens))
    return most


def test_a_query_grows_with_its_place_in_the_whole_text() -> None:
    """A family may scale queries by position, in layers with a window, too."""
    lens = [1, 3], [30, 40]
    view = View(GroupSpec("sliding_window", 4, window=9), *np.array([[29, 37], [30, 40]]))
    whole, seen = (
        AttentionMetadata.from_lists(lens[0], ends, [[1] * 10] * 2, 4)
        for ends in (lens[1], view.seq_lens.tolist())
    )
    seen.skipped_cpu = view.skipped.tolist()
    assert (whole.text_lens_cpu, seen.text_lens_cpu) == (lens[1], lens[1])
    rule = QueryGrowth(rate=0.1, every=4, offset=0)
    assert torch.equal(growth(rule, seen), growth(rule, whole))


def test_layers_are_dealt_like_cards() -> None:
    assert group_layers("wwwwwF" * 2) == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    assert group_layers("wF" * 12) == [list(range(0, 24, 2)), list(range(1, 24, 2))], "gpt-oss"
    assert [len(g) for g in group_layers("SSSF" * 12)] == [12] * 4, "Qwen3-Next"
    assert [len(g) for g in group_layers(("wwwwwF" * 5)[:26])] == [4, 4, 4, 4, 3, 3, 4], "Gemma 3"
    assert [len(g) for g in group_layers("aabbb")] == [2, 2, 1], "1.5 times as many are dealt"
    assert [len(g) for g in group_layers("aaabbbb")] == [3, 4]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "speculative_config",
        ),
        ({"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}}, "kv_events"),
        ({"scheduler_cls": POLICIES["vllm-v0"]}, "a scheduler without groups"),
    ],
)
def test_what_needs_one_table_gets_it_and_says_so(
    folder: Path, options: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "mini_vllm"):
        llm = make(folder / "gemma", max_num_batched_tokens=96, **options)
    assert not isinstance(llm.engine.core.scheduler.kv_cache_manager, HybridKVCacheManager)
    assert f"{why}" in caplog.text and "keep the whole text" in caplog.text
    assert len(llm.engine.core.model_runner.kv_cache.tensors) == 6
    with pytest.raises(ValueError, match=f"is False, and {why}.* needs one block table"):
        make(folder / "gemma", disable_hybrid_kv_cache_manager=False, **options)


def test_a_window_that_no_text_outgrows_is_none(folder: Path) -> None:
    llm = make(folder / "gemma", max_model_len=9)
    assert type(llm.engine.core.scheduler.kv_cache_manager) is KVCacheManager


def test_decodes_are_replayed_with_a_table_for_each_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make(folder / "gemma", max_num_seqs=5)
    runner = llm.engine.core.model_runner
    runner.warm_up(8, record_eagerly)
    graphs = runner.graphs
    assert graphs is not None
    replay, replayed = graphs.replay, []

    def replay_and_tell(*step: Any) -> Any:
        replayed.append(replay(*step))
        return replayed[-1]

    monkeypatch.setattr(graphs, "replay", replay_and_tell)
    assert generate(llm) == whole_text(folder / "gemma")
    assert sum(hidden is not None for hidden in replayed) > 10


def test_blocks_that_share_a_tensor_are_moved_once(folder: Path) -> None:
    """Copied twice, block 3 would get what block 1 has."""
    cache = make(folder / "gemma").engine.core.model_runner.kv_cache
    assert len(cache.layers) == 6 and len(cache.tensors) == 1
    for block in (1, 2, 3):
        cache.tensors[0][:, block] = block
    cache.copy([(1, 2), (2, 3)])
    last = cache.layers[5]
    assert isinstance(last, torch.Tensor)
    assert [last[0, block].mean().item() for block in (1, 2, 3)] == [1, 1, 2]


def test_sleep_reset_and_undo_forget_the_tables(folder: Path) -> None:
    llm = make(folder / "gemma")
    want = whole_text(folder / "gemma")
    assert generate(llm) == want
    llm.sleep()
    llm.wake_up()
    assert generate(llm) == want
    core = llm.engine.core
    for index, prompt in enumerate(PROMPTS):
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        core.add_request(Request(str(index), prompt, params))
    for _ in range(5):
        core.step()
    core.reset_prefix_cache(reset_running_requests=True)
    tables = core.model_runner.group_tables
    assert tables is not None and not tables.row_of and len(tables.free_rows) == 8
    found = dict.fromkeys(core.scheduler.requests.values())
    while core.has_requests():
        core.step()
    assert [request.output_token_ids for request in found] == want
    core.step()
    assert not tables.row_of and sorted(tables.free_rows) == list(range(8))


@pytest.mark.slow
@pytest.mark.serial
def test_shards_have_the_same_tables(folder: Path) -> None:
    """Weights of a shard are drawn anew, so shards are compared with shards."""
    tokens = []
    for options in (TIGHT, {"disable_hybrid_kv_cache_manager": True}):
        llm = make(folder / "gemma", tensor_parallel_size=2, **options)
        try:
            tokens.append(generate(llm))
        finally:
            llm.shutdown()
    assert tokens[0] == tokens[1]


def test_a_quantised_cache_is_shared_as_any_other(folder: Path) -> None:
    """Bytes have their scales beside them, so tokens are those of the whole text in as few bits."""
    tokens = [
        generate(make(folder / "gemma", kv_cache_dtype="int8_per_token_head", **options))
        for options in (TIGHT, {"disable_hybrid_kv_cache_manager": True})
    ]
    assert tokens[0] == tokens[1]


def test_memory_and_length_are_judged_by_what_windows_need(folder: Path) -> None:
    """A mistral with windows of 9 holds 1,000 tokens where 60 whole ones fit."""
    page = 2 * 4 * 16 * 4  # keys and values of 4 tokens, in float32
    memory = dict(
        kv_cache_memory_bytes=6 * 16 * page, num_gpu_blocks=None, max_num_batched_tokens=8
    )
    llm = make(folder / "mistral", max_model_len=1000, **memory)
    core = llm.engine.core
    assert core.limits.capacity == core.config.scheduler.max_model_len == 1000
    assert generate(llm, [[7] * 900])[0]
    with pytest.raises(ValueError, match="lower max_model_len to at most 60"):
        make(folder / "mistral", max_model_len=1000, disable_hybrid_kv_cache_manager=True, **memory)
    assert make(folder / "gemma", max_model_len=-1, **memory).engine.core.limits.max_model_len > 9


def test_information_says_what_layers_keep(folder: Path) -> None:
    figures = info.describe(folder / "gemma", max_model_len=96, num_gpu_blocks=13, block_size=4)
    assert figures["layers_remember"] == {"sliding_window": 5, "full": 1}
    assert (figures["bytes_per_block"], figures["kv_cache_tokens"]) == (2 * 4 * 16 * 4, 2 * 4)
    assert "layers keep    5 a window, 1 the whole text" in info.as_text(figures)
