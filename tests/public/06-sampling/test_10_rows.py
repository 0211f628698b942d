"""Task 06.10: what a hook knows of each row."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect


def updated(lab: Any, known: dict[int, str], **update: Any) -> tuple[dict[int, str], bool]:
    """What is known after an update, and whether anything has changed. A new request's state is
    its first output id as a letter; None for an empty list."""
    from mini_vllm.sample.custom import process_dict_updates

    entries = dict(known)
    changed = process_dict_updates(
        entries,
        lab.batch_update(**update),
        lambda _, __, output: chr(output[0]) if output else None,
    )
    return entries, changed


def test_06_10_nothing_has_happened(lab: Any) -> None:
    """None: all rows stay."""
    from mini_vllm.sample.custom import process_dict_updates

    entries = {0: "a"}
    expect(process_dict_updates(entries, None, lambda *_: "x"), False, at="no update")
    expect(entries, {0: "a"}, at="what is known then")


def test_06_10_a_removed_request_is_forgotten(lab: Any) -> None:
    """Removed: also a row of which nothing was known."""
    known = {0: "a", 2: "c"}
    expect(updated(lab, known, removed=[2, 1]), ({0: "a"}, True), at=f"{known}; 2 and 1 leave")
    expect(updated(lab, known, removed=[1]), (known, False), at=f"{known}; 1 leaves")


def test_06_10_an_added_request_is_known(lab: Any) -> None:
    """Added: what new_state says of params, prompt and output; None is nothing."""
    at = "{0: 'a'}; x comes into row 1, and one of which nothing is to be known into row 2"
    expect(updated(lab, {0: "a"}, added=[(1, "x"), (2, "")]), ({0: "a", 1: "x"}, True), at=at)


def test_06_10_a_row_changes_hands(lab: Any) -> None:
    """Added: what was known of the row belonged to another request."""
    at = "{0: 'a', 1: 'b'}; row 0 gets x, and row 1 one of which nothing is to be known"
    got = updated(lab, {0: "a", 1: "b"}, removed=[0], added=[(0, "x"), (1, "")])
    expect(got, ({0: "x"}, True), at=at)


def test_06_10_an_equal_state_of_another_request_is_a_change(lab: Any) -> None:
    """Added: a new request's list equals the one that is forgotten, and may lie in its place."""
    from mini_vllm.sample.custom import process_dict_updates

    entries = {0: [7]}
    update = lab.batch_update(added=[(0, "x")])
    changed = process_dict_updates(entries, update, lambda *_: [7])
    expect((entries, changed), ({0: [7]}, True), at="{0: [7]}; row 0 gets a request with [7]")


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        ((0, 1, "UNIDIRECTIONAL"), {1: "a"}),
        ((0, 1, "SWAP"), {0: "b", 1: "a"}),
        ((1, 0, "UNIDIRECTIONAL"), {0: "b"}),
        ((0, 5, "UNIDIRECTIONAL"), {1: "b", 5: "a"}),
        ((0, 5, "SWAP"), {1: "b", 5: "a"}),
    ],
)
def test_06_10_what_is_known_moves_along(lab: Any, move: Any, expected: dict[int, str]) -> None:
    """Moved: from the first row to the second; a swap takes both."""
    at = f"{{0: 'a', 1: 'b'}}; the move {move}"
    expect(updated(lab, {0: "a", 1: "b"}, moved=[move]), (expected, True), at=at)


def test_06_10_a_request_of_which_nothing_is_known_moves_too(lab: Any) -> None:
    """Moved: it takes the row, and what was known of that row leaves, or changes places."""
    one_way = updated(lab, {1: "b"}, moved=[(0, 1, "UNIDIRECTIONAL")])
    expect(one_way, ({}, True), at="{1: 'b'}; row 0 moves to 1, and nothing is known of it")
    swap = updated(lab, {1: "b"}, moved=[(0, 1, "SWAP")])
    expect(swap, ({0: "b"}, True), at="{1: 'b'}; rows 0 and 1 change places")


def test_06_10_moves_come_one_after_the_other(lab: Any) -> None:
    """Moved: the second takes what the first has brought."""
    moves = [(0, 1, "SWAP"), (1, 2, "SWAP"), (2, 3, "UNIDIRECTIONAL")]
    got = updated(lab, {0: "a", 1: "b", 2: "c"}, moved=moves)
    expect(got, ({0: "b", 1: "c", 3: "a"}, True), at=f"{{0: 'a', 1: 'b', 2: 'c'}}; moves {moves}")


def test_06_10_first_leave_then_come_then_move(lab: Any) -> None:
    """Removed, added, moved, in this order: a new request may be moved at once."""
    update = {"removed": [0], "added": [(0, "x")], "moved": [(0, 1, "SWAP")]}
    got = updated(lab, {0: "a", 1: "b"}, **update)
    expect(got, ({0: "b", 1: "x"}, True), at=f"{{0: 'a', 1: 'b'}}; {update}")


def test_06_10_a_function_is_made_once_and_moves_with_its_request(lab: Any) -> None:
    """Adapter: what it remembers is the request's, whatever its row."""
    import torch

    hook = lab.counting_hook()
    hook.update_state(lab.batch_update(added=[(0, "a"), (1, "b")]))
    seen = [hook.apply(torch.zeros(3, 2))[:, 0].tolist()]
    hook.update_state(None)
    seen.append(hook.apply(torch.zeros(3, 2))[:, 0].tolist())
    hook.update_state(lab.batch_update(removed=[0], added=[(0, "c")], moved=[(1, 2, "SWAP")]))
    seen.append(hook.apply(torch.zeros(3, 2))[:, 0].tolist())
    at = "each function adds 1, 2, 3, ... to its row; in step 3 c has come for a, b is in row 2"
    expect(seen, [[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [1.0, 0.0, 3.0]], at=at)


def test_06_10_the_engine_tells_of_moves(lab: Any) -> None:
    """Whole: a batch from which requests leave; each answer is as if it were alone."""
    from mini_vllm.sample.custom import process_dict_updates, update_of

    stories = ["abc", "bcda", "dxa", "axyzd", "", "da", "ad"]
    rows = {letter: lab.row(output=[ord(letter)]) for letter in "abcdxyz"}
    known: dict[int, str] = {}
    before: list[Any] = []
    for story in stories:
        after = [rows[letter] for letter in story]
        process_dict_updates(known, update_of(before, after), lambda _, __, output: chr(output[0]))
        at = f"the rows are {story!r} now; they were {[chr(r[2][0]) for r in before]}"
        expect(dict(sorted(known.items())), dict(enumerate(story)), at=at)
        before = after
