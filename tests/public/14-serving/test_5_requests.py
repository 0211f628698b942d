"""Task 14.5: a request on both sides, and every way to leave."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect

STEPS = [[[1], None], [[2], None], [[3], "length"]]


def test_14_5_watched_before_it_is_sent(scene: Any) -> None:
    """When the engine gets a request, its collector is registered, and so are its figures."""
    seen = scene.add_requests([{"prompt": 4}])
    expect(seen["diary"], [["sent", 4, True]], at="a prompt of 4 tokens; True: it was watched")
    expect(
        [seen["handler"], seen["arrived"]],
        [True, True],
        at="the handler runs, the arrival is noted",
    )


def test_14_5_each_completion_is_a_request(scene: Any) -> None:
    """n=3: three requests, all watched before the first is sent, with ids of their own."""
    seen = scene.add_requests([{"n": 3}])
    expect(seen["diary"], [["sent", 2, True]] * 3, at="n=3")
    expect(
        [seen["different"], seen["watched"], seen["streams"]],
        [True, 3, 1],
        at="ids, completions, streams",
    )


def test_14_5_names_need_not_be_unique(scene: Any) -> None:
    """Callers may choose one name twice: inside, the ids differ."""
    seen = scene.add_requests([{"name": "x"}, {"name": "x"}])
    expect(
        [seen["answers"], seen["different"]],
        [["Stream", "Stream"], True],
        at="two requests called x",
    )


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"prompt": 40}, "RequestError"), ({"prompt": 0}, "RequestError"),
        ({"params": {"stop_token_ids": [9999]}}, "RequestError"),
    ],
)  # fmt: skip
def test_14_5_what_is_refused_leaves_nothing(scene: Any, request_: Any, error: str) -> None:
    """A request that cannot be served was not sent, is not watched and not counted."""
    seen = scene.add_requests([request_])
    expect([seen["answers"], seen["diary"]], [[error], []], at=f"{request_}, at most 32 tokens")
    expect([seen["watched"], seen["counted"], seen["streams"]], [0, 0, 0], at="what is left")


def test_14_5_a_dead_engine(scene: Any) -> None:
    """Nothing is sent to an engine that is gone."""
    seen = scene.add_requests([{}], dead=True)
    expect([seen["answers"], seen["diary"]], [["EngineDeadError"], []], at="the engine has died")


def test_14_5_the_limit_holds_for_a_crowd(scene: Any) -> None:
    """Five come in the same moment, and their prompts are tokenized in threads: two get in."""
    seen = scene.add_requests([{}] * 5, at_once=True, max_num_queued_reqs=2)
    expect(sorted(seen["answers"]), ["QueueFullError"] * 3 + ["Stream"] * 2, at="limit 2")
    seen = scene.add_requests([{"n": 2}, {"n": 2}], max_num_queued_reqs=3)
    expect(seen["answers"], ["Stream", "QueueFullError"], at="limit 3, n=2 twice")
    seen = scene.add_requests([{"n": 2, "prompt": 4}], max_num_queued_tokens=7)
    expect(seen["answers"], ["QueueFullError"], at="limit 7 tokens, n=2 with 4 each")


def test_14_5_read_to_the_end(scene: Any) -> None:
    """The reader gets every token, ends by itself, and nothing was aborted."""
    seen = scene.read_stream(STEPS)
    expect(seen["got"], [[[1]], [[2]], [[3]]], at="three outputs")
    expect(
        [seen["how"], seen["closed"], seen["left"]], ["read to the end", [True], 0], at="the end"
    )
    expect(["abort", 1] in seen["diary"], False, at="an abort")


@pytest.mark.parametrize(
    ("leave", "how"),
    [
        ("break", "left"), ("cancel", "cancelled"), ("engine", "ValueError: no"),
        ("raise", "KeyError: \"the reader's own mistake\""),
    ],
)  # fmt: skip
def test_14_5_however_the_reader_leaves(scene: Any, leave: str, how: str) -> None:
    """Breaking off, being cancelled, an error: the stream is closed once, the engine is told."""
    seen = scene.read_stream(STEPS, leave, after=1)
    expect(seen["how"], how, at=f"how the reader ended: {leave}")
    expect(seen["closed"], [True], at="close_stream was called with this stream")
    expect(
        [seen["left"], seen["watched"], ["abort", 1] in seen["diary"]],
        [0, 0, True],
        at="streams, completions, abort",
    )


def test_14_5_only_what_still_runs_is_aborted(scene: Any) -> None:
    """Of three completions one has ended: two are aborted, once, and the last output comes."""
    seen = scene.abort_stream(3, [1])
    expect(seen["diary"], [["abort", 2]], at="n=3, number 1 has ended")
    expect(
        [seen["reasons"], seen["last"]], [["abort", "abort", "length"], True], at="how they ended"
    )
    expect(
        [seen["watched"], seen["counted"], seen["aborted"]],
        [0, 0, 2],
        at="watched, counted, aborts in the figures",
    )


def test_14_5_an_abort_spares_the_twin(scene: Any) -> None:
    """Another request of the same name runs on."""
    seen = scene.abort_stream(1, [], twins=1)
    expect(
        [seen["own"], seen["watched"], seen["others wait"]],
        [1, 1, True],
        at="two requests called r",
    )


def test_14_5_a_finished_request_is_not_aborted(scene: Any) -> None:
    """Nothing is aborted twice, or after its end."""
    expect(scene.abort_stream(1, [0])["diary"], [], at="its only completion has ended")
