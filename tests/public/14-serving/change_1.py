"""Change request 1: every token has its gap."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def output(tokens: int, stamp: float) -> dict[str, Any]:
    return {"tokens": tokens, "stamp": stamp, "now": 100.0 + stamp, "times": [4.0, 4.5]}


def gaps(scene: Any, *outputs: dict[str, Any]) -> list[list[float]]:
    return [step["itls"] for step in scene.life(list(outputs), None, 0.0)["steps"]]


def test_change_1_four_tokens_at_once(scene: Any) -> None:
    """Four tokens after 0.12 s: four gaps of 0.03."""
    found = gaps(scene, output(1, 6.0), output(4, 6.12), output(1, 6.15))
    expect(found, [[], [0.03] * 4, [0.03]], at="1 token at 6, 4 at 6.12, 1 at 6.15")


def test_change_1_the_first_output_has_no_gap(scene: Any) -> None:
    """However many tokens it holds."""
    found = gaps(scene, output(3, 6.0), output(2, 6.5))
    expect(found, [[], [0.25, 0.25]], at="3 tokens at 6, 2 at 6.5")


def test_change_1_one_token_an_output_is_as_before(scene: Any) -> None:
    """One gap each, and none for a chunk of the prompt."""
    found = gaps(scene, output(0, 5.0), output(1, 6.0), output(1, 6.25), output(1, 7.0))
    expect(found, [[], [], [0.25], [0.75]], at="a chunk at 5, tokens at 6, 6.25 and 7")
