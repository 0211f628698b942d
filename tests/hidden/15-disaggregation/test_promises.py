"""What the docstrings promise where random inputs seldom lead: a call that could evict its own
keys, a rename that fails, a store in which others sweep, copies of a block, what a block saves."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from labkit.process.worker import Program

KV = "mini_vllm.kv_transfer."
NORTH = b"n" * 32


def key(letter: str) -> bytes:
    return letter.encode() * 32


def new_store(p: Program, letters: str = "") -> tuple[Any, dict[str, Any]]:
    """A store, and the paths of finished files of 100 bytes, the first the oldest."""
    store = p.new(f"{KV}store:BlockStore", p.call("tempfile:mkdtemp"), NORTH)
    paths = {letter: store.path_of(key(letter)) for letter in letters}
    for age, path in enumerate(paths.values()):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        p.call("os:utime", path, (1000 + age, 1000 + age))
    return store, paths


@pytest.mark.parametrize("asked", ["ac", "ca", "aca"])
def test_15_3_who_is_asked_for_stays(subject: Any, asked: str) -> None:
    """Two places, a older than b, and a wanted beside the new c: b goes, wherever a stands."""
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 2)
    for letter in "ab":
        manager.prepare_store([key(letter)])
        manager.complete_store([key(letter)])
    place = manager.prepare_store([key(letter) for letter in asked])
    p.see([place.keys_to_store, place.evicted_keys])
    p.see([manager.lookup(key(letter)) for letter in "abc"])
    assert subject.run(p) == [[[key("c")], [key("b")]], [True, False, None]]


def test_15_3_no_room_beside_who_is_asked_for(subject: Any) -> None:
    """Two places, both asked for, and a third key: there cannot be room, and nothing changes."""
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 2)
    manager.prepare_store([key("a"), key("b")])
    manager.complete_store([key("a"), key("b")])
    p.see(manager.prepare_store([key("a"), key("b"), key("c")]))
    p.see([manager.lookup(key(letter)) for letter in "abc"])
    assert subject.run(p) == [None, [True, True, False]]


@pytest.mark.parametrize("success", [True, False])
def test_15_3_who_has_been_written_is_left_alone(subject: Any, success: bool) -> None:
    """Two ready blocks, a being read: whatever is said of writing them again changes nothing."""
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 2)
    manager.prepare_store([key("a"), key("b")])
    manager.complete_store([key("a"), key("b")])
    manager.prepare_load([key("a")])
    manager.complete_store([key("a"), key("b"), key("x")], success=success)
    p.see([manager.lookup(key(letter)) for letter in "abx"])
    p.see(manager.prepare_store([key("c"), key("d")]))
    p.see(manager.prepare_store([key("c")]).evicted_keys)
    assert subject.run(p) == [[True, True, False], None, [key("b")]]


def test_15_10_every_block_counts(subject: Any) -> None:
    """There is room for two blocks: with the third, one of them is one too many."""
    p = Program()
    store = p.new(f"{KV}store:BlockStore", p.call("tempfile:mkdtemp"), NORTH, 2500)
    for letter in "abcd":
        p.see(store.put(key(letter), bytes(1000)))
        p.see(p.call("builtins:len", p.call("builtins:list", store._scan())))
    assert subject.run(p) == [True, 1, True, 2, True, 2, True, 2]


def test_15_10_a_rename_that_fails(subject: Any) -> None:
    """What cannot be renamed is not stored, under no name, and the next try is as good as new."""
    p = Program()
    store, _ = new_store(p)
    names = p.new("builtins:dict")
    names.update({"store": store, "key": key("a")})
    p.call(
        "builtins:exec",
        """
from unittest.mock import patch

with patch("os.replace", side_effect=OSError("no space left on device")):
    is_stored = store.put(key, b"kv")
left = [path.name for path in store.folder.glob("*/*")]
""",
        names,
    )
    p.see([names["is_stored"], names["left"], store.contains(key("a"))])
    p.see([store.put(key("a"), b"kv"), store.get(key("a"))])
    assert subject.run(p) == [[False, [], False], [True, b"kv"]]


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
@pytest.mark.parametrize(("max_bytes", "left"), [(299, "bc"), (199, "c"), (99, ""), (0, "")])
def test_15_11_the_oldest_go_however_they_are_found(
    subject: Any, order: tuple[str, ...], max_bytes: int, left: str
) -> None:
    """Three files of 100 bytes, a the oldest, which a folder may list in any order."""
    p = Program()
    store, paths = new_store(p, "abc")
    found = [(paths[letter], paths[letter].stat()) for letter in order]
    p.set(store, "_scan", p.new("unittest.mock:Mock", return_value=found))
    p.set(store, "max_bytes", max_bytes)
    p.see([store.evict(), store.num_bytes])
    p.see([path.exists() for path in paths.values()])
    assert subject.run(p) == [[100 * len(left)] * 2, [letter in left for letter in "abc"]]


def test_15_11_vanished_since_it_was_counted(subject: Any) -> None:
    """Another engine has deleted the oldest file in between: it is as good as deleted."""
    p = Program()
    store, paths = new_store(p, "abc")
    found = p.call("builtins:list", store._scan())
    paths["a"].unlink()
    p.set(store, "_scan", p.new("unittest.mock:Mock", return_value=found))
    p.set(store, "max_bytes", 200)
    p.see(store.evict())
    p.see([path.exists() for path in paths.values()])
    assert subject.run(p) == [200, [False, True, True]]


def test_15_14_one_copy_after_the_other(subject: Any) -> None:
    """Told of twice, removed three times, told of again; each removal takes one copy."""
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    for kind in ("stored", "stored", "removed", "removed", "removed", "stored"):
        if kind == "stored":
            event = p.new(f"{KV}events:BlockStored", [key("a")], None, [], 4)
        else:
            event = p.new(f"{KV}events:BlockRemoved", [key("a")])
        index.apply("north", [event])
        p.see(index.score("north", [key("a")]))
    assert subject.run(p) == [1, 1, 1, 0, 0, 1]


def test_15_14_a_question_tells_nothing(subject: Any) -> None:
    """Who asks about a worker that has told nothing finds nothing, and leaves no worker behind."""
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    index.apply("north", [p.new(f"{KV}events:BlockStored", [key("a")], None, [], 4)])
    p.see([index.score(worker, [key("a"), key("b")]) for worker in ("north", "south")])
    p.see(index.copies)
    assert subject.run(p) == [[1, 0], {"north": {key("a"): 1}}]


@pytest.mark.parametrize(
    ("scores", "queued", "block_size", "chosen"),
    [
        ([4, 0], [63, 0], 16, 0),
        ([4, 0], [64, 0], 16, 0),
        ([4, 0], [65, 0], 16, 1),
        ([0, 2], [0, 31], 16, 1),
        ([0, 2], [0, 33], 16, 0),
        ([3, 1], [5, 0], 1, 1),
        ([1, 3], [0, 1], 1, 1),
    ],
)
def test_15_14_what_a_block_saves(
    subject: Any, scores: list[int], queued: list[int], block_size: int, chosen: int
) -> None:
    """A block saves `block_size` tokens of 100, neither less nor more; of equals the first."""
    p = Program()
    p.see(p.call(f"{KV}routing:choose_worker", scores, queued, 100, block_size))
    assert subject.run(p) == [chosen]


@pytest.mark.parametrize("count", [1, 3])
def test_15_4_one_block_for_each_id(subject: Any, count: int) -> None:
    """Too few or too many blocks for two ids are refused, and nothing is written."""
    p = Program()
    layers = [p.call("torch:zeros", 2, 4, 1, 1, 1) for _ in range(2)]
    blocks = p.call("torch:ones", count, 2, 2, 1, 1, 1)
    refused = p.name("builtins:ValueError")
    scatter = p.name(f"{KV}layout:scatter_blocks")
    p.new("unittest:TestCase").assertRaises(refused, scatter, blocks, layers, [0, 1])
    for layer in layers:
        p.see(layer.sum().item())
    assert subject.run(p) == [0, 0]


def test_15_13_a_release_waits_for_its_request(subject: Any) -> None:
    """ada's reader has let go while she runs: that counts once she has ended, and not before."""
    p = Program()
    table = p.new(f"{KV}leases:Leases", "north", NORTH, 10.0)
    ada, ben = (p.new(f"{KV}leases:Lease", name, [4], d) for name, d in (("a", None), ("b", 5.0)))
    table.leases.update({"ada": ada, "ben": ben})
    table.released.update(["ada", "ben"])
    p.see(table.take_ended(1.0))
    p.set(ada, "deadline", 50.0)
    p.see(table.take_ended(2.0))
    p.see(p.call("builtins:len", table.released))
    assert subject.run(p) == [{"ben"}, {"ada"}, 0]
