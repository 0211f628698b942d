"""Task 05.2: leave a row, and close the gaps."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect

PEOPLE = {
    "ana": ([5, 8, 2], 3, [1]),
    "ben": ([4, 4, 4, 4, 4], 0, [2, 3]),
    "cleo": ([9], 0, [7]),
    "dan": ([6, 1], 1, [5]),
    "eve": ([3, 3, 1, 2, 8, 6], 4, [9, 8]),
}


def seated(rows: Any) -> Any:
    """Five customers in rows 0 to 4."""
    batch = rows.batch(5)
    for row, (name, (tokens, computed, blocks)) in enumerate(PEOPLE.items()):
        rows.seat(batch, row, name, tokens, computed, blocks)
    return batch


def without(rows: Any, *gone: str) -> Any:
    """The same, with holes made by hand."""
    batch = seated(rows)
    for name in gone:
        rows.leave(batch, batch.req_id_to_row[name])
    return batch


def expect_each_whole(rows: Any, batch: Any, at: str) -> None:
    """Each request that is there has its own tokens, count and blocks, in the row of the index."""
    for name in rows.names(batch):
        tokens, computed, blocks = PEOPLE[name]
        right = {"tokens": tokens, "computed": computed, "blocks": blocks}
        expect(
            batch.rows[batch.req_id_to_row[name]].req_id, name, at=f"{at}: who is in {name}'s row"
        )
        expect(rows.show(batch, name), right, at=f"{at}: {name}'s row")


def test_05_2_a_removed_request_leaves_a_hole(rows: Any) -> None:
    """The row's entry becomes None; no row moves yet."""
    batch = seated(rows)
    batch.remove_request("ben")
    expect(rows.names(batch), ["ana", "-", "cleo", "dan", "eve"], at="ben leaves: batch.rows")
    expect("ben" in batch.req_id_to_row, False, at="ben in req_id_to_row")
    expect(batch.num_reqs, 4, at="batch.num_reqs")


def test_05_2_row_zero_is_a_row_too(rows: Any) -> None:
    """Its number is false to Python, and its owner leaves like any other."""
    batch = seated(rows)
    batch.remove_request("ana")
    expect(rows.names(batch), ["-", "ben", "cleo", "dan", "eve"], at="ana leaves row 0: batch.rows")


def test_05_2_removing_a_request_without_a_row_changes_nothing(rows: Any) -> None:
    """A request may end while it waits; removing it, or removing it twice, changes nothing."""
    batch = seated(rows)
    batch.remove_request("nobody")
    batch.remove_request("ben")
    batch.remove_request("ben")
    at = "nobody, then ben twice: batch.rows"
    expect(rows.names(batch), ["ana", "-", "cleo", "dan", "eve"], at=at)


def test_05_2_a_move_takes_everything_along(rows: Any) -> None:
    """Entry, index, tokens, both counts, block table and its length."""
    batch = without(rows, "ben")
    batch._move_row(4, 1)
    expect(rows.names(batch), ["ana", "eve", "cleo", "dan", "-"], at="row 4 moves to row 1")
    expect(batch.req_id_to_row["eve"], 1, at="req_id_to_row['eve']")
    tokens, computed, blocks = PEOPLE["eve"]
    right = {"tokens": tokens, "computed": computed, "blocks": blocks}
    expect(rows.show(batch, "eve"), right, at="eve's new row")


def test_05_2_the_last_rows_move_into_the_holes(rows: Any) -> None:
    """a - c - e becomes a e c: one move, and the end is cut off."""
    batch = without(rows, "ben", "dan")
    batch.condense()
    expect(rows.names(batch), ["ana", "eve", "cleo"], at="ana - cleo - eve, condensed")
    expect_each_whole(rows, batch, "ana - cleo - eve, condensed")


def test_05_2_two_holes_in_front(rows: Any) -> None:
    """- - c d e becomes e d c, or d e c: two move, and c stays where it is."""
    batch = without(rows, "ana", "ben")
    batch.condense()
    *movers, last = rows.names(batch)
    expect(last, "cleo", at="- - cleo dan eve, condensed: row 2")
    expect(sorted(movers), ["dan", "eve"], at="- - cleo dan eve, condensed: rows 0 and 1")
    expect_each_whole(rows, batch, "- - cleo dan eve, condensed")


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (["dan", "eve"], ["ana", "ben", "cleo"]),
        (["ben", "eve"], ["ana", "dan", "cleo"]),
        (["ana", "cleo", "dan", "eve"], ["ben"]),
        (["ana", "ben", "cleo", "dan"], ["eve"]),
        (["ben", "cleo", "dan"], ["ana", "eve"]),
    ],
)
def test_05_2_holes_anywhere(rows: Any, gone: list[str], left: list[str]) -> None:
    """Holes at the end are only cut off; no row moves without need."""
    batch = without(rows, *gone)
    before = " ".join(rows.names(batch))
    batch.condense()
    expect(rows.names(batch), left, at=f"{before}, condensed")
    expect_each_whole(rows, batch, f"{before}, condensed")


def test_05_2_no_request_moves_twice(rows: Any) -> None:
    """- b c - e: e goes to row 0 at once, and not by way of row 3."""
    batch = without(rows, "ana", "dan")
    moved: list[str] = []
    move = batch._move_row

    def watched(source: int, target: int) -> None:
        moved.append(batch.rows[source].req_id)
        move(source, target)

    batch._move_row = watched
    batch.condense()
    expect(rows.names(batch), ["eve", "ben", "cleo"], at="- ben cleo - eve, condensed")
    expect(max(map(moved.count, moved), default=0) < 2, True, at=f"moves, in order: {moved}")


def test_05_2_nothing_to_close(rows: Any) -> None:
    """Without holes no row moves; most steps are like this."""
    batch = seated(rows)
    batch.condense()
    expect(rows.names(batch), list(PEOPLE), at="five rows without a hole, condensed")
    expect_each_whole(rows, batch, "five rows without a hole, condensed")


def test_05_2_all_requests_have_left(rows: Any) -> None:
    """An empty batch has no rows."""
    batch = without(rows, *PEOPLE)
    batch.condense()
    expect(rows.names(batch), [], at="five holes, condensed")


def test_05_2_no_more_moves_than_holes(rows: Any) -> None:
    """A step should cost its changes: 300 rows, one hole in front, one move."""
    batch = rows.batch(300)
    for row in range(300):
        rows.seat(batch, row, f"r{row}", [row])
    rows.leave(batch, 0)
    moves = []
    move = batch._move_row

    def counted(source: int, target: int) -> None:
        moves.append((source, target))
        move(source, target)

    batch._move_row = counted
    batch.condense()
    at = "300 rows, row 0 is a hole: (from, to) of each call of _move_row"
    expect(moves, [(299, 0)], at=at)
