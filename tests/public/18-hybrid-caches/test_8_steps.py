"""Task 18.8: a step ends where a state can be kept, and states move before the forward pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.core.hybrid_kv_cache_manager import GroupSteps


def limits(hy: Any, request: Any, *asked: tuple[int, int]) -> list[int]:
    """Answers of `limit_tokens` to (computed, new tokens), for full layers and states."""
    steps = GroupSteps([hy.FULL, hy.STATE])
    return [steps.limit_tokens(request, *one) for one in asked]


def test_18_8_a_chunk_is_cut_to_whole_blocks(hy: Any) -> None:
    """A prompt of 22: a chunk of 7 or 11 tokens ends at 4 or 8."""
    got = limits(hy, hy.request("ana", 22), (0, 4), (0, 7), (0, 11), (8, 11))
    expect(got, [4, 4, 8, 8], at="4, 7, 11 tokens from 0 on, 11 from 8 on; blocks of 4")


def test_18_8_a_chunk_may_be_cut_to_nothing(hy: Any) -> None:
    """With a budget of 3 no block is filled: it waits."""
    expect(limits(hy, hy.request("ana", 22), (0, 3)), [0], at="3 tokens from 0 on, blocks of 4")


def test_18_8_the_rest_has_a_step_of_its_own(hy: Any) -> None:
    """22 tokens: the last whole block ends at 20, then 2 follow."""
    got = limits(hy, hy.request("ana", 22), (0, 22), (16, 6), (20, 2), (12, 8))
    expect(got, [20, 4, 2, 8], at="22 tokens from 0 on, 6 from 16 on, 2 from 20 on, 8 from 12 on")


def test_18_8_a_short_prompt_is_not_cut(hy: Any) -> None:
    """3 tokens hold no whole block, and 8 are whole blocks."""
    expect(limits(hy, hy.request("ana", 3), (0, 3)), [3], at="a prompt of 3 tokens")
    expect(limits(hy, hy.request("ana", 8), (0, 8)), [8], at="a prompt of 8 tokens")


def test_18_8_a_decode_is_never_cut(hy: Any) -> None:
    """Its newest token is all that is left to compute."""
    request = hy.request("ana", 6)
    request.append_output_token_ids(7)
    expect(limits(hy, request, (6, 1)), [1], at="6 of 7 tokens computed: a decode of 1")


def test_18_8_what_is_resumed_is_a_prompt_again(hy: Any) -> None:
    """A prompt of 6 with 5 answers was preempted: 10 tokens are known, and cut at 8."""
    request = hy.request("ana", 6)
    for token in range(5):
        request.append_output_token_ids(token)
    got = limits(hy, request, (0, 11), (8, 3), (0, 6), (4, 3))
    expect(got, [8, 3, 4, 0], at="11 tokens known: 11 from 0 on, 3 from 8, 6 from 0, 3 from 4")
    for token in range(6):
        request.append_output_token_ids(token)
    got = limits(hy, request, (8, 9), (8, 7))
    expect(got, [8, 4], at="17 tokens, a prompt of 6: 9 from 8 on, 7 from 8 on; 16 is whole")
    for token in range(3):
        request.append_output_token_ids(token)
    got = limits(hy, request, (8, 12))
    expect(got, [12], at="20 tokens, a prompt of 6: 12 from 8 on end with the last whole block")


@pytest.mark.parametrize("kind", ["windows", "states that are not kept"])
def test_18_8_without_kept_states_nothing_is_cut(hy: Any, kind: str) -> None:
    """Full layers and windows may stop anywhere."""
    from mini_vllm.core.cache_groups import GroupSpec

    other = hy.window(5) if kind == "windows" else GroupSpec("mamba", 64, mode="none")
    got = GroupSteps([hy.FULL, other]).limit_tokens(hy.request("ana", 22), 0, 7)
    expect(got, 7, at=f"full layers and {kind}: 7 tokens from 0 on")


def copies(hy: Any, *requests: tuple[str, int, int]) -> list[tuple[int, int]]:
    """What is copied for (name, computed, new tokens); every place of a table has a block."""
    manager = hy.manager(hy.STATE, blocks=40)
    for name, computed, new in requests:
        hy.seat(manager, name, -(-(computed + new) // 4))
    computed_of = {name: computed for name, computed, _ in requests}
    output = SimpleNamespace(
        num_scheduled_tokens={name: new for name, _, new in requests},
        num_computed_tokens=computed_of.__getitem__,
    )
    return GroupSteps([hy.STATE])._copies(manager, output)  # type: ignore[arg-type]


def test_18_8_a_state_is_copied_into_its_new_block(hy: Any) -> None:
    """8 tokens are computed: the state is in the block of token 7, and goes on in that of 11."""
    expect(copies(hy, ("ana", 8, 4)), [(2, 3)], at="8 computed, 4 new tokens: (source, target)")
    expect(copies(hy, ("ana", 4, 12)), [(1, 4)], at="4 computed, 12 new tokens: over three blocks")


def test_18_8_inside_a_block_nothing_is_copied(hy: Any) -> None:
    """The state is overwritten where it is; token 4 begins a block, token 7 ends it."""
    got = [copies(hy, ("ana", computed, 1)) for computed in (5, 7, 8)]
    expect(got, [[], [], [(2, 3)]], at="1 new token after 5, 7, 8 computed ones")


def test_18_8_a_new_request_has_no_state_to_copy(hy: Any) -> None:
    """It starts from zeros."""
    expect(copies(hy, ("ana", 0, 12)), [], at="0 computed, 12 new tokens")


def test_18_8_copies_come_in_the_order_of_the_plan(hy: Any) -> None:
    """Requests as they were scheduled."""
    got = copies(hy, ("zoe", 4, 4), ("ana", 0, 8), ("ben", 6, 6))
    expect(got, [(1, 2), (6, 7)], at="zoe moves from 1 to 2, ana begins in 4, ben moves 6 to 7")


def test_18_8_a_request_from_prompt_to_answer(hy: Any) -> None:
    """All your tasks at work in the course's scheduler: full layers, a window of 5, a state."""
    scheduler = hy.scheduler(hy.FULL, hy.window(5), hy.STATE)
    hy.add(scheduler, "ana", 10)
    seen = []
    for _ in range(4):
        plan = hy.step(scheduler)
        moved = [tuple(pair) for pair in plan.blocks_to_copy]
        seen.append((plan.num_scheduled_tokens["ana"], moved, hy.tables(scheduler, "ana")))
    want = [
        (8, [], [[1, 2], [3, 4], [0, 5]]),
        (2, [(5, 8)], [[1, 2, 6], [0, 4, 7], [0, 5, 8]]),
        (1, [], [[1, 2, 6], [0, 4, 7], [0, 0, 8]]),
        (1, [], [[1, 2, 6], [0, 4, 7], [0, 0, 8]]),
    ]
    for number, (yours, right) in enumerate(zip(seen, want, strict=True), 1):
        expect(yours, right, at=f"step {number}: tokens, copies, tables of full, window, state")


def test_18_8_a_second_turn_finds_the_first(hy: Any) -> None:
    """20 tokens that are known hit as far as a state was kept, at 16 of 18."""
    scheduler = hy.scheduler(hy.FULL, hy.window(5), hy.STATE)
    hy.add(scheduler, "ana", 18, max_tokens=1)
    hy.step(scheduler), hy.step(scheduler)
    hy.add(scheduler, "ben", 20)
    plan = hy.step(scheduler)
    expect(plan.num_scheduled_tokens, {"ben": 4}, at="16 of ben's 20 tokens hit, 4 are computed")
    ((source, target),) = plan.blocks_to_copy
    table = hy.tables(scheduler, "ben")[2]
    expect([source, target], table[3:], at="the state that was found is copied on")
