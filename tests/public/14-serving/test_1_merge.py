"""Task 14.1: two outputs become one, and say the same."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def texts(output: Any) -> dict[int, str]:
    return {part["index"]: part["text"] for part in output["parts"]}


def test_14_1_deltas_are_joined(scene: Any, part: Any) -> None:
    """Text and tokens that came later stand behind those that came before."""
    said = [{"parts": [part("On", [1])]}, {"parts": [part("ce", [2, 3])]}]
    (only,) = scene.merge(True, said)["parts"]
    expect((only["text"], only["ids"]), ("Once", [1, 2, 3]), at="On + ce")


def test_14_1_by_index_not_by_place(scene: Any, part: Any) -> None:
    """A step may bring the second completion alone."""
    said = [{"parts": [part("a0"), part("b0", index=1)]}, {"parts": [part("b1", index=1)]}]
    expect(texts(scene.merge(True, said)), {0: "a0", 1: "b0b1"}, at="index 1 comes alone")


def test_14_1_an_unknown_index_is_appended(scene: Any, part: Any) -> None:
    """A completion that is not here yet joins the list."""
    said = [{"parts": [part("b", index=1)]}, {"parts": [part("a", index=0)]}]
    expect(texts(scene.merge(True, said)), {1: "b", 0: "a"}, at="index 0 comes after index 1")


def test_14_1_the_end_is_taken_over(scene: Any, part: Any) -> None:
    """How a completion ended, and why, is what the later output says."""
    last = part("", [9], end="stop", stop="###", logprob=-2.5)
    (only,) = scene.merge(True, [{"parts": [part("a", [8], logprob=-1.0)]}, {"parts": [last]}])[
        "parts"
    ]
    seen = (only["end"], only["stop"], only["logprob"])
    expect(seen, ("stop", "###", -2.5), at="the last token came with the end")


def test_14_1_a_total_of_0_is_a_total(scene: Any, part: Any) -> None:
    """The model was certain of each token: the sum of its log probabilities is 0, and not None."""
    said = [{"parts": [part("", [])]}, {"parts": [part("a", [1], logprob=0.0)]}]
    (only,) = scene.merge(True, said)["parts"]
    expect(only["logprob"], 0.0, at="an output without tokens, and then one with the total 0.0")


def test_14_1_logprobs_are_joined_also_with_none(scene: Any, part: Any) -> None:
    """One entry a token, whether the earlier or the later output has none."""
    with_some = {"parts": [part("b", [2], logprobs=[-0.5])]}
    without = {"parts": [part("a", [1])]}
    (only,) = scene.merge(True, [without, with_some, with_some])["parts"]
    expect(only["logprobs"], [-0.5, -0.5], at="None, then one, then one")
    (only,) = scene.merge(True, [with_some, without])["parts"]
    expect(only["logprobs"], [-0.5], at="one, then None")


def test_14_1_whole_outputs_replace(scene: Any, part: Any) -> None:
    """With aggregate=False an output holds all there is: the later one counts, by its index."""
    said = [
        {"parts": [part("On", [1]), part("x", [5], index=1)]},
        {"parts": [part("Once", [1, 2])]},
    ]
    merged = scene.merge(False, said)
    expect(texts(merged), {0: "Once", 1: "x"}, at="On, then Once")


def test_14_1_what_was_said_of_the_whole(scene: Any, part: Any) -> None:
    """Finished stays finished, an error stays, and the prompt's cached tokens do not shrink."""
    said = [
        {"parts": [part("a")], "cached": 16, "error": "why"},
        {"parts": [part("b")], "finished": True},
    ]
    merged = scene.merge(True, said)
    seen = (merged["finished"], merged["cached"], merged["error"])
    expect(seen, (True, 16, "why"), at="an output, then the last")
    merged = scene.merge(True, [said[1], said[0]])
    expect(merged["finished"], True, at="a late straggler does not open what is finished")
