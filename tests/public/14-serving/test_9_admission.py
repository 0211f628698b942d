"""Task 14.9: which requests are admitted."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_14_9_up_to_the_limit(scene: Any) -> None:
    """Exactly the limit may be reached, not one more."""
    answers = scene.admit([5, 5], 4, None, [[2, 10], [3, 10]])
    expect(
        [answer[:14] for answer in answers],
        ["in", "QueueFullError"],
        at="2 are there, limit 4; 2, then 3",
    )


def test_14_9_tokens(scene: Any) -> None:
    """Prompts are counted together, those that run, too."""
    answers = scene.admit([5, 7], None, 20, [[1, 8], [1, 9]])
    expect(
        [answer[:14] for answer in answers],
        ["in", "QueueFullError"],
        at="12 tokens are there, limit 20",
    )


def test_14_9_without_limits(scene: Any) -> None:
    """None is no limit, and says nothing of the other one."""
    expect(scene.admit([5] * 100, None, None, [[1000, 10**9]]), ["in"], at="no limits")
    expect(scene.admit([], 1, None, [[1, 10**9]]), ["in"], at="a limit of requests only")
    expect(scene.admit([], None, 9, [[1000, 9]]), ["in"], at="a limit of tokens only")


def test_14_9_both_limits_hold(scene: Any) -> None:
    """It is enough to exceed one."""
    answers = scene.admit([5], 9, 9, [[1, 9], [9, 1], [1, 1]])
    expect(
        [answer[:14] for answer in answers],
        ["QueueFullError", "QueueFullError", "in"],
        at="limits 9 and 9",
    )


def test_14_9_it_says_what_is_there_and_what_may(scene: Any) -> None:
    """The message names the number that is there, the newcomers, and the limit by its flag."""
    (text,) = scene.admit([5, 5], 3, None, [[4, 1]])
    for word in ("2", "4", "max_num_queued_reqs=3"):
        expect(word in text, True, at=f"{word!r} in the message", message=text)
    (text,) = scene.admit([6, 5], None, 13, [[1, 7]])
    for word in ("11", "7", "max_num_queued_tokens=13"):
        expect(word in text, True, at=f"{word!r} in the message", message=text)
