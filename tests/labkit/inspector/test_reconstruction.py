"""What the inspector reconstructs from a recording is what the scheduler really did."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.course.root import ROOT
from labkit.inspector.pool import build_pool
from labkit.inspector.recording import Run
from labkit.inspector.rows import COMPUTING, build_rows
from labkit.inspector.sources import load as load_runs
from labkit.inspector.sources import of_trace
from labkit.trace.format import load_trace
from labkit.trace.generate import generate
from labkit.trace.golden import load
from labkit.trace.kinds import KINDS
from labkit.trace.runner import ReferenceSubject, replay, run_reference
from mini_vllm.entrypoints.cli import main
from mini_vllm.policies import POLICIES


class Witness(ReferenceSubject):
    """Notes after each step what the real pool looks like, and what the real requests are at."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tables: list[dict[int, list[str]]] = []
        self.findable: list[set[int]] = []
        self.decoding: list[set[str]] = []
        self.counts: dict[str, int] = {}
        schedule = self.scheduler.schedule

        def watched() -> Any:
            plan = schedule()
            self.counts = dict(plan.num_scheduled_tokens)
            return plan

        self.scheduler.schedule = watched

    def step(self) -> dict[str, Any]:
        line = super().step()
        manager = self.scheduler.kv_cache_manager
        holders: dict[int, list[str]] = defaultdict(list)
        for request_id, table in manager.req_to_blocks.items():
            for block in table:
                holders[block.block_id].append(request_id)
        self.tables.append(dict(holders))
        pool = manager.block_pool
        self.findable.append({b.block_id for b in pool.blocks if b.block_hash is not None})
        return line

    def _sample(self, planned: dict[str, Any], drafts: Any) -> dict[str, list[int]]:
        """Between plan and update: which requests have only their newest token to compute?"""
        self.decoding.append(
            {
                i
                for i, r in planned.items()
                if r.num_output_tokens
                and r.num_computed_tokens - self.counts[i] == r.num_tokens - 1
            }
        )
        return super()._sample(planned, drafts)


def reconstructed(run: Run) -> tuple[list[dict[int, list[str]]], list[set[int]]]:
    """Holders and findable blocks after each step, from the changes alone."""
    rows = build_rows(run)
    pool = build_pool(run, rows)
    assert pool.lost_at is None
    holders: dict[int, list[str]] = defaultdict(list)
    findable: set[int] = set()
    tables, contents = [], []
    for changes in pool.steps:
        for what, block, index in changes:
            request_id = rows.rows[index].id
            if what in "ne":
                assert (what == "e") == (block in findable), f"eviction of {block}"
                findable.discard(block)
            if what in "neh":
                holders[block].append(request_id)
            elif what == "r":
                holders[block].remove(request_id)
            else:
                findable.add(block)
        tables.append({block: sorted(ids) for block, ids in holders.items() if ids})
        contents.append(set(findable))
    return tables, contents


@pytest.mark.parametrize("profile", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_block_of_every_step_is_where_the_real_pool_has_it(profile: str, seed: int) -> None:
    """Holders are always right; contents are, unless the priority policy has preempted."""
    trace = generate(profile, seed, 80)
    witness = Witness(trace.config)
    run = of_trace("run", list(replay(trace, witness)), trace)
    tables, contents = reconstructed(run)
    exact = trace.config.policy == "fcfs"
    for step, (mine, real) in enumerate(zip(tables, witness.tables, strict=True)):
        assert mine == {b: sorted(ids) for b, ids in real.items()}, f"step {step}"
        if exact:
            assert contents[step] == witness.findable[step], f"contents in step {step}"
        else:
            assert contents[step] >= witness.findable[step], f"contents in step {step}"


@pytest.mark.parametrize("profile", KINDS)
def test_decodes_are_told_from_prompts_as_the_request_itself_would(profile: str) -> None:
    trace = generate(profile, 5, 80)
    witness = Witness(trace.config)
    run = of_trace("run", list(replay(trace, witness)), trace)
    rows = build_rows(run)
    assert rows.exact
    for step, real in enumerate(witness.decoding):
        mine = {row.id for row, letter, _ in rows.scheduled(step) if letter == "d"}
        assert mine == real, f"step {step}"


@pytest.mark.parametrize("profile", KINDS)
def test_golden_recordings_of_vllm_add_up(profile: str) -> None:
    """Every token scheduled is in a row, every row ends as the recording says, no pool is lost."""
    for golden in load(profile)[:4]:
        run = of_trace(golden.name, golden.lines, golden.trace)
        rows = build_rows(run)
        for line in run.lines:
            got = {row.id: tokens for row, _, tokens in rows.scheduled(line["step"])}
            assert got == line["scheduled"]
        ended = {e[0]: e[1:] for line in run.lines for e in line["finished"]}
        aborted = {i: ["FINISHED_ABORTED", "abort"] for line in run.lines for i in line["aborted"]}
        assert {row.id: row.end for row in rows.rows if row.end} == ended | aborted
        assert build_pool(run, rows).lost_at is None


def test_the_letters_of_the_small_run(run: Run) -> None:
    rows = build_rows(run).rows
    assert {row.id: "".join(row.letters) for row in rows} == {
        "a": "pdddd", "b": "ppdqqr", "c": "wwwa"}  # fmt: skip
    b = rows[1]
    assert b.preempted == [3]
    assert b.before == [2, 4, 5, 0, 0, 4], "the prefix cache gave 2 tokens, then 4"
    assert b.tokens == [2, 1, 1, 0, 0, 3]


def test_the_blocks_of_the_small_run(run: Run) -> None:
    """Step 0 shares block 1 within the step; step 3 evicts what the victim left in block 5."""
    pool = build_pool(run, build_rows(run))
    assert pool.steps[0][:4] == [("n", 1, 0), ("n", 2, 0), ("h", 1, 1), ("n", 3, 1)]
    assert pool.steps[3] == [("r", 1, 1), ("r", 3, 1), ("r", 5, 1), ("e", 5, 0)]
    assert (pool.size, pool.derived_size, pool.notes) == (6, False, [])


RUSH = load_trace(ROOT / "docs" / "traces" / "rush.json")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_followed(policy: str) -> None:
    """Whatever the order of service, tokens and blocks add up."""
    run = of_trace(policy, list(run_reference(RUSH, policy)), RUSH)
    rows = build_rows(run)
    assert build_pool(run, rows).lost_at is None
    for line in run.lines:
        got = {row.id: tokens for row, _, tokens in rows.scheduled(line["step"])}
        assert got == line["scheduled"]


def test_a_timeline_of_the_engine_describes_itself(tmp_path: Path) -> None:
    """The real engine with the real model: shared prefixes, a preemption, chunks."""
    path = tmp_path / "run.jsonl"
    words = [
        "Once upon a time there was a small fox who",
        "The sun",
        "Once upon a time there was a",
    ]
    limits = ["--max-num-batched-tokens", "8", "--max-num-seqs", "3", "--block-size", "4",
              "--num-gpu-blocks", "18", "--temperature", "0", "--max-tokens", "20"]  # fmt: skip
    assert main(["generate", *words, *limits, "--timeline", str(path)]) == 0
    (run,) = load_runs(path)
    rows = build_rows(run)
    pool = build_pool(run, rows)
    assert rows.exact and len(rows.rows) == 3
    assert (pool.size, pool.block_size, pool.lost_at, pool.notes) == (18, 4, None, [])
    assert any(what == "h" for step in pool.steps for what, _, _ in step)
    assert any(row.preempted for row in rows.rows)


# ------------------------------------------------------------------ what is not known is said


def test_without_limits_the_pool_is_derived_and_contents_are_not_shown(run: Run) -> None:
    rows = build_rows(run)
    pool = build_pool(replace(run, config={}), rows)
    assert (pool.size, pool.derived_size, pool.findable) == (6, True, False)
    assert not {what for step in pool.steps for what, _, _ in step} & {"e", "f"}
    assert any("how large the pool is. 6 blocks" in note for note in pool.notes)
    assert any("does not say the block size" in note for note in pool.notes)


def test_without_prompt_lengths_one_token_counts_as_a_decode(run: Run) -> None:
    rows = build_rows(replace(run, prompt_tokens={}))
    assert not rows.exact
    assert "".join(rows.rows[1].letters) == "pddqqr", "the last token of b's prompt looks like one"


def test_a_request_that_comes_and_goes_in_one_step_has_unknown_tokens_before(run: Run) -> None:
    line = run.lines[5] | {"step": 0}
    alone = Run("alone", [line], run.config)
    assert build_rows(alone).rows[0].before == [-1]


def test_a_sum_that_is_wrong_loses_the_pool_from_that_step_on(run: Run) -> None:
    wrong = [*run.lines[:2], run.lines[2] | {"free_blocks": 1}, *run.lines[3:]]
    pool = build_pool(replace(run, lines=wrong), build_rows(run))
    assert pool.lost_at == 2
    assert any("From step 2 on" in note for note in pool.notes)


def test_a_block_outside_of_the_pool_loses_it_too(run: Run) -> None:
    wrong = [run.lines[0] | {"new_block_ids": {"a": [1, 2], "b": [1, 6]}}, *run.lines[1:]]
    assert build_pool(replace(run, lines=wrong), build_rows(run)).lost_at == 0


def test_a_preemption_by_priority_leaves_a_note(run: Run) -> None:
    pool = build_pool(replace(run, config={**run.config, "policy": "priority"}), build_rows(run))
    assert any("though they may have lost them" in note for note in pool.notes)


def test_an_id_that_comes_back_begins_anew(run: Run) -> None:
    again = [line | {"step": line["step"] + len(run.lines) + 1} for line in run.lines]
    pause = run.lines[-1] | {
        "step": len(run.lines),
        "scheduled": {},
        "finished": [],
        "new_block_ids": {},
    }
    twice = replace(run, lines=[*run.lines, pause, *again])
    rows = build_rows(twice)
    assert "".join(rows.rows[0].letters) == "pdddd..pdddd"
    assert all(letter in COMPUTING + "wqa." for row in rows.rows for letter in row.letters)
    assert build_pool(twice, rows).lost_at is None


def test_a_swapped_request_keeps_its_tokens_and_finds_nothing_in_the_cache() -> None:
    """In neither queue, its tokens still counted: its blocks go, and come back as new ones."""
    usual: dict[str, Any] = {"preempted": [], "finished": [], "aborted": [], "waiting": []}
    lines = [
        {"step": 0, "scheduled": {"a": 4}, "new_block_ids": {"a": [1, 2]}, "computed": {"a": 4},
         "running": ["a"], "free_blocks": 3},
        {"step": 1, "scheduled": {}, "new_block_ids": {}, "computed": {"a": 4}, "running": [],
         "free_blocks": 5},
        {"step": 2, "scheduled": {"a": 1}, "new_block_ids": {"a": [3, 4, 5]}, "computed": {"a": 5},
         "running": ["a"], "free_blocks": 2},
    ]  # fmt: skip
    config = {"block_size": 2, "num_gpu_blocks": 6, "enable_prefix_caching": True}
    run = Run("swap", [usual | line for line in lines], config, {"a": 4})
    rows = build_rows(run)
    assert "".join(rows.rows[0].letters) == "pod"
    pool = build_pool(run, rows)
    assert [what for what, _, _ in pool.steps[2]] == ["n", "n", "n", "f", "f"]
    assert pool.lost_at is None
