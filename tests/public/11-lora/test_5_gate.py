"""Task 11.5: the gate: admit a request if its adapter can have a slot."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def ask(lab: Any, name: str | None, running: list[str | None], max_loras: int, *pinned: str) -> Any:
    requests = [lab.request(other, f"r{i}") for i, other in enumerate(running)]
    return lab.gate(max_loras, *pinned).may_admit(lab.request(name, "new"), requests)


def test_11_5_a_slot_is_left(lab: Any) -> None:
    """An adapter may come while there are fewer than max_loras."""
    expect(ask(lab, "pirate", [], 1), True, at="nobody runs, max_loras 1")
    expect(ask(lab, "pirate", ["json"], 2), True, at="json runs, max_loras 2")


def test_11_5_all_slots_are_taken(lab: Any) -> None:
    """A further adapter must wait."""
    expect(ask(lab, "pirate", ["json"], 1), False, at="json runs, max_loras 1")
    expect(ask(lab, "pirate", ["json", "polite"], 2), False, at="json and polite run, max_loras 2")


def test_11_5_adapters_are_counted_not_requests(lab: Any) -> None:
    """Three requests with one adapter hold one slot."""
    expect(ask(lab, "pirate", ["json"] * 3, 2), True, at="three times json, max_loras 2")


def test_11_5_a_request_whose_adapter_has_a_slot_may_come(lab: Any) -> None:
    """A request whose adapter is running needs no further slot."""
    expect(ask(lab, "json", ["polite", "json"], 2), True, at="json, beside polite and json")


def test_11_5_the_base_may_always_come(lab: Any) -> None:
    """A request without an adapter needs no slot."""
    expect(ask(lab, None, ["json", "polite"], 2), True, at="the base, all slots taken")


def test_11_5_the_base_takes_no_slot(lab: Any) -> None:
    """Running requests without an adapter are not counted."""
    expect(ask(lab, "json", [None, None], 1), True, at="json, beside two of the base; max_loras 1")


def test_11_5_pinned_adapters_hold_a_slot(lab: Any) -> None:
    """A pinned adapter holds its slot though no request runs with it."""
    expect(ask(lab, "json", [], 1, "pirate"), False, at="pirate is pinned, max_loras 1")
    expect(ask(lab, "pirate", [], 1, "pirate"), True, at="pirate itself may come")
    expect(ask(lab, "json", ["pirate"], 2, "pirate"), True, at="pirate is pinned and runs")


def test_11_5_asking_changes_nothing(lab: Any) -> None:
    """The gate only answers: it may be asked again and again."""
    gate = lab.gate(2, "pirate")
    answers = [gate.may_admit(lab.request(n), []) for n in ("json", "polite", "json")]
    expect(answers, [True, True, True], at="pirate is pinned, nobody runs, max_loras 2")
    expect(gate.pinned, {"pirate"}, at="the pinned adapters, afterwards")
