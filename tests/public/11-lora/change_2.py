"""Change request 2: host memory has a limit in bytes."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect

BYTES = {"a": 40, "b": 40, "c": 10, "d": 30, "huge": 400}


def shelf(lab: Any, limit: int | None, max_cpu_loras: int = 4) -> Any:
    """A manager whose adapters are as large as BYTES says."""

    class Weighed(lab.Shelf):  # type: ignore[misc]
        def _load(self, key: str, path: str) -> Any:
            adapter = super()._load(key, path)
            size = BYTES[key]
            return type("Sized", (), {"weights": adapter.weights, "num_bytes": size})()

    manager = Weighed(2, max_cpu_loras, BYTES)
    manager.max_cpu_bytes = limit
    return manager


def test_change_2_bytes_count(lab: Any) -> None:
    """a, b, c have 90 of 100 bytes; d needs 30, so the oldest goes."""
    manager = shelf(lab, 100)
    for key in "abcd":
        manager.add_adapter(key, f"/{key}")
    expect(list(manager.cpu_cache), ["b", "c", "d"], at="40 + 40 + 10 + 30 bytes, at most 100")


def test_change_2_the_number_counts_too(lab: Any) -> None:
    """Room for two adapters: bytes would allow three."""
    manager = shelf(lab, 100, max_cpu_loras=2)
    for key in "abc":
        manager.add_adapter(key, f"/{key}")
    expect(list(manager.cpu_cache), ["b", "c"], at="max_cpu_loras 2, 90 bytes of 100")


def test_change_2_without_a_limit(lab: Any) -> None:
    """None: as before."""
    manager = shelf(lab, None)
    for key in "abcd":
        manager.add_adapter(key, f"/{key}")
    expect(list(manager.cpu_cache), list("abcd"), at="max_cpu_bytes None")


def test_change_2_the_newest_stays(lab: Any) -> None:
    """An adapter above the limit throws out all others, and is kept."""
    manager = shelf(lab, 100)
    for key in ("a", "c", "huge"):
        manager.add_adapter(key, f"/{key}")
    expect(list(manager.cpu_cache), ["huge"], at="400 bytes, at most 100")
