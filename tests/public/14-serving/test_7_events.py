"""Task 14.7: an answer in pieces, and what becomes of it when something breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labkit.testing import expect

DONE = ["sent", "data: [DONE]\n\n", False]


def test_14_7_one_event() -> None:
    """An event is one line of JSON behind "data: ", and an empty line, as bytes."""
    from mini_vllm.entrypoints.openai.sse import sse_event

    event = sse_event({"a": [1, None]})
    expect(event.replace(b" ", b""), b'data:{"a":[1,null]}\n\n', at="a body, without its spaces")
    expect(event[:6], b"data: ", at="how it begins")


def test_14_7_a_line_break_in_a_text() -> None:
    """A text with line breaks stays one line: the reader would cut it otherwise."""
    from mini_vllm.entrypoints.openai.sse import sse_event

    body = {"text": "one\n\ntwo \N{SNOWMAN}"}
    event = sse_event(body)
    expect(event.count(b"\n"), 2, at="line breaks in the event")
    expect(json.loads(event.removeprefix(b"data: ")), body, at="what the reader reads")


def test_14_7_head_events_done(scene: Any) -> None:
    """First the head, then each event, then [DONE]; only the last message has no more behind it."""
    diary = scene.send_stream(2)["diary"]
    sent = [line for line in diary if line[0] in ("start", "sent")]
    head = [
        "start",
        200,
        {"content-type": "text/event-stream; charset=utf-8", "content-length": None},
    ]
    expect(
        sent,
        [head, ["sent", "data: 0\n\n", True], ["sent", "data: 1\n\n", True], DONE],
        at="two events",
    )


def test_14_7_each_event_leaves_at_once(scene: Any) -> None:
    """The second event is made after the first was sent: nothing is collected."""
    order = [line[0] for line in scene.send_stream(2)["diary"] if line[0] in ("made", "sent")]
    expect(order, ["made", "sent", "made", "sent", "sent"], at="two events and [DONE]")


def test_14_7_the_head_does_not_wait(scene: Any) -> None:
    """The status leaves before the first event is made."""
    expect(scene.send_stream(1)["diary"][0][0], "start", at="the first thing that happens")


def test_14_7_another_last_line(scene: Any) -> None:
    """Without [DONE], if that was asked for; there is still a last message."""
    diary = scene.send_stream(1, done="")["diary"]
    expect(diary[-1], ["sent", "", False], at="done is empty")


@pytest.mark.parametrize(("error", "code"), [("value", 400), ("busy", 503), ("bug", 500)])
def test_14_7_an_error_is_an_event(scene: Any, error: str, code: int) -> None:
    """The status is gone, so the error comes as an event; [DONE] follows all the same."""
    seen = scene.send_stream(2, error, 1)
    *_, told, last = seen["diary"]
    body = json.loads(told[1].removeprefix("data: "))
    what = body.get("error") if isinstance(body, dict) else None
    seen_code = what.get("code") if isinstance(what, dict) else None
    expect(
        [list(body), seen_code, told[2]],
        [["error"], code, True],
        at=f"{error} behind one event: its keys, the error's code, and that more comes",
        sent=told[1],
    )
    expect([last, seen["how"]], [DONE, "returned"], at="the end")


@pytest.mark.parametrize(
    ("error", "raised"), [("gone", "ConnectionResetError"), ("cancel", "CancelledError")]
)
def test_14_7_the_reader_has_gone(scene: Any, error: str, raised: str) -> None:
    """A reader that is gone, or a cancelled task: nothing more is sent, and it is raised on."""
    seen = scene.send_stream(3, error, 1)
    sent = [line for line in seen["diary"] if line[0] == "sent"]
    expect(
        [sent, seen["how"]],
        [[["sent", "data: 0\n\n", True]], raised],
        at=f"{error} behind one event",
    )


def test_14_7_the_events_are_closed(scene: Any) -> None:
    """However it ends, also when sending fails, the iterator of events is closed at once."""
    for error, place in (("", -1), ("value", 1), ("cancel", 1), ("send", 1)):
        seen = scene.send_stream(3, error, place)
        expect(seen["diary"].count(["closed"]), 1, at=f"error {error!r}", diary=seen["diary"])
    expect(seen["how"], "ConnectionResetError", at="sending the first event has failed")


def test_14_7_numbers_that_json_lacks() -> None:
    """NaN and the infinities are no JSON: they become null."""
    from mini_vllm.entrypoints.openai.sse import sse_event

    event = sse_event({"logprobs": [float("-inf"), float("nan"), -0.5]})
    told = event.replace(b" ", b"").strip()
    expect(told, b'data:{"logprobs":[null,null,-0.5]}', at="[-inf, nan, -0.5]")
