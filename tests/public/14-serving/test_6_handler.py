"""Task 14.6: one task takes every step apart, and tells every request when it cannot."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_14_6_slices(scene: Any) -> None:
    """300 outputs are processed in slices of 128, in order, then the step is done."""
    seen = scene.handler([300])
    expect(
        seen["diary"],
        [["slice", 128], ["slice", 128], ["slice", 44], ["step done", 0]],
        at="300 outputs",
    )


def test_14_6_others_run_between(scene: Any) -> None:
    """Between two slices the other tasks of the loop get a turn."""
    expect(scene.handler([300])["shared"], [True] * 3, at="turns of a neighbour before each slice")


def test_14_6_no_turn_while_late(scene: Any) -> None:
    """While the next step waits already, no other task runs: what piles up is sent as one."""
    seen = scene.handler([300, 300], late=[0])
    expect(
        seen["shared"], [True, False, False] + [True] * 3, at="the first step is late, not the next"
    )


def test_14_6_every_step_is_counted(scene: Any) -> None:
    """Each message ends in one step_done, also one without outputs."""
    seen = scene.handler([1, 0, 128])
    expect(
        [line[1] for line in seen["diary"] if line[0] == "step done"], [0, 1, 2], at="three steps"
    )
    expect([line[1] for line in seen["diary"] if line[0] == "slice"], [1, 128], at="slices")


def test_14_6_a_dead_engine(scene: Any) -> None:
    """The engine says that it died: every reader is told just that, and the task ends."""
    seen = scene.handler([1], "dead")
    expect(seen["readers"], ["EngineDeadError: it fell"] * 2, at="two readers wait")
    expect(seen["task"], "None", at="the task returned")


def test_14_6_a_mistake_of_ours(scene: Any) -> None:
    """Whatever else goes wrong reaches every reader by name, and is raised on."""
    seen = scene.handler([1], "bug")
    for reader in seen["readers"]:
        for word in ("EngineGenerateError", "KeyError", "a mistake of ours"):
            expect(word in str(reader), True, at=f"{word!r} in what a reader is told", told=reader)
    expect(seen["task"], "KeyError: 'a mistake of ours'", at="how the task ended")


def test_14_6_being_cancelled_is_no_failure(scene: Any) -> None:
    """A shutdown cancels the task: no request is told of a failure."""
    seen = scene.handler([1], "cancel")
    expect(
        [seen["readers"], seen["task"]], [[None, None], "cancelled"], at="cancelled while it waits"
    )


def test_14_6_a_slice_is_counted_processed_delivered(scene: Any) -> None:
    """Each output is counted with the step's stamp; what changed goes to streams that are there."""
    seen = scene.slice_of_outputs([["a", [1]], ["b", [2]], ["a", [3]]])
    counted = [["counted", name, 2.5] for name in "aba"]
    rest = [["processed", ["a", "b", "a"]], ["delivered", "a"], ["delivered", "b"]]
    expect(seen["diary"], counted + rest, at="outputs of a, b and a")


def test_14_6_an_unknown_request_is_ignored(scene: Any) -> None:
    """An output may come for a request that was aborted while the step ran."""
    seen = scene.slice_of_outputs([["z", [1]], ["c", [2]]])
    expect(
        [line for line in seen["diary"] if line[0] == "delivered"],
        [],
        at="z is unknown, c has no stream any more",
    )


def test_14_6_a_stop_string_is_told_to_the_engine(scene: Any) -> None:
    """Only the front end sees a stop string: figures and engine are told, before the delivery."""
    seen = scene.slice_of_outputs([["a", [1]], ["b", [2]]], stopped=["b"])
    told = [line for line in seen["diary"] if line[0] in ("stopped", "abort", "delivered")]
    expect(sorted(told[:2]), [["abort", ["b"]], ["stopped", ["b"]]], at="b met its stop string")
    expect(told[2:], [["delivered", "a"], ["delivered", "b"]], at="and then")
    seen = scene.slice_of_outputs([["a", [1]]])
    expect([line for line in seen["diary"] if line[0] in ("stopped", "abort")], [], at="nobody has")
