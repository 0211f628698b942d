"""The tier's bookkeeping: states in between, the order of eviction, all or nothing."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from mini_vllm.kv_transfer.offload_manager import (
    ARCCachePolicy,
    BlockStatus,
    CPUOffloadingManager,
    LRUCachePolicy,
)

KEYS = [bytes([number]) for number in range(20)]


def store(manager: CPUOffloadingManager, keys: list[bytes]) -> None:
    assert manager.prepare_store(keys) is not None
    manager.complete_store(keys)


def test_what_is_written_is_neither_found_nor_missing() -> None:
    manager = CPUOffloadingManager(4)
    assert manager.lookup(KEYS[0]) is False
    place = manager.prepare_store(KEYS[:2])
    assert place is not None and len(set(place.block_ids)) == 2
    assert manager.lookup(KEYS[0]) is None
    manager.complete_store(KEYS[:1])
    manager.complete_store(KEYS[1:2], success=False)
    assert [manager.lookup(key) for key in KEYS[:2]] == [True, False]
    manager.check_integrity()


def test_keys_that_are_read_written_or_requested_are_not_evicted() -> None:
    manager = CPUOffloadingManager(3)
    store(manager, KEYS[:3])
    manager.prepare_load(KEYS[:1])
    place = manager.prepare_store([KEYS[1], KEYS[5]])
    assert place is not None
    assert (place.keys_to_store, place.evicted_keys) == ([KEYS[5]], [KEYS[2]])
    assert manager.prepare_store([KEYS[6], KEYS[7]]) is None, "only one may go"
    assert manager.lookup(KEYS[1]) is True, "nothing has changed"
    manager.complete_load(KEYS[:1])
    assert manager.prepare_store([KEYS[6], KEYS[7]]) is not None
    manager.check_integrity()


def test_a_touched_prompt_keeps_its_beginning_longest() -> None:
    manager = CPUOffloadingManager(3)
    store(manager, KEYS[:3])
    manager.touch(KEYS[:3])
    place = manager.prepare_store(KEYS[3:5])
    assert place is not None and place.evicted_keys == [KEYS[2], KEYS[1]]


def test_a_key_twice_takes_one_place() -> None:
    manager = CPUOffloadingManager(2)
    place = manager.prepare_store([KEYS[0], KEYS[0]])
    assert place is not None and place.keys_to_store == [KEYS[0]]
    manager.check_integrity()


@pytest.mark.parametrize("seed", range(20))
def test_lru_is_an_ordered_dict(seed: int) -> None:
    rng, manager = Random(seed), CPUOffloadingManager(8)
    model: OrderedDict[bytes, None] = OrderedDict()
    for _ in range(200):
        keys = [rng.choice(KEYS) for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.4:
            manager.touch(keys)
            for key in reversed(keys):
                if key in model:
                    model.move_to_end(key)
            continue
        new = [key for key in dict.fromkeys(keys) if key not in model]
        evicted = []
        for key in list(model):
            if len(model) - len(evicted) + len(new) <= 8:
                break
            if key not in keys:
                evicted.append(key)
        place = manager.prepare_store(keys)
        assert place is not None and place.evicted_keys == evicted
        for key in evicted:
            del model[key]
        model.update(dict.fromkeys(new))
        manager.complete_store(place.keys_to_store)
        manager.check_integrity()
        assert [key for key in KEYS if manager.lookup(key)] == sorted(model)


def hits(policy: str, scan: bool) -> int:
    """Prompts of a conversation that is gone back to, with or without a scan in between."""
    manager, found = CPUOffloadingManager(8, policy), 0
    for turn in range(12):
        conversation = KEYS[:4]
        found += sum(manager.lookup(key) is True for key in conversation)
        manager.touch(conversation)
        if manager.prepare_store(conversation):
            manager.complete_store(conversation)
        others = [b"scan%d" % (turn * 8 + i) for i in range(8 if scan else 2)]
        if manager.prepare_store(others):
            manager.complete_store(others)
    return found


def test_a_scan_empties_lru_and_not_arc() -> None:
    assert hits("lru", scan=False) == hits("arc", scan=False) == 44
    assert hits("lru", scan=True) < hits("arc", scan=True)


def test_arc_moves_its_target_by_what_is_asked_for_too_late() -> None:
    policy = ARCCachePolicy(4)
    for key in KEYS[:4]:
        policy.insert(key, BlockStatus(0, ref_cnt=0))
    assert policy.evict(1, ()) is not None
    assert policy.target == 0
    policy.touch([KEYS[0]])
    assert policy.target == 1


def test_eviction_is_all_or_nothing() -> None:
    for policy in (LRUCachePolicy(4), ARCCachePolicy(4)):
        policy.insert(KEYS[0], BlockStatus(0, ref_cnt=0))
        policy.insert(KEYS[1], BlockStatus(1, ref_cnt=1))
        assert policy.evict(2, ()) is None
        assert len(policy) == 2
