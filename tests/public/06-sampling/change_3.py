"""Change request 3: the stop string that is complete first ends the text."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.engine.detokenizer import find_stop_string


def test_change_3_the_text_decides_and_not_the_list() -> None:
    """hello holds ell and lo; ell is complete first, wherever it stands in the list."""
    for stop in (["lo", "ell"], ["ell", "lo"]):
        expect(find_stop_string("hello", 5, stop), ("ell", 1), at=f'text "hello", stop {stop}')


def test_change_3_the_end_counts_and_not_the_beginning() -> None:
    """hell begins before el, and is complete after it."""
    found = find_stop_string("hello", 5, ["hell", "el"])
    expect(found, ("el", 1), at='text "hello", stop ["hell", "el"]')


def test_change_3_the_list_decides_ties() -> None:
    """Both end with the last letter."""
    for stop in (["hello", "ello"], ["ello", "hello"]):
        found = find_stop_string("hello", 5, stop)
        expect(found, (stop[0], 5 - len(stop[0])), at=f'text "hello", stop {stop}')


def test_change_3_old_matches_stay_refused() -> None:
    """The first ab ended before the new characters: min_tokens refused it."""
    found = find_stop_string("ab cd ab", 5, ["ab", "cd"])
    expect(found, ("cd", 3), at='text "ab cd ab", 5 new')
