"""Change request 2: stop strings in any case."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.engine.detokenizer import find_stop_string, possible_stop_length


def test_change_2_found_in_any_case() -> None:
    """END ends what asks for end."""
    expect(find_stop_string("The END", 3, ["end"]), ("end", 4), at='text "The END", 3 new')


def test_change_2_held_back_in_any_case() -> None:
    """ST may become stop."""
    expect(possible_stop_length("a ST", ["stop"]), 2, at='text "a ST"')


def test_change_2_places_are_those_of_the_text() -> None:
    """A sharp s before the stop string moves nothing."""
    text = "Straße END"
    expect(find_stop_string(text, 3, ["end"]), ("end", 7), at=f"text {text!r}")
