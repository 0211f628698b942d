"""Change request 1: as much as fits."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.kv_transfer.offload_manager import CPUOffloadingManager


def keys(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def test_change_1_the_beginning() -> None:
    """Room for three of five."""
    found = CPUOffloadingManager(3).prepare_store(keys("abcde"))
    expect(found and found.keys_to_store, keys("abc"), at="3 places, 5 new blocks a b c d e")


def test_change_1_what_may_not_go_stays() -> None:
    """Blocks that are being written cannot be evicted."""
    tier = CPUOffloadingManager(3)
    tier.prepare_store(keys("xy"))
    found = tier.prepare_store(keys("abc"))
    expect(found and found.keys_to_store, keys("a"), at="x and y are being written; a b c come")
    expect(tier.prepare_store(keys("d")), None, at="no place, and nobody may go")
