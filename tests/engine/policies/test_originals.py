"""Decision by decision as vLLM 0.8.5 decides, on the smallest traces that show it; and the few
decisions of the originals that ours do not share, each with what ours does instead.

`upstream_notes/POLICIES.md` gives the reasons. Blocks hold 4 tokens, a step takes 1.
"""

from __future__ import annotations

from typing import Any

import pytest

from labkit.trace import v0_conformance, v0_oracle
from labkit.trace.format import Trace, parse_trace
from labkit.trace.v0 import PolicySubject, replay_v0
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.policies import POLICIES
from tests.engine.core.build import add, ids, make_request, step, table

STEP = {"op": "step"}


def add_at(prompt: int, arrival: float = 0.0, **values: Any) -> dict[str, Any]:
    recipe = {"len": prompt, "seed": int(arrival * 100) + prompt}
    return {"op": "add", "prompt": recipe, "arrival": arrival} | values


def trace(*events: dict[str, Any], **config: Any) -> Trace:
    """A trace without prefix caching and in default mode, unless ``config`` says otherwise."""
    usual = {
        "block_size": 4, "num_gpu_blocks": 65, "max_num_batched_tokens": 64, "max_num_seqs": 8,
        "max_model_len": 64, "enable_chunked_prefill": False, "enable_prefix_caching": False,
    }  # fmt: skip
    numbered, count = [], 0
    for event in events:
        if event["op"] == "add":
            event = {"id": f"r{count}", **event}
            count += 1
        numbered.append(event)
    return parse_trace({"config": usual | config, "events": numbered})


CHUNKED = {"enable_chunked_prefill": True}
AS_V0 = {
    "a half-filled last block still asks for a free one": (
        trace(add_at(1), add_at(1, 0.1), STEP, STEP, num_gpu_blocks=3),
        {"step": 1, "preempted": ["r1"], "scheduled": {"r0": 1}},
    ),
    "a prompt of one token is a prompt": (
        trace(add_at(2), add_at(1, 0.1), STEP),
        {"step": 0, "running": ["r0", "r1"]},
    ),
    "the line is not sorted in a step that starts prompts": (
        trace(
            add_at(3, priority=1), add_at(3, 0.1, priority=0), STEP,
            max_num_seqs=1, policy="priority",
        ),
        {"step": 0, "scheduled": {"r0": 3}},
    ),
    "a late urgent request preempts a step later": (
        trace(
            add_at(3, priority=1), add_at(3, 0.1, priority=1), STEP,
            add_at(3, 1.0, priority=0), STEP, STEP,
            max_num_seqs=1, policy="priority",
        ),
        {"step": 2, "preempted": ["r0"], "scheduled": {}},
    ),
    "the delay is asked for before each prompt": (
        trace(
            add_at(2), STEP, add_at(2, 1.0), STEP, STEP, add_at(2, 3.0), STEP, delay_factor=1.0
        ),
        {"step": 3, "scheduled": {"r1": 2}},
    ),
    "the chunked policy knows no priority": (
        trace(
            add_at(3, priority=5), add_at(3, 0.1, priority=0), STEP,
            max_num_seqs=1, policy="priority", **CHUNKED,
        ),
        {"step": 0, "scheduled": {"r0": 3}, "waiting": ["r1"]},
    ),
    "the chunked policy hardly delays": (
        trace(add_at(2), STEP, add_at(2, 1.0), STEP, delay_factor=2.0, **CHUNKED),
        {"step": 1, "scheduled": {"r0": 1, "r1": 2}},
    ),
    "chunks are whole blocks even where the prompt fits": (
        trace(add_at(6), STEP, max_num_batched_tokens=7, enable_prefix_caching=True, **CHUNKED),
        {"step": 0, "scheduled": {"r0": 4}},
    ),
    "a rest of less than a block is not used": (
        trace(
            add_at(3), STEP, add_at(9, 1.0), STEP,
            max_num_batched_tokens=4, enable_prefix_caching=True, **CHUNKED,
        ),
        {"step": 1, "scheduled": {"r0": 1}},
    ),
    "the last token of a prompt takes no lookahead slot": (
        trace(
            add_at(4), STEP, STEP, max_num_batched_tokens=3, num_lookahead_tokens=1, **CHUNKED
        ),
        {"step": 1, "scheduled": {"r0": 1}, "free_blocks": 63},
    ),
    "a request that returns from the host stands in front": (
        trace(
            add_at(4, max_tokens=4), add_at(4, 0.1, max_tokens=20), add_at(4, 0.2, max_tokens=20),
            *[STEP] * 6, num_gpu_blocks=6, num_cpu_blocks=8, preemption_mode="swap", **CHUNKED,
        ),
        {"step": 4, "running": ["r2", "r1"]},
    ),
    "half a prompt comes back where all of its rest fits": (
        trace(
            add_at(3, max_tokens=24), add_at(4, 0.1, max_tokens=24), add_at(10, 0.2), *[STEP] * 4,
            num_gpu_blocks=8, num_cpu_blocks=8, max_num_batched_tokens=7, preemption_mode="swap",
            **CHUNKED,
        ),
        {"step": 3, "scheduled": {"r0": 1, "r1": 1, "r2": 5}, "swapped": []},
    ),
    "half a prompt stays on the host for one token too many": (
        trace(
            add_at(3, max_tokens=24), add_at(4, 0.1, max_tokens=24), add_at(11, 0.2), *[STEP] * 4,
            num_gpu_blocks=8, num_cpu_blocks=8, max_num_batched_tokens=7, preemption_mode="swap",
            **CHUNKED,
        ),
        {"step": 3, "scheduled": {"r0": 1, "r1": 1}, "swapped": ["r2"], "free_blocks": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_V0)
def test_as_release_0_8_5(name: str) -> None:
    example, expected = AS_V0[name]
    lines = list(replay_v0(example, PolicySubject(example.config)))
    line = lines[expected["step"]]
    assert {key: line[key] for key in expected} == expected


@pytest.mark.upstream
@pytest.mark.skipif(not v0_oracle.fetched(), reason="V0's files: labkit conformance --policy")
def test_release_0_8_5_decides_so_itself() -> None:
    with v0_conformance.V0Oracle() as oracle:
        examples = {name: example for name, (example, _) in AS_V0.items()}
        for name, example in {**examples, "swapped halfway": SWAPPED_HALFWAY}.items():
            theirs, error = oracle.replay(example)
            ours = list(replay_v0(example, PolicySubject(example.config)))
            assert error is None and v0_conformance.differs(ours, theirs) is None, name


# ------------------------------------------------------------------ kept, with a reason


def same(arrival: float = 0.0, **values: Any) -> dict[str, Any]:
    """A request whose prompt is that of every other `same`: 12 tokens, three blocks."""
    return {"op": "add", "prompt": {"len": 12, "seed": 7}, "arrival": arrival} | values


CACHED = {"enable_prefix_caching": True, "num_gpu_blocks": 51}
OTHER_THAN_V0 = {
    "equal prompts of one step": (
        trace(same(), same(0.1), STEP, **CACHED),
        {"step": 0, "scheduled": {"r0": 12, "r1": 12}, "free_blocks": 44},
        {"step": 0, "scheduled": {"r0": 12, "r1": 12}, "free_blocks": 47},
    ),
    "hits of a request that waited": (
        trace(
            same(max_tokens=2), same(0.1, max_tokens=1), STEP, STEP, STEP, max_num_seqs=1, **CACHED
        ),
        {"step": 2, "scheduled": {"r1": 4}},
        {"step": 2, "scheduled": {"r1": 12}},
    ),
    "a prompt alone that fills the pool": (
        trace(add_at(7), STEP, STEP, num_gpu_blocks=3, max_num_batched_tokens=6, **CHUNKED),
        {"step": 1, "scheduled": {"r0": 1}, "preempted": []},
        {"step": 1, "scheduled": {}, "preempted": ["r0"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_THAN_V0)
def test_other_than_release_0_8_5(name: str) -> None:
    example, expected, theirs = OTHER_THAN_V0[name]
    line = list(replay_v0(example, PolicySubject(example.config)))[expected["step"]]
    assert {key: line[key] for key in expected} == expected != theirs


@pytest.mark.upstream
@pytest.mark.skipif(not v0_oracle.fetched(), reason="V0's files: labkit conformance --policy")
def test_release_0_8_5_decides_what_we_say_it_does() -> None:
    with v0_conformance.V0Oracle() as oracle:
        for name, (example, _, theirs) in OTHER_THAN_V0.items():
            lines, error = oracle.replay(example)
            line = lines[theirs["step"]]
            assert error is None and {key: line[key] for key in theirs} == theirs, name


def policy(name: str, blocks: int = 50, budget: int = 64, **values: Any) -> Scheduler:
    config = SchedulerConfig(max_num_batched_tokens=budget, max_model_len=64, **values)
    return POLICIES[name](config, CacheConfig(4, blocks + 1), (), b"root")


@pytest.mark.parametrize("name", ["vllm-v0", "vllm-v0-chunked", "nano-vllm"])
def test_equal_prompts_of_one_step_fill_blocks_of_their_own(name: str) -> None:
    """V0 lets the second share the first's blocks, though it computes them again."""
    scheduler = policy(name)
    prompt = list(range(8))
    add(scheduler, make_request("a", prompt), make_request("b", prompt))
    assert step(scheduler).num_scheduled_tokens == {"a": 8, "b": 8}
    assert not set(table(scheduler, "a")) & set(table(scheduler, "b"))


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"vllm-v1"}))
def test_all_end_at_the_models_length(name: str) -> None:
    """V0 ends a request one token later: at `len > max_model_len`."""
    scheduler = policy(name)
    request = make_request("a", 62, max_tokens=None)
    add(scheduler, request)
    step(scheduler)
    step(scheduler)
    assert request.num_tokens == 64 and request.is_finished


def test_the_first_of_equal_blocks_is_found() -> None:
    """nano-vLLM finds the newest. What they hold is the same."""
    scheduler = policy("nano-vllm")
    prompt = list(range(8))
    add(scheduler, *[make_request(name, prompt, max_tokens=9) for name in "ab"])
    step(scheduler)
    add(scheduler, make_request("c", [*prompt, 99], max_tokens=9))
    step(scheduler)
    assert table(scheduler, "c")[:2] == table(scheduler, "a")[:2]


@pytest.mark.parametrize("name", ["minivllm", "nano-vllm", "static", "vllm-v0"])
def test_a_full_hit_computes_its_last_block_again(name: str) -> None:
    """MinivLLM shares it too, and computes nothing: then there are no logits to sample from."""
    scheduler = policy(name)
    prompt = list(range(8))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    step(scheduler)
    add(scheduler, make_request("b", prompt, max_tokens=1))
    assert step(scheduler).num_scheduled_tokens == {"b": 4}


def test_a_prompt_with_one_token_missing_after_hits_is_a_prompt() -> None:
    """It joins the running requests at their end, as it came, and so is preempted first."""
    scheduler = policy("vllm-v0")
    prompt = list(range(8))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    step(scheduler)
    add(scheduler, make_request("b", [50, 51, 52]), make_request("c", [*prompt, 99]))
    assert step(scheduler).num_scheduled_tokens == {"b": 3, "c": 1}
    assert ids(scheduler.running) == ["b", "c"]


def test_hits_are_looked_up_at_admission() -> None:
    """V0 keeps what it saw when it looked first, and c would compute all of its prompt."""
    scheduler = policy("vllm-v0", max_num_seqs=1)
    prompt = list(range(8))
    add(scheduler, make_request("a", prompt, max_tokens=2))
    add(scheduler, make_request("c", [*prompt, 99], max_tokens=1))
    step(scheduler)
    step(scheduler)
    assert ids(scheduler.waiting) == ["c"]
    assert step(scheduler).num_scheduled_tokens == {"c": 1}


def test_only_what_was_computed_is_copied_to_the_host() -> None:
    """A prompt of 20 with 6 computed: V0 moves all 5 blocks that it holds, ours the 2 in use."""
    options = {"preemption_mode": "swap", "num_cpu_blocks": 16, "max_num_batched_tokens": 6}
    example = trace(add_at(20, max_tokens=4), STEP, num_gpu_blocks=6, **options, **CHUNKED)
    subject = PolicySubject(example.config)
    list(replay_v0(example, subject))
    scheduler: Any = subject.scheduler
    request = scheduler.requests["r0"]
    assert len(table(scheduler, "r0")) == 5 and request.num_computed_tokens == 6
    assert len(scheduler.kv_cache_manager.swap_out([request])) == 2


SWAPPED_HALFWAY = trace(
    add_at(20, max_tokens=25), add_at(3, 0.1, max_tokens=30), *[STEP] * 4,
    add_at(15, 4.0, max_tokens=1), add_at(14, 4.1, max_tokens=5), {"op": "drain", "max": 40},
    block_size=2, num_gpu_blocks=35, num_cpu_blocks=64, max_num_batched_tokens=4, max_num_seqs=3,
    preemption_mode="swap", watermark=0.0, **CHUNKED,
)  # fmt: skip
"""At step 20 r3 leaves: 7 blocks hold its prompt of 14 tokens, and 12 tokens are computed."""


def test_a_prompt_swapped_halfway_copies_the_blocks_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """V0 copies 7 blocks of r3 out and 7 back, ours 6 and 6; all its decisions are the same."""
    subject = PolicySubject(SWAPPED_HALFWAY.config)
    schedule, copies = subject.scheduler.schedule, []

    def watch() -> Any:
        plan = schedule()
        copies.append((len(plan.blocks_to_swap_out), len(plan.blocks_to_swap_in)))
        return plan

    monkeypatch.setattr(subject.scheduler, "schedule", watch)
    lines = list(replay_v0(SWAPPED_HALFWAY, subject))
    assert lines[20]["preempted"] == ["r3"] and lines[20]["computed"]["r3"] == 12
    assert {i: pair for i, pair in enumerate(copies) if any(pair)} == {
        20: (6, 0), 27: (12, 0), 28: (0, 6), 29: (0, 12),
    }  # fmt: skip
