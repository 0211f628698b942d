"""Task 14.2: one slot, an event, and a reader that may be slow."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def text(seen: Any) -> Any:
    """The text of an output that was seen; anything else as it is."""
    return seen["parts"][0]["text"] if isinstance(seen, dict) else seen


def test_14_2_unread_outputs_become_one(scene: Any, part: Any) -> None:
    """Three outputs that were not read yet are read as one; then the slot is empty."""
    puts = [["put", {"parts": [part(letter)]}] for letter in "abc"]
    seen = scene.collect("DELTA", [*puts, ["read"], ["look"]])
    expect([text(s) for s in seen], ["abc", None], at="put a, b, c; read; look")


def test_14_2_a_waiting_reader_is_woken(scene: Any, part: Any) -> None:
    """A waiting reader gets the output that is put, each time anew."""
    script: list[Any] = []
    for letter in "ab":
        script += [["begin"], ["put", {"parts": [part(letter)]}], ["end"]]
    expect([text(s) for s in scene.collect("DELTA", script)], ["a", "b"], at="wait, put; twice")


def test_14_2_an_empty_slot_is_waited_for(scene: Any, part: Any) -> None:
    """After an output was taken the next read waits: it does not spin, and gets nothing twice."""
    script = [["put", {"parts": [part("a")]}], ["read"], ["read"]]
    expect(
        [text(s) for s in scene.collect("DELTA", script)], ["a", "waits"], at="one put, two reads"
    )


def test_14_2_looking_and_waiting_agree(scene: Any, part: Any) -> None:
    """Looking clears the event, too: a reader that comes afterwards waits."""
    script = [["put", {"parts": [part("a")]}], ["look"], ["read"]]
    expect([text(s) for s in scene.collect("DELTA", script)], ["a", "waits"], at="put, look, read")


def test_14_2_an_error_is_raised_once(scene: Any) -> None:
    """An error that was put is raised in the reader, and then the slot is empty."""
    seen = scene.collect("DELTA", [["fail", "no"], ["look"], ["look"]])
    expect(seen, ["ValueError: no", None], at="an error; look twice")


def test_14_2_an_error_takes_the_slot(scene: Any, part: Any) -> None:
    """It replaces what was not read, wakes the reader, and no later output replaces it."""
    put = ["put", {"parts": [part("a")]}]
    expect(
        scene.collect("DELTA", [put, ["fail", "no"], ["read"]]),
        ["ValueError: no"],
        at="output, error",
    )
    expect(
        scene.collect("DELTA", [["fail", "no"], put, ["read"]]),
        ["ValueError: no"],
        at="error, output",
    )
    expect(
        scene.collect("DELTA", [["fail", "one"], ["fail", "two"], ["read"]]),
        ["ValueError: one"],
        at="two errors: the first says what happened",
    )
    expect(
        scene.collect("DELTA", [["begin"], ["fail", "no"], ["end"]]),
        ["ValueError: no"],
        at="a reader waits",
    )


def test_14_2_whole_outputs_are_not_joined(scene: Any, part: Any) -> None:
    """With CUMULATIVE outputs the last one says everything."""
    puts = [["put", {"parts": [part(text)]}] for text in ("O", "On", "Once")]
    expect(
        [text(s) for s in scene.collect("CUMULATIVE", [*puts, ["read"]])],
        ["Once"],
        at="O, On, Once",
    )
