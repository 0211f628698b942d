"""Random schedules: the same decisions as the reference, and none reads another's keys and
values."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

few = settings(max_examples=6, phases=[Phase.generate])
seeds = st.integers(0, 2**31)


@few
@given(seed=seeds)
def test_16_1_random_prompts(stories: Any, seed: int) -> None:
    """Shared prefixes, few rows, a small cache: prompts first, whole, in order."""
    stories.check(stories.prompts_first(seed))


@few
@given(seed=seeds)
def test_16_2_random_groups_fork(stories: Any, seed: int) -> None:
    """Completions of one prompt fork, write, end, and are computed again."""
    stories.check(stories.groups(seed, "fcfs", "RECOMPUTE"))


@few
@given(seed=seeds)
def test_16_4_random_groups_are_swapped(stories: Any, seed: int) -> None:
    """Groups go to the host and come back, at times to too small a host."""
    stories.check(stories.groups(seed, "fcfs", "SWAP"))


@few
@given(seed=seeds)
def test_16_4_urgent_groups_swap_others(stories: Any, seed: int) -> None:
    """The same under priorities: a prompt may start while a request is swapped out."""
    stories.check(stories.groups(seed, "priority", "SWAP"))


@few
@given(seed=seeds)
def test_16_5_random_priorities(stories: Any, seed: int) -> None:
    """Groups of three priorities in a pool for two."""
    stories.check(stories.groups(seed, "priority", "RECOMPUTE"))
