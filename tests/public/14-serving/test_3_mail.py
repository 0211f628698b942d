"""Task 14.3: messages into the engine: when it waits, and what it does with them."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect

ADD = ["ADD", "b", "request b"]


def test_14_3_without_work_it_sleeps(scene: Any) -> None:
    """An idle engine says so, sleeps in the queue, and goes on when a message has brought work."""
    seen = scene.take_messages({}, [], later=[ADD, ADD])
    expect(seen["diary"], [["idle"], ["slept"], ["handled", "ADD"]], at="no work, then an ADD")


def test_14_3_a_message_without_work_does_not_end_the_sleep(scene: Any) -> None:
    """After an ABORT of an unknown request there is still nothing to do: it sleeps on."""
    seen = scene.take_messages({}, [], later=[["ABORT", ["x"]], ADD])
    sleeps = [line for line in seen["diary"] if line == ["slept"]]
    expect(len(sleeps), 2, at="an ABORT, then an ADD", diary=seen["diary"])


def test_14_3_with_work_it_never_sleeps(scene: Any) -> None:
    """A running request is not held up by an empty queue."""
    expect(scene.take_messages({"a": 3}, [])["diary"], [], at="a runs, no message")


def test_14_3_a_burst_is_taken_whole(scene: Any) -> None:
    """All messages that are there are handled before the next step."""
    burst = [["ADD", f"r{i}", f"request {i}"] for i in range(5)]
    for running in ({"a": 3}, {}):
        seen = scene.take_messages(running, burst)
        handled = seen["diary"].count(["handled", "ADD"])
        expect([handled, seen["left"]], [5, 0], at="five messages", running=running)
        expect(["slept"] in seen["diary"], False, at="a full mailbox is no reason to sleep")


def test_14_3_an_engine_that_shuts_down_does_not_sleep(scene: Any) -> None:
    """Once a shutdown was asked for, an idle engine goes on to end."""
    expect(scene.take_messages({}, [], state="REQUESTED")["diary"], [], at="REQUESTED, no work")
    seen = scene.take_messages({}, [], later=[["SHUTDOWN", 1.0]])
    expect(
        seen["diary"], [["idle"], ["slept"], ["handled", "SHUTDOWN"]], at="asked while it sleeps"
    )


def test_14_3_a_pause_sleeps_with_requests(scene: Any) -> None:
    """Paused, it has requests and no work: it sleeps until it is resumed."""
    seen = scene.take_messages({"a": 3}, [], later=[["RESUME"]], paused="PAUSED_ALL")
    expect(seen["diary"][-1], ["handled", "UTILITY"], at="PAUSED_ALL", diary=seen["diary"])


def test_14_3_add_and_abort(scene: Any) -> None:
    """A request is prepared and taken in; ids to abort go to the engine as they are."""
    seen = scene.handle_messages({"a": 3}, [ADD, ["ABORT", ["a", "nobody"]]])
    expect(seen["diary"], [["added", ["prepared", "request b"]], ["aborted", ["a", "nobody"]]],
           at="ADD b, ABORT a and nobody")  # fmt: skip
    expect(seen["sent"], [], at="who asked for an abort knows of it: outputs")


def test_14_3_a_bad_request_ends_alone(scene: Any) -> None:
    """What cannot be prepared or decoded is answered with an error; the loop goes on."""
    seen = scene.handle_messages({}, [["ADD", "c", "bad"], ["ADD", "d", b"\xff"], ADD])
    expect(
        seen["diary"],
        [["added", ["prepared", "request b"]]],
        at="two that cannot be served, one that can",
    )
    expect([line[:2] for line in seen["sent"]], [["c", "error"], ["d", "error"]], at="who is told")
    expect(seen["sent"][0][2], "bad cannot be served", at="the reason that c is told")


def test_14_3_calls_and_shutdowns(scene: Any) -> None:
    """A call is answered. Of several shutdowns the earliest deadline counts."""
    seen = scene.handle_messages({}, [["RESUME"]])
    expect(seen["sent"], [["ANSWER", 5, None]], at="a call of resume_generation")
    seen = scene.handle_messages({}, [["SHUTDOWN", 5.0], ["SHUTDOWN", 2.0], ["SHUTDOWN", 9.0]])
    expect(
        [seen["state"], seen["deadline"]],
        ["REQUESTED", 2.0],
        at="shutdowns in 5, 2 and 9 seconds, at second 0",
    )


def test_14_3_no_request_is_admitted_during_a_shutdown(scene: Any) -> None:
    """After a shutdown was asked for, a new request is answered as aborted."""
    seen = scene.handle_messages({}, [["SHUTDOWN", 5.0], ADD])
    expect([seen["diary"], seen["sent"]], [[], [["b", "abort", None]]], at="SHUTDOWN, then ADD b")
