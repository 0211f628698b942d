"""Task 16.5: room for an urgent request."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect

Person = tuple[str, int, float]


def office(desk: Any, *people: Person, blocks: int = 8, rows: int = 8) -> Any:
    """V0 under "priority"; (name, priority, arrival) run with 6 tokens in 2 blocks each."""
    scheduler = desk.v0(blocks=blocks, rows=rows, policy="priority")
    for name, priority, arrival in people:
        request = desk.request(name, 6, priority=priority, arrival=arrival)
        desk.run(scheduler, request, 6)
    return scheduler


def make_room(
    desk: Any, scheduler: Any, name: str, prompt: int, priority: int, arrival: float = 9.0
) -> tuple[int, list[str]]:
    """Let a request wait, and call your method: what it returns, and which were preempted."""
    desk.add(scheduler, desk.request(name, prompt, priority=priority, arrival=arrival))
    plan = scheduler.new_plan(64)
    count = scheduler._schedule_priority_preemption(plan)
    return count, desk.names(plan.preempted)


def test_16_5_as_many_as_it_takes_and_no_more(desk: Any) -> None:
    """The least urgent go first, wherever they stand in `running`, until it fits."""
    people = [("ana", 1, 1.0), ("ben", 4, 4.0), ("cleo", 3, 3.0), ("dan", 2, 2.0)]
    scheduler = office(desk, *people)
    at = "ana (1), ben (4), cleo (3), dan (2) fill 8 blocks; eve (priority 0) needs 4"
    expect(make_room(desk, scheduler, "eve", 14, 0), (2, ["ben", "cleo"]), at=at)
    expect(desk.names(scheduler.running), ["ana", "dan"], at=f"{at}: who still runs")


def test_16_5_no_preemption_for_an_equal_priority(desk: Any) -> None:
    """Urgency is (priority, arrival_time); only a smaller pair may preempt."""
    scheduler = office(desk, ("ana", 2, 1.0), ("ben", 2, 5.0), blocks=4)
    at = "ana (2, arrived 1.0) and ben (2, 5.0) fill the pool; eve (2, 9.0) waits"
    expect(make_room(desk, scheduler, "eve", 6, 2), (0, []), at=at)
    scheduler = office(desk, ("ana", 2, 1.0), ("ben", 2, 5.0), blocks=4)
    at = "the same, but eve arrived at 3.0: before ben"
    expect(make_room(desk, scheduler, "eve", 6, 2, arrival=3.0), (1, ["ben"]), at=at)


def test_16_5_the_more_urgent_are_safe(desk: Any) -> None:
    """Even if it does not help: eve cannot have ana's blocks."""
    scheduler = office(desk, ("ana", 0, 1.0), ("ben", 5, 2.0), blocks=4)
    at = "ana (0) and ben (5) fill 4 blocks; eve (1) needs 3"
    expect(make_room(desk, scheduler, "eve", 10, 1), (1, ["ben"]), at=at)
    expect(desk.names(scheduler.running), ["ana"], at=f"{at}: who still runs")


def test_16_5_no_preemption_if_it_fits_already(desk: Any) -> None:
    """Blocks and a row are free: the next step admits it anyway."""
    scheduler = office(desk, ("ana", 2, 1.0), ("ben", 3, 2.0), blocks=8)
    at = "ana (2) and ben (3) hold 4 of 8 blocks; eve (1) needs 2"
    expect(make_room(desk, scheduler, "eve", 6, 1), (0, []), at=at)


def test_16_5_no_request_waits(desk: Any) -> None:
    """No request waits, so there is none to make room for."""
    scheduler = office(desk, ("ana", 2, 1.0), ("ben", 3, 2.0), blocks=4)
    count = scheduler._schedule_priority_preemption(scheduler.new_plan(64))
    expect(count, 0, at="ana and ben run, the line is empty: how many are preempted?")


def test_16_5_a_row_counts_as_room(desk: Any) -> None:
    """Blocks are free, but all rows are taken."""
    scheduler = office(desk, ("ana", 2, 1.0), ("ben", 2, 2.0), blocks=12, rows=2)
    at = "2 rows, taken by ana and ben (both 2); eve (1) waits"
    expect(make_room(desk, scheduler, "eve", 6, 1), (1, ["ben"]), at=at)


def test_16_5_completions_of_one_prompt_go_together(desk: Any) -> None:
    """A group is preempted as a whole, and counts once."""
    scheduler = desk.v0(blocks=6, policy="priority")
    desk.run(scheduler, desk.request("ana", 6, priority=1, arrival=1.0), 6)
    for name in ("0_ben", "1_ben"):
        desk.run(scheduler, desk.request(name, [5, 6, 7, 8, 9, 9], priority=3, arrival=2.0), 6)
    at = "ana (1), and ben's two completions (3), 2 blocks each, fill 6; eve (0) needs 2"
    expect(make_room(desk, scheduler, "eve", 6, 0), (1, ["0_ben", "1_ben"]), at=at)


def test_16_5_the_newcomer_starts_in_the_next_step(desk: Any) -> None:
    """A step that preempts admits no request."""
    scheduler = office(desk, ("ana", 2, 1.0), ("ben", 3, 2.0), blocks=4)
    make_room(desk, scheduler, "eve", 6, 1)
    at = "ben has made room for eve"
    waiting = desk.names(scheduler.waiting)
    expect("eve" in waiting, True, at=f"{at}: does she still wait? The line: {waiting}")
    expect(desk.names(scheduler.running), ["ana"], at=f"{at}: who runs")
