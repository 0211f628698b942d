"""Change request 1: after eight refusals a request keeps others out."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_change_1_the_stream_is_held_back(lab: Any) -> None:
    """max_loras 1: b asks in every step; a new request of the running adapter is admitted eight
    times, then no more."""
    gate, running = lab.gate(1), [lab.request("a", "a0")]
    answers = []
    for step in range(1, 11):
        refused = gate.may_admit(lab.request("b", "b"), running)
        answers.append((refused, gate.may_admit(lab.request("a", f"a{step}"), running)))
    expect(answers, [(False, True)] * 7 + [(False, False)] * 3, at="(b, a) in steps 1 to 10")


def test_change_1_the_door_opens(lab: Any) -> None:
    """When the running requests have ended, b is admitted, and then the others again."""
    gate, running = lab.gate(1), [lab.request("a", "a0")]
    for _ in range(8):
        gate.may_admit(lab.request("b", "b"), running)
    expect(gate.may_admit(lab.request("b", "b"), []), True, at="nobody runs any more")
    running = [lab.request("b", "b")]
    expect(gate.may_admit(lab.request("b", "b2"), running), True, at="b runs; another one of b")


def test_change_1_the_base_passes(lab: Any) -> None:
    """A request without an adapter needs no slot, and no door."""
    gate, running = lab.gate(1), [lab.request("a", "a0")]
    for _ in range(9):
        gate.may_admit(lab.request("b", "b"), running)
    expect(gate.may_admit(lab.request(None, "plain"), running), True, at="b holds the door")
