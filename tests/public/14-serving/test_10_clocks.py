"""Task 14.10: figures on the right clock. The request arrived at our second 100, with 7 tokens."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect

FIRST = {"tokens": 1, "stamp": 6.0, "now": 101.5, "times": [4.0, 4.5]}


def test_14_10_the_first_token(scene: Any) -> None:
    """From arrival to now, on our clock; the prompt's tokens are counted with it."""
    (step,) = scene.life([FIRST], None, 0.0)["steps"]
    expect(
        step,
        {"prompt": 7, "tokens": 1, "preempted": 0, "ttfts": [1.5], "itls": []},
        at="the first token, at 101.5",
    )


def test_14_10_the_later_ones(scene: Any) -> None:
    """One gap an output, on the engine's clock, however many tokens it holds."""
    later = [{"tokens": 3, "stamp": 6.25, "now": 103.0}, {"tokens": 1, "stamp": 7.0, "now": 103.1}]
    steps = scene.life([FIRST, *later], None, 0.0)["steps"]
    expect([step["itls"] for step in steps], [[], [0.25], [0.75]], at="stamps 6, 6.25 and 7")
    expect([step["ttfts"] for step in steps], [[1.5], [], []], at="one time to first token")
    expect([step["tokens"] for step in steps], [1, 3, 1], at="tokens")
    expect([step["prompt"] for step in steps], [7, 0, 0], at="prompt tokens: once")


def test_14_10_outputs_without_tokens(scene: Any) -> None:
    """A chunk of a prompt brings no token, so no time."""
    steps = scene.life([{"tokens": 0, "stamp": 5.0, "now": 100.7}, FIRST], None, 0.0)["steps"]
    expect([step["ttfts"] for step in steps], [[], [1.5]], at="a chunk, then the first token")


def test_14_10_preemption(scene: Any) -> None:
    """Preemptions are counted once each; a request that comes back has no second first token."""
    later = [
        {"tokens": 1, "stamp": 9.0, "now": 104.0, "preempted": 2},
        {"tokens": 1, "stamp": 9.5, "now": 104.5, "preempted": 2},
    ]
    steps = scene.life([FIRST, *later], None, 0.0)["steps"]
    expect([step["preempted"] for step in steps], [0, 2, 0], at="the engine says 0, 2, 2")
    expect([step["itls"] for step in steps], [[], [3.0], [0.5]], at="the gap holds the pause")


def test_14_10_the_whole_life(scene: Any) -> None:
    """Queue, prefill and decode on the engine's clock, end to end on ours."""
    later = {"tokens": 2, "stamp": 8.0, "now": 104.0}
    life = scene.life([FIRST, later], "length", 104.5)
    del life["steps"]
    expect(life, {"reason": "length", "e2e_latency": 4.5, "queued_time": 0.5, "prefill_time": 1.5,
                  "decode_time": 2.0, "inference_time": 3.5, "tpot": 1.0},
           at="queued 4, scheduled 4.5, tokens at 6 and 8")  # fmt: skip


def test_14_10_without_a_token(scene: Any) -> None:
    """A request that was aborted before its first token has an end, and no times."""
    life = scene.life([], "abort", 103.0)
    del life["steps"]
    times = dict.fromkeys(("queued_time", "prefill_time", "decode_time", "inference_time", "tpot"))
    expect(life, {"reason": "abort", "e2e_latency": 3.0, **times}, at="aborted at 103")


def test_14_10_one_token(scene: Any) -> None:
    """A single token has no time per later token."""
    life = scene.life([FIRST], "stop", 102.0)
    expect([life["tpot"], life["decode_time"]], [None, 0.0], at="one token")
