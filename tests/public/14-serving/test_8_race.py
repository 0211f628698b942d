"""Task 14.8: work races with a client that may leave. Time is counted in turns of the loop."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_14_8_listening(scene: Any) -> None:
    """It reads on until it hears "http.disconnect"."""
    heard = ["http.request", "http.request", "http.disconnect", "more"]
    expect(scene.listen(heard), {"done": True, "read": 3}, at="the third message")
    expect(scene.listen(["http.request"]), {"done": False, "read": 1}, at="a client that stays")


def test_14_8_the_work_wins(scene: Any) -> None:
    """Its answer comes back, and the listener has ended."""
    seen = scene.race(4, -1)
    expect(
        seen,
        {"how": "answer", "diary": ["0 tasks left", "listening ended"]},
        at="work takes 4 turns",
    )


def test_14_8_the_client_wins(scene: Any) -> None:
    """The work is cancelled, and the caller learns that the client is gone."""
    seen = scene.race(40, 3)
    expect(seen["how"].partition(":")[0], "ClientGoneError", at="it leaves after 3 turns")
    expect(
        "work cancelled and cleaned up" in seen["diary"], True, at="the work", diary=seen["diary"]
    )


def test_14_8_the_loser_is_waited_for(scene: Any) -> None:
    """The work needs six turns to clean up; only then does the function come back."""
    seen = scene.race(40, 3, cleanup=6)
    expect(
        seen["diary"], ["0 tasks left", "work cancelled and cleaned up"], at="when the race is over"
    )


def test_14_8_both_at_once(scene: Any) -> None:
    """An answer that is ready is not thrown away."""
    for turns in range(4):
        expect(scene.race(turns, turns)["how"], "answer", at=f"both after {turns} turns")


def test_14_8_the_works_own_error(scene: Any) -> None:
    """What the work raises is raised."""
    seen = scene.race(2, -1, fails=True)
    expect(seen["how"], 'KeyError: "the work\'s own"', at="the work fails")
    expect(seen["diary"], ["0 tasks left", "listening ended"], at="what is left")


def test_14_8_being_cancelled_from_outside(scene: Any) -> None:
    """A server that shuts down cancels the caller: the work ends with it."""
    seen = scene.race(40, -1, cancelled=3, cleanup=2)
    expect(seen["how"], "cancelled", at="cancelled after 3 turns")
    expect(
        seen["diary"],
        ["0 tasks left", "listening ended", "work cancelled and cleaned up"],
        at="what is left",
    )
