"""Task 16.7: what a tier should keep, and what should be loaded from it."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.policies.fleet import Prices, SecondUse, tokens_to_load

PRICES = Prices(prompt=5.0, token=2.0, pair=0.0, trip=10.0, carried=1.0, step=1.0, row=0.5)
"""Round numbers: a token costs 2 seconds to compute; a trip 10 seconds, and 1 a token."""


def test_16_7_the_second_use_is_worth_keeping() -> None:
    """On the first day no prompt is known to come again; on the second day one does."""
    tracker = SecondUse()
    expect(tracker.worth_keeping([1, 2, 3]), [], at="ana's prompt, blocks 1 2 3: nobody asked yet")
    at = "ben's prompt, blocks 1 2 9: it begins like ana's"
    expect(tracker.worth_keeping([1, 2, 9]), [1, 2], at=at)
    expect(tracker.worth_keeping([1, 2, 9]), [1, 2, 9], at="the same prompt once more")


def test_16_7_another_threshold() -> None:
    """The use from which on a block is worth it is a setting."""
    tracker = SecondUse(threshold=1)
    expect(tracker.worth_keeping([4, 5]), [4, 5], at="threshold 1: everything, at once")
    tracker = SecondUse(threshold=3)
    seen = [tracker.worth_keeping([7]) for _ in range(4)]
    expect(seen, [[], [], [7], [7]], at="threshold 3: block 7, used four times")


def test_16_7_the_book_has_an_end() -> None:
    """Only so many keys are remembered, and the one unused for longest is forgotten."""
    tracker = SecondUse(capacity=2)
    for key in (1, 2, 1, 3):  # 2 is unused for longest when 3 comes
        tracker.worth_keeping([key])
    expect(list(tracker.uses), [1, 3], at="room for two keys, used in the order 1 2 1 3")
    expect(tracker.worth_keeping([2]), [], at="2 was forgotten and begins anew")
    expect(dict(tracker.uses), {3: 1, 2: 1}, at="now 1 was unused for longest, and is gone")


def test_16_7_a_key_is_forgotten_before_the_next_ones_turn() -> None:
    """Also within one prompt: the book is never longer than its capacity."""
    tracker = SecondUse(capacity=2)
    tracker.worth_keeping([7])
    at = "room for two keys; blocks 7, then 8 9 7: 9 pushes 7 out, and then 7 begins anew"
    expect(tracker.worth_keeping([8, 9, 7]), [], at=f"{at}: worth keeping")
    expect(dict(tracker.uses), {9: 1, 7: 1}, at=f"{at}: uses by key, the oldest first")


def test_16_7_carry_or_compute() -> None:
    """All that the tier has beyond the cache, or nothing."""
    for cached, stored, expected in [(0, 4, 0), (0, 9, 0), (0, 11, 11), (32, 64, 32), (48, 48, 0)]:
        by_hand = stored - cached
        at = f"{cached} tokens in the cache, {stored} in the tier: 10 + {by_hand} seconds to carry"
        at += f", {2 * by_hand} to compute"
        expect(tokens_to_load(PRICES, 100, cached, stored), expected, at=at)


def test_16_7_a_tie_is_computed() -> None:
    """Loading must take less time; as much is not less, and the link is there for others too."""
    expect(tokens_to_load(PRICES, 100, 0, 10), 0, at="10 tokens: 20 seconds either way")


def test_16_7_the_tier_may_have_less_than_the_cache() -> None:
    """Then there is nothing to load, and nothing less than nothing."""
    at = "64 tokens in the cache, 32 in the tier"
    expect(tokens_to_load(PRICES, 100, 64, 32), 0, at=at)
    quick = Prices(5.0, 0.5, 0.0, 10.0, 1.0, 1.0, 0.5)  # computing is cheaper than carrying
    expect(tokens_to_load(quick, 100, 64, 32), 0, at=f"{at}, and a token costs 0.5 s to compute")


def test_16_7_long_prompts_are_dear() -> None:
    """Attention: each token costs more, the longer its prompt."""
    prices = Prices(0.0, 0.5, 0.25, 10.0, 1.0, 1.0, 0.5)
    at = "16 tokens of a prompt of {}: 26 s to carry"
    expect(tokens_to_load(prices, 4, 0, 16), 0, at=at.format(4) + ", 24 s to compute")
    expect(tokens_to_load(prices, 8, 0, 16), 16, at=at.format(8) + ", 40 s to compute")
