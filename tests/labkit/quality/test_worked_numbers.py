"""The numbers that the deep dives work out are what the engine does."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.course.root import ROOT
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.policies.vllm_v0 import VllmV0
from mini_vllm.request import Request
from tests.engine.core.build import add, ids, make_request, make_scheduler, step, table


def deep_dive(phase: str) -> str:
    """The chapter's words, with its lines joined and without the links' addresses."""
    [path] = Path(ROOT, "phases").glob(f"{phase}-*/01-deep-dive.md")
    return " ".join(re.sub(r"\]\([^)]*\)", "]", path.read_text(encoding="utf-8")).split())


def test_00_a_prompt_of_1000_tokens_under_a_budget_of_600() -> None:
    scheduler = make_scheduler(blocks=300, budget=600, max_model_len=1100)
    add(scheduler, make_request("a", 1000))
    assert [step(scheduler).num_scheduled_tokens["a"] for _ in range(4)] == [600, 400, 1, 1]
    assert "first step gives it 600. The second gives it the 400 that are left" in deep_dive("00")


def test_02_a_hit_on_a_free_block_costs_a_free_block() -> None:
    manager = KVCacheManager(4 + 1, 16, 64, True, hash_root=b"root")

    def request(name: str, prompt: list[int]) -> Request:
        made = make_request(name, prompt)
        made.set_block_hasher(manager.block_hasher)
        return made

    def admit(made: Request) -> bool:
        hits, num_hits = manager.get_computed_blocks(made)
        num_new = made.num_tokens - num_hits
        return manager.allocate_slots(made, num_new, num_hits, hits) is not None

    prompt = list(range(40))
    runs, gone = request("runs", prompt[:16] + [999]), request("gone", prompt[:32])
    assert admit(runs) and admit(gone)
    manager.free(gone)
    assert admit(request("takes the rest", [998]))
    newcomer = request("newcomer", prompt)
    hits, num_hits = manager.get_computed_blocks(newcomer)
    assert num_hits == 32
    assert [block.ref_cnt for block in hits.blocks] == [1, 0], "somebody holds one of them"
    assert manager.num_free_blocks == 1
    assert not admit(newcomer), "None, in time"
    assert "a prompt of 40 tokens needs three blocks of 16" in deep_dive("02")


def test_03_a_full_sequence_has_one_position_that_is_never_computed() -> None:
    scheduler = make_scheduler(blocks=600, budget=4096, max_model_len=2048)
    request = make_request("a", 2040, max_tokens=None)
    add(scheduler, request)
    while scheduler.has_requests():
        step(scheduler)
    assert request.num_output_tokens == 8
    assert request.num_computed_tokens == 2047
    text = deep_dive("03")
    assert "a prompt of 2,040 gets eight tokens of output" in text
    assert "so 2,047 positions are computed" in text


def test_03_the_index_moves_when_a_planned_request_is_the_victim() -> None:
    scheduler = make_scheduler(blocks=5, policy="priority", caching=False, reserve=False)
    for arrival, (name, priority) in enumerate({"A": 0, "B": 9, "C": 1}.items()):
        add(scheduler, make_request(name, 4, priority=priority, arrival=arrival))
        step(scheduler)
    assert [len(table(scheduler, name)) for name in "ABC"] == [2, 2, 1]
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"A": 1, "C": 1}
    assert output.preempted_req_ids == ["B"]
    assert ids(scheduler.running) == ["A", "C"]
    assert "A, B and C with the priorities 0, 9 and 1" in deep_dive("03")


def test_06_a_table_of_counts() -> None:
    assert round(256 * 151_936 * 8 / 1e6) == 311
    assert "One table is 311 MB" in deep_dive("06")


def test_16_siblings_share_full_blocks_and_v0_copies_the_last() -> None:
    prompt = list(range(40))
    scheduler = make_scheduler(blocks=40, block_size=16, budget=200, max_model_len=128)
    add(scheduler, *[make_request(f"{i}_g", prompt) for i in range(4)])
    assert list(step(scheduler).num_scheduled_tokens.values()) == [40, 8, 8, 8]

    config = SchedulerConfig(max_num_batched_tokens=200, max_num_seqs=8, max_model_len=128)
    v0 = VllmV0(config, CacheConfig(16, 41, False), hash_root=b"root")
    add(v0, *[make_request(f"{i}_g", prompt) for i in range(4)])
    assert step(v0).num_scheduled_tokens == {"0_g": 40}
    assert len(step(v0).blocks_to_copy) == 3
    text = deep_dive("16")
    assert "with 64 tokens instead of 160" in text
    assert "copied the last block three times" in text
