"""Task 11.4: which adapters stay in memory, and which have a slot."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect

DISK = ("pirate", "json", "polite", "french-small")


def shelf(lab: Any, max_loras: int = 2, max_cpu_loras: int = 3, added: Any = DISK[:3]) -> Any:
    manager = lab.Shelf(max_loras, max_cpu_loras, DISK)
    for key in added:
        manager.add_adapter(key, f"/{key}")
    manager.log.clear()
    return manager


def test_11_4_an_adapter_is_loaded_once(lab: Any) -> None:
    """Host memory: an adapter that is there already is not read again."""
    manager = shelf(lab, added=["pirate", "pirate", "pirate"])
    expect(manager.num_loads, 1, at="pirate was added three times")
    expect(manager.paths, {"pirate": "/pirate"}, at="where it can be read again")


def test_11_4_the_least_recently_used_goes(lab: Any) -> None:
    """Host memory: the fourth adapter throws out the one that was used longest ago."""
    manager = shelf(lab)
    manager.add_adapter("pirate", "/pirate")
    manager.add_adapter("french-small", "/french-small")
    kept = ["polite", "pirate", "french-small"]
    expect(list(manager.cpu_cache), kept, at="pirate was asked for again, so json is the oldest")


def test_11_4_load_before_an_adapter_is_evicted(lab: Any) -> None:
    """Host memory: an adapter that cannot be loaded costs no other its place."""
    manager = shelf(lab)
    with pytest.raises(ValueError, match="there is no adapter"):
        manager.add_adapter("broken", "/broken")
    expect(list(manager.cpu_cache), list(DISK[:3]), at="a broken adapter was added")
    expect(sorted(manager.paths), sorted(DISK[:3]), at="paths")
    manager.add_adapter("french-small", "/f")
    expect(manager.log, ["load french-small", "remove pirate"], at="the order of a good one")


def test_11_4_the_new_one_never_goes(lab: Any) -> None:
    """Host memory: if all others must stay, there is one more than wanted for a while."""
    manager = shelf(lab, max_cpu_loras=2, added=["pirate", "json"])
    manager.pinned.add("pirate")
    manager.add_adapter("polite", "/polite", keep=["json"])
    at = "pirate is pinned, json is to be kept"
    expect(list(manager.cpu_cache), ["pirate", "json", "polite"], at=at)
    manager.add_adapter("french-small", "/f")
    at = "json need not be kept any longer"
    expect(list(manager.cpu_cache), ["pirate", "french-small"], at=at)


def test_11_4_an_empty_slot_first(lab: Any) -> None:
    """Slots: the first empty one, before an adapter is evicted."""
    manager = shelf(lab)
    expect(manager._choose_slot([]), 0, at="two empty slots")
    expect(manager.activate("pirate", ["pirate"]), 0, at="pirate is activated")
    expect(manager._choose_slot([]), 1, at="slot 1 is empty")
    manager.remove_adapter("pirate")
    manager.activate("json", [])
    expect(manager.slots, ["json", None], at="pirate left slot 0, json came")


def test_11_4_the_oldest_slot_goes(lab: Any) -> None:
    """Slots: the adapter that was used least recently makes room."""
    manager = shelf(lab)
    for key in ("pirate", "json", "pirate"):
        manager.activate(key, [key])
    expect(manager.activate("polite", ["polite"]), 1, at="json is older than pirate")
    expect(manager.slots, ["pirate", "polite"], at="slots")
    expect(list(manager.last_used), ["pirate", "polite"], at="oldest first")


def test_11_4_whom_the_step_needs_stays(lab: Any) -> None:
    """Slots: the oldest may be one that this very step needs."""
    manager = shelf(lab)
    manager.activate("pirate", ["pirate"])
    manager.activate("json", ["json"])
    expect(manager.activate("polite", ["polite", "pirate"]), 1, at="polite and pirate are needed")
    expect(manager.slots, ["pirate", "polite"], at="slots")


def test_11_4_pinned_adapters_stay(lab: Any) -> None:
    """Slots: a pinned adapter keeps its slot; if none may go, the answer is None."""
    manager = shelf(lab)
    manager.activate("pirate", [])
    manager.activate("json", [])
    manager.pinned = {"pirate"}
    expect(manager._choose_slot([]), 1, at="pirate is pinned")
    manager.pinned = {"pirate", "json"}
    expect(manager.activate("polite", ["polite"]), None, at="both are pinned")
    expect(manager.slots, ["pirate", "json"], at="slots, unchanged")
    expect(list(manager.last_used), ["pirate", "json"], at="polite has no slot")


def test_11_4_a_slot_is_written_once(lab: Any) -> None:
    """An adapter that has a slot is not copied again."""
    manager = shelf(lab)
    for _ in range(3):
        expect(manager.activate("json", ["json"]), 0, at="the slot of json")
    expect(manager.num_activations, 1, at="copies into slots")
    for layer in manager.layers.values():
        layer.lora_a.fill_(9.0)  # the next adapter of the slot writes over it
    manager.activate("json", ["json"])
    expect([manager.held(name)[0] for name in ("first", "second")], [9.0, 9.0], at="slot 0")


def test_11_4_every_layer_of_the_slot_is_written(lab: Any) -> None:
    """What the adapter before had in a layer that this one lacks is gone."""
    manager = shelf(lab, max_loras=1)
    manager.activate("json", [])
    expect(manager.held("second"), [2.0], at="json in the second layer")
    manager.add_adapter("french-small", "/f")
    manager.activate("french-small", [])
    expect(manager.held("first"), [4.0], at="french, in the first layer")
    expect(manager.held("second"), [0.0], at="french has nothing in the second layer")
    expect(manager.slots, ["french-small"], at="slots")
