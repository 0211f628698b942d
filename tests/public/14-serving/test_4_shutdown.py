"""Task 14.4: an orderly end, played through by the whole busy loop. A step takes one second."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def ends(seen: Any) -> list[Any]:
    """Which requests were told the end, and which end."""
    return [line[:2] for line in seen["sent"] if line[1] is not None]


def test_14_4_all_requests_may_finish(scene: Any) -> None:
    """With time enough all run to their last token, and then the loop is left at once."""
    seen = scene.run_loop({"a": 2, "b": 4}, [["SHUTDOWN", 100.0]])
    expect(ends(seen), [["a", "length"], ["b", "length"]], at="a needs 2 steps, b needs 4")
    expect(seen["state"], "SHUTTING_DOWN", at="after the loop", steps=seen["steps"])


def test_14_4_requests_that_are_left_are_aborted(scene: Any) -> None:
    """When the time is up, running requests are aborted, and told."""
    seen = scene.run_loop({"a": 2, "b": 9}, [["SHUTDOWN", 3.0]])
    expect(ends(seen), [["a", "length"], ["b", "abort"]], at="3 seconds, b needs 9")
    expect(seen["left"], {}, at="requests left in the scheduler")


def test_14_4_no_time_at_all(scene: Any) -> None:
    """A shutdown in 0 seconds: every request is told in the next turn."""
    seen = scene.run_loop({"a": 5, "b": 9}, [["SHUTDOWN", 0.0]])
    expect(ends(seen), [["a", "abort"], ["b", "abort"]], at="0 seconds")


def test_14_4_an_idle_engine_ends(scene: Any) -> None:
    """Without requests the loop is left without a step, though it was asleep when asked."""
    seen = scene.run_loop({}, [], later=[["SHUTDOWN", 50.0]])
    expect(
        [seen["steps"], seen["sent"], seen["diary"][-1][0]],
        [0, [], "aborted"],
        at="asleep, then SHUTDOWN",
    )


def test_14_4_without_a_shutdown_it_goes_on(scene: Any) -> None:
    """RUNNING: the loop comes back for more, also when all requests have ended."""
    seen = scene.run_loop({"a": 2}, [])
    expect(seen["diary"][-1][0], "stuck", at="nobody asks for an end, so it sleeps for ever")
    expect(ends(seen), [["a", "length"]], at="what a was told")


def test_14_4_the_last_are_let_out(scene: Any) -> None:
    """The loop is left when there is nothing more to say: the aborts have been reported."""
    seen = scene.run_loop({"a": 9}, [["SHUTDOWN", 0.0]])
    expect(
        seen["steps"] >= 2, True, at="a step after the abort tells the workers", steps=seen["steps"]
    )
