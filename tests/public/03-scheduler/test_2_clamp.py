"""Task 03.2: how many tokens may one request get in this step?"""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def clamp(scheduler: Any, wanted: int, computed: int, budget: int) -> int:
    return scheduler._clamp_new_tokens(wanted, computed, budget)


def test_03_2_a_short_want_is_granted(chat: Any) -> None:
    """A request never gets more than it still needs."""
    scheduler = chat.scheduler(threshold=8)
    at = "a decoding request needs 1 token; budget 16, threshold 8"
    expect(clamp(scheduler, 1, 30, 16), 1, at=at)


def test_03_2_the_threshold_caps_a_long_prompt(chat: Any) -> None:
    """long_prefill_token_threshold cuts what one request gets in one step."""
    scheduler = chat.scheduler(threshold=8)
    expect(clamp(scheduler, 20, 0, 16), 8, at="20 tokens to go, threshold 8, budget 16")
    expect(clamp(scheduler, 8, 0, 16), 8, at="8 tokens to go, threshold 8: nothing to cut")


def test_03_2_threshold_zero_means_no_cap(chat: Any) -> None:
    """A threshold of 0 switches the cap off; it does not stop all requests."""
    scheduler = chat.scheduler(threshold=0)
    expect(clamp(scheduler, 20, 0, 32), 20, at="20 tokens to go, threshold 0, budget 32")


def test_03_2_the_budget_of_the_step_bounds_every_request(chat: Any) -> None:
    """What is left of the budget is all there is, above and below the threshold."""
    scheduler = chat.scheduler(threshold=8)
    expect(clamp(scheduler, 6, 0, 4), 4, at="6 tokens to go, threshold 8, 4 tokens of budget left")
    expect(clamp(scheduler, 20, 0, 5), 5, at="20 to go, threshold 8, 5 tokens of budget left")
    plain = chat.scheduler()
    expect(clamp(plain, 40, 0, 16), 16, at="40 to go, no threshold, budget 16")


def test_03_2_the_last_position_is_never_computed(chat: Any) -> None:
    """With max_model_len 64, positions 0 to 62 may be computed; the 64th token is only sampled."""
    scheduler = chat.scheduler(max_model_len=64)
    at = "60 of at most 64 tokens are computed, 9 are wanted (drafts), budget 16"
    expect(clamp(scheduler, 9, 60, 16), 3, at=at)
    expect(clamp(scheduler, 1, 62, 16), 1, at="62 are computed, 1 is wanted: position 62")
    expect(clamp(scheduler, 1, 63, 16), 0, at="63 are computed, 1 is wanted: position 63")


def test_03_2_never_negative(chat: Any) -> None:
    """A request that is full wants nothing; it does not give tokens back."""
    scheduler = chat.scheduler(max_model_len=64)
    expect(clamp(scheduler, 4, 64, 16), 0, at="64 of at most 64 tokens are computed")
