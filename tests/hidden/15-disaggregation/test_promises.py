"""What the docstrings promise where random inputs seldom lead: a call that could evict its own
keys, a rename that fails, a store in which others sweep, copies of a block, what a block saves."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
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


def test_15_2_the_oldest_first_and_none_of_none(subject: Any) -> None:
    """None of none is no refusal; of four the two oldest go, named in that order."""
    p = Program()
    policy = p.new(f"{KV}offload_manager:LRUCachePolicy", 4)
    for place, letter in enumerate("abcd"):
        policy.insert(key(letter), p.new(f"{KV}offload_manager:BlockStatus", place, 0))
    p.see(p.call("builtins:list", policy.evict(0, [])))
    gone = policy.evict(2, [key("b")])
    p.see([gone[0][0], gone[1][0]])
    p.see([gone[0][1].block_id, gone[1][1].block_id])
    p.see(policy.evict(3, []))
    p.see(p.call("builtins:list", policy.blocks))
    kept = [key("b"), key("d")]
    asked = p.call("builtins:list", kept)
    policy.touch(asked)
    p.see(asked)
    p.see(p.call("builtins:list", policy.blocks))
    assert subject.run(p) == [[], [key("a"), key("c")], [0, 2], None, kept, kept, kept[::-1]]


@pytest.mark.parametrize("asked", ["ac", "ca", "aca"])
def test_15_3_a_requested_block_stays(subject: Any, asked: str) -> None:
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


def test_15_3_a_lookup_makes_no_block_younger(subject: Any) -> None:
    """a is the oldest, and goes, however often it was asked for."""
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 2)
    for letter in "ab":
        manager.prepare_store([key(letter)])
        manager.complete_store([key(letter)])
    p.see([manager.lookup(key(letter)) for letter in "bcaa"])
    p.see(manager.prepare_store([key("c")]).evicted_keys)
    assert subject.run(p) == [[True, False, True, True], [key("a")]]


@pytest.mark.parametrize("size", [4, 16])
def test_15_5_what_the_host_has(subject: Any, size: int) -> None:
    """Nothing, one block of five, two behind the device's two, and all that are left."""
    p = Program()
    config = p.new(
        "mini_vllm.config:KVTransferConfig", "OffloadingConnector", "kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 8}, engine_id="e",
    )  # fmt: skip
    context = p.new(f"{KV}base:ConnectorContext", NORTH, size, 1, 64)
    role = p.name(f"{KV}base:KVConnectorRole.SCHEDULER")
    request = p.new("mini_vllm.request:Request", "ada", list(range(5 * size)))
    p.set(request, "block_hashes", [key(letter) for letter in "abcde"])
    for there, num_computed in (("bcd", 0), ("acde", 0), ("acd", 2), ("abcde", 2)):
        connector = p.new(f"{KV}offloading:OffloadingConnector", config, role, context)
        for place, letter in enumerate(there):
            block = p.new(f"{KV}offload_manager:BlockStatus", place, 0)
            connector.manager.policy.insert(key(letter), block)
        p.see(connector.get_num_new_matched_tokens(request, size * num_computed))
    expected = [(0, False), (size, True), (2 * size, True), (3 * size, True)]
    assert subject.run(p) == expected


@pytest.mark.parametrize("loading", ["a", "c", "e", "x"])
def test_15_5_any_of_them_may_be_under_way(subject: Any, loading: str) -> None:
    """Five blocks are there; ben, not the only one to load, loads one of them behind another
    block, or none of them."""
    p = Program()
    config = p.new(
        "mini_vllm.config:KVTransferConfig", "OffloadingConnector", "kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 8}, engine_id="e",
    )  # fmt: skip
    context = p.new(f"{KV}base:ConnectorContext", NORTH, 4, 1, 64)
    role = p.name(f"{KV}base:KVConnectorRole.SCHEDULER")
    connector = p.new(f"{KV}offloading:OffloadingConnector", config, role, context)
    for place, letter in enumerate("abcde"):
        block = p.new(f"{KV}offload_manager:BlockStatus", place, 0)
        connector.manager.policy.insert(key(letter), block)
    under_way = {"cyd": [key("v")], "ben": [key("w"), key(loading)], "dan": [key("y")]}
    connector.loads.update({name: (keys, None) for name, keys in under_way.items()})
    request = p.new("mini_vllm.request:Request", "ada", list(range(20)))
    p.set(request, "block_hashes", [key(letter) for letter in "abcde"])
    p.see(connector.get_num_new_matched_tokens(request, 0))
    assert subject.run(p) == [(20, True) if loading == "x" else (None, False)]


def test_15_8_reports_that_come_one_at_a_time(subject: Any) -> None:
    """ben is held, ada is loading; both are named twice by an iterator, and ben is freed once. What
    is sent is not what it waits for."""
    p = Program()
    state = p.new(f"{KV}remote_kv:TransferState", p.call("builtins:set", ["ada"]))
    ben = p.new("mini_vllm.request:Request", "ben", [1, 2])
    state.held.update({"ben": (ben, p.call("builtins:set", ["recv"]))})
    for kind in ("send", "recv"):
        ids = p.call("builtins:iter", ["ben", "ada", "ben", "ada"])
        over = p.call(f"{KV}remote_kv:transfers_over", state, ids, kind)
        p.see_each(over, "request_id")
        p.see([p.call("builtins:sorted", state.held), state.arrived])
    assert subject.run(p) == [[], [["ben"], set()], ["ben"], [[], {"ada"}]]


def test_15_9_requests_that_come_one_at_a_time(subject: Any) -> None:
    """In their own order, which is not that of their names; holes in a frozenset, or in a list."""
    p = Program()
    requests = [p.new("mini_vllm.request:Request", name, [*range(9)]) for name in ("cyd", "ada")]
    for request in requests:
        p.set(request, "num_computed_tokens", 8)
    for holes in ([2, 7], p.call("builtins:frozenset", [7, 2])):
        found = p.call(
            f"{KV}remote_kv:find_rewinds", p.call("builtins:iter", requests), holes,
            {"ada": [1, 2], "cyd": [7, 8]}, {}, 4,
        )  # fmt: skip
        p.see(p.call("builtins:list", found.items()))
    assert subject.run(p) == [[("cyd", 0), ("ada", 4)]] * 2


def test_15_8_what_was_sent_has_not_arrived(subject: Any) -> None:
    """ada is loading: that something of it was sent is not what it waits for."""
    p = Program()
    state = p.new(f"{KV}remote_kv:TransferState", p.call("builtins:set", ["ada"]))
    for kind in ("send", "recv", "recv"):
        over = p.call(f"{KV}remote_kv:transfers_over", state, ["ada", "ben"], kind)
        p.see(p.call("builtins:len", over))
        p.see([state.loading, state.arrived])
    waits, arrived = [{"ada"}, set()], [{"ada"}, {"ada"}]
    assert subject.run(p) == [0, waits, 0, arrived, 0, arrived]


def test_15_3_blocks_that_come_one_at_a_time(subject: Any) -> None:
    """The keys that were written may come from an iterator, and one of them twice."""
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 3)
    manager.prepare_store([key(letter) for letter in "abc"])
    manager.complete_store(p.call("builtins:iter", [key("a"), key("a")]))
    manager.complete_store(p.call("builtins:iter", [key("b"), key("b")]), success=False)
    p.see([manager.lookup(key(letter)) for letter in "abc"])
    p.see(p.call("builtins:len", manager.free_ids))
    manager.check_integrity()
    assert subject.run(p) == [[True, False, None], 1]


def test_15_3_no_room_beside_the_requested_blocks(subject: Any) -> None:
    """Two places, both asked for, and a third key: there cannot be room, and nothing changes."""
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 2)
    manager.prepare_store([key("a"), key("b")])
    manager.complete_store([key("a"), key("b")])
    p.see(manager.prepare_store([key("a"), key("b"), key("c")]))
    p.see([manager.lookup(key(letter)) for letter in "abc"])
    assert subject.run(p) == [None, [True, True, False]]


@pytest.mark.parametrize("success", [True, False])
def test_15_3_a_written_block_is_left_alone(subject: Any, success: bool) -> None:
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


SAID = f"""
from inspect import signature
from types import SimpleNamespace
from unittest.mock import Mock

from {KV}remote_kv import RemoteKVCacheManager, TransferState
from {KV}scheduler import RemoteKVScheduler
from mini_vllm.request import Request

def said(method, mock):  # by place or by name, behind the request
    call = mock.call_args
    return list(signature(method).bind(None, *call.args, **call.kwargs).arguments.values())[2:]
"""


def test_15_6_no_room_for_a_load(subject: Any) -> None:
    """It is refused, and asked with all that the engine's rule needs; nothing else has moved."""
    p = Program()
    names = p.execute(
        SAID
        + """
told, left = [], []
for whole in (False, True):
    scheduler = RemoteKVScheduler.__new__(RemoteKVScheduler)
    manager = SimpleNamespace(
        allocate_for_load=Mock(return_value=None), prefix_cache_stats=Mock()
    )
    scheduler.kv_cache_manager = manager
    scheduler.scheduler_config = SimpleNamespace(scheduler_reserve_full_isl=whole)
    scheduler.transfers, scheduler.passed_over = TransferState(), []
    scheduler.has_started_loads = False
    request = Request("ada", list(range(9)))
    before = (request.status, request.num_computed_tokens, request.num_cached_tokens)
    answer = scheduler._start_load(None, request, "hits", 4, 3)
    told.append(said(RemoteKVCacheManager.allocate_for_load, manager.allocate_for_load))
    left.append([
        answer, before == (request.status, request.num_computed_tokens, request.num_cached_tokens),
        sorted(scheduler.transfers.loading), len(scheduler.passed_over),
        scheduler.has_started_loads, len(manager.prefix_cache_stats.mock_calls),
    ])
"""
    )
    p.see(names["told"])
    p.see(names["left"])
    told, left = subject.run(p)
    assert [list(args) for args in told] == [[3, 4, "hits", whole] for whole in (False, True)]
    assert left == [[False, True, [], 0, False, 0]] * 2


@pytest.mark.parametrize("num_prompt", [12, 13])
def test_15_6_hits_and_what_is_to_come(subject: Any, num_prompt: int) -> None:
    """8 tokens are here and 4 will come, the whole prompt or all but one: 12 count as computed, 8
    and 4 as found, nothing is charged, and the engine is told that loads have begun."""
    p = Program()
    names = p.execute(
        SAID
        + """
scheduler = RemoteKVScheduler.__new__(RemoteKVScheduler)
scheduler.kv_cache_manager = SimpleNamespace(allocate_for_load=Mock(return_value="blocks"))
scheduler.scheduler_config = SimpleNamespace(scheduler_reserve_full_isl=True)
scheduler.transfers, scheduler.has_started_loads = TransferState(), False
scheduler._count_cached = Mock()
others = Request("ben", [1])
scheduler.passed_over = [others]
step = SimpleNamespace(token_budget=20, num_scheduled_tokens={})
request = Request("ada", list(range(num_prompt)))
answer = scheduler._start_load(step, request, "hits", 8, 4)
told = [
    answer, request.num_computed_tokens,
    said(RemoteKVScheduler._count_cached, scheduler._count_cached),
    request.status.name, sorted(scheduler.transfers.loading),
    [other.request_id for other in scheduler.passed_over], scheduler.has_started_loads,
    step.token_budget, step.num_scheduled_tokens,
]
""",
        num_prompt=num_prompt,
    )
    p.see(names["told"])
    waits = ["WAITING_FOR_REMOTE_KVS", ["ada"], ["ben", "ada"]]
    assert subject.run(p) == [[True, 12, [8, 4], *waits, True, 20, {}]]


def test_15_10_what_is_counted(subject: Any) -> None:
    """A block that is there already, and one that cannot be stored, are not counted again; a view
    of bytes is counted and stored like bytes."""
    p = Program()
    names = p.execute(
        f"""
import tempfile
from unittest.mock import patch

from {KV}store import HEADER, BlockStore

store = BlockStore(tempfile.mkdtemp(), b"n" * 32, 10**6)
store.evict()
seen = []
for name, payload in ((key, bytes(100)), (key, bytes(100)), (other, memoryview(bytes(50)))):
    seen.append([store.put(name, payload), store.num_bytes])
with patch("os.replace", side_effect=OSError("no space left on device")):
    seen.append([store.put(b"c" * 32, bytes(70)), store.num_bytes])
back = [store.get(key), store.get(other)]
size = HEADER.size
""",
        key=key("a"),
        other=key("b"),
    )
    for name in ("seen", "back", "size"):
        p.see(names[name])
    seen, back, size = subject.run(p)
    one, both = 100 + size, 150 + 2 * size
    assert seen == [[True, one], [True, one], [True, both], [False, both]]
    assert back == [bytes(100), bytes(50)]


def test_15_10_what_cannot_be_read(subject: Any) -> None:
    """A folder stands where a block should be, or a file where its folder should: nothing is
    there, and nothing is raised."""
    p = Program()
    store, _ = new_store(p)
    first, second = (store.path_of(key(letter)) for letter in "ab")
    first.mkdir(parents=True)
    second.parent.write_bytes(b"")
    p.see([store.get(key("a")), store.get(key("b"))])
    p.see([store.put(key("c"), b"kv"), store.get(key("c"))])
    assert subject.run(p) == [[None, None], [True, b"kv"]]


def test_15_10_another_users_file(subject: Any) -> None:
    """A file that may be read and not be made young is sound; one that is not sound and may not be
    deleted is none."""
    p = Program()
    store, _ = new_store(p)
    names = p.execute(
        """
from unittest.mock import patch

store.put(key, b"kv")
with patch("os.utime", side_effect=PermissionError("not yours")):
    sound = store.get(key)
path = store.path_of(key)
path.write_bytes(path.read_bytes()[:-1])
with (
    patch("os.unlink", side_effect=PermissionError("not yours")),
    patch("os.remove", side_effect=PermissionError("not yours")),
    patch("pathlib.Path.unlink", side_effect=PermissionError("not yours")),
):
    cut_off = store.get(key)
""",
        store=store,
        key=key("a"),
    )
    p.see([names["sound"], names["cut_off"]])
    assert subject.run(p) == [[b"kv", None]]


def test_15_10_deleted_while_it_is_read(subject: Any) -> None:
    """What was read counts, and no empty file comes in the place of the one that has vanished."""
    p = Program()
    store, _ = new_store(p)
    names = p.execute(
        """
from unittest.mock import patch

def vanish(*_, **__):
    path.unlink()
    raise FileNotFoundError(str(path))

store.put(key, b"kv")
path = store.path_of(key)
with patch("os.utime", side_effect=vanish):
    payload = store.get(key)
is_there = path.exists()
""",
        store=store,
        key=key("a"),
    )
    p.see([names["payload"], names["is_there"]])
    assert subject.run(p) == [[b"kv", False]]


def test_15_10_no_checksum_and_a_longer_file(subject: Any) -> None:
    """A checksum of 0 is one like any other, and what stands behind the payload is not its end."""
    p = Program()
    names = p.execute(
        f"""
from {KV}store import HEADER, MAGIC, pack_entry, unpack_entry

owner = b"n" * 32
head, payload = pack_entry(owner, key, bytes(range(40)))
blank = HEADER.pack(MAGIC, owner, key, len(payload), 0)
entries = [head + payload, blank + payload, head + payload + b"x", head + payload + bytes(84)]
seen = [unpack_entry(owner, key, entry) == payload for entry in entries]
""",
        key=key("a"),
    )
    p.see(names["seen"])
    assert subject.run(p) == [[True, False, False, False]]


def test_15_10_a_disk_that_is_full(subject: Any) -> None:
    """It takes the first bytes and refuses the rest, or refuses the folder: nothing is stored,
    under no name."""
    p = Program()
    store, _ = new_store(p)
    names = p.execute(
        """
import resource
from unittest.mock import patch

limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
try:
    is_stored = store.put(key, bytes(5_000))
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
left = [path.name for path in store.folder.glob("*/*")]
with patch("os.mkdir", side_effect=OSError("no space left on device")):
    is_stored |= store.put(b"z" * 32, b"kv")
""",
        store=store,
        key=key("a"),
    )
    p.see([names["is_stored"], names["left"]])
    assert subject.run(p) == [[False, []]]


@pytest.mark.parametrize("place", [0, 7, 8, 15, 16, 31])
@pytest.mark.parametrize("part", [0, 1], ids=["another owner", "another block"])
def test_15_10_every_byte_of_owner_and_name(subject: Any, part: int, place: int) -> None:
    """An entry belongs to one owner and one block; one byte of either makes it another's."""
    p = Program()
    wanted = [NORTH, key("a")]
    entry = p.call("builtins:bytes.join", b"", p.call(f"{KV}store:pack_entry", *wanted, b"kv"))
    p.see(p.call(f"{KV}store:unpack_entry", *wanted, entry))
    other = bytearray(wanted[part])
    other[place] ^= 1
    wanted[part] = bytes(other)
    p.see(p.call(f"{KV}store:unpack_entry", *wanted, entry))
    assert subject.run(p) == [b"kv", None], "an entry of another owner was read"


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
    names = p.execute(
        """
from unittest.mock import patch

with patch("os.replace", side_effect=OSError("no space left on device")):
    is_stored = store.put(key, b"kv")
left = [path.name for path in store.folder.glob("*/*")]
""",
        store=store,
        key=key("a"),
    )
    p.see([names["is_stored"], names["left"], store.contains(key("a"))])
    p.see([store.put(key("a"), b"kv"), store.get(key("a"))])
    assert subject.run(p) == [[False, [], False], [True, b"kv"]]


def test_15_10_two_writers_at_once(subject: Any) -> None:
    """One is about to rename when another writes the same block, and a third one another block:
    each writes a file of its own, and all three are there."""
    p = Program()
    store, _ = new_store(p)
    names = p.execute(
        """
import os
from unittest.mock import patch

rename, told, waiting = os.replace, [], keys[1:]

def replace(source, target):
    if waiting:
        told.append(store.put(waiting.pop(0), b"kv"))
    rename(source, target)

with patch("os.replace", replace):
    told.append(store.put(keys[0], b"kv"))
left = sorted(path.suffix for path in store.folder.glob("*/*"))
""",
        store=store,
        keys=[key("a"), key("a"), key("b")],
    )
    p.see([names["told"], names["left"]])
    p.see([store.get(key(letter)) for letter in "ab"])
    assert subject.run(p) == [[[True] * 3, [".kv"] * 2], [b"kv"] * 2]


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


def test_15_11_by_the_nanosecond(subject: Any) -> None:
    """Written in the same second, the name of the youngest the first, and read in another order:
    when they were written decides, which reading renews."""
    p = Program()
    store, paths = new_store(p, "cba")
    for age, letter in enumerate("cba"):
        written = 10**18 + 1000 * age
        p.call("os:utime", paths[letter], ns=(10**18 - written, written))
    p.set(store, "max_bytes", 200)
    p.see(store.evict())
    p.see([paths[letter].exists() for letter in "abc"])
    assert subject.run(p) == [200, [True, True, False]]


def test_15_11_a_leftover_that_has_vanished(subject: Any) -> None:
    """Another engine has swept one of two in between: it is as good as deleted, and the other
    goes."""
    p = Program()
    store, paths = new_store(p, "ab")
    leftovers = [paths[letter].with_suffix(".tmp") for letter in "ab"]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
        p.call("os:utime", leftover, (1000, 1000))
    found = p.call("builtins:list", store._scan())
    leftovers[0].unlink()
    p.set(store, "_scan", p.new("unittest.mock:Mock", return_value=found))
    p.see(store.evict())
    p.see([path.exists() for path in (*paths.values(), *leftovers)])
    assert subject.run(p) == [200, [True, True, False, False]]


@pytest.mark.parametrize(("share", "is_left"), [(0.9, True), (1.1, False)])
def test_15_11_a_writer_has_its_time(subject: Any, share: float, is_left: bool) -> None:
    """An unfinished file is deleted when its writer is taken for dead, and not before, whenever it
    was read; it counts for nothing."""
    p = Program()
    names = p.execute(
        f"""
import os, tempfile, time
from {KV}store import STALE_SECONDS, BlockStore

store = BlockStore(tempfile.mkdtemp(), b"n" * 32, 10**6)
path = store.path_of(b"a" * 32).with_suffix(".tmp")
path.parent.mkdir()
path.write_bytes(bytes(100))
written, read = (time.time() - n * STALE_SECONDS for n in (share, 2.0 - share))
os.utime(path, (read, written))
left = store.evict()
""",
        share=share,
    )
    p.see([names["left"], names["path"].exists()])
    assert subject.run(p) == [[0, is_left]]


def test_15_11_counted_anew(subject: Any) -> None:
    """Others have deleted a file, and then written two, since it was counted last."""
    p = Program()
    store, paths = new_store(p, "abcde")
    for letter in "de":
        paths[letter].unlink()
    p.see([store.evict(), store.num_bytes])
    paths["a"].unlink()
    p.see([store.evict(), store.num_bytes])
    for letter in "de":
        paths[letter].write_bytes(bytes(100))
    p.see([store.evict(), store.num_bytes])
    assert subject.run(p) == [[300] * 2, [200] * 2, [400] * 2]


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


def test_15_14_events_that_come_one_at_a_time(subject: Any) -> None:
    """From an iterator: two blocks, then none, then one of them."""
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    events = [p.new(f"{KV}events:BlockStored", [key(a) for a in "ab"], None, [], 4)]
    events += [p.new(f"{KV}events:AllBlocksCleared")]
    events += [p.new(f"{KV}events:BlockStored", [key("a")], None, [], 4)]
    index.apply("north", p.call("builtins:iter", events))
    p.see(index.copies)
    p.see([index.score("north", [key("a"), key("b")]), index.score("north", [])])
    assert subject.run(p) == [{"north": {key("a"): 1}}, [1, 0]]


def test_15_14_one_worker_at_a_time(subject: Any) -> None:
    """What one is told of, loses or clears is nothing of the other's."""
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    for worker in ("north", "south"):
        index.apply(worker, [p.new(f"{KV}events:BlockStored", [key("a")], None, [], 4)])
    for event in (p.new(f"{KV}events:BlockRemoved", [key("a")]),
                  p.new(f"{KV}events:AllBlocksCleared")):  # fmt: skip
        index.apply("north", [event])
        p.see([index.score(worker, [key("a")]) for worker in ("north", "south")])
    assert subject.run(p) == [[0, 1]] * 2


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
    for kind in ("BlockStored", "BlockRemoved"):  # one event may name it twice
        more = (None, [], 4) if kind == "BlockStored" else ()
        index.apply("north", [p.new(f"{KV}events:{kind}", [key("a")] * 2, *more)])
        p.see(index.copies)
    left = [{"north": {key("a"): copies}} for copies in (3, 1)]
    assert subject.run(p) == [1, 1, 1, 0, 0, 1, *left]


def test_15_14_a_question_tells_nothing(subject: Any) -> None:
    """A lookup of a worker that has told nothing finds nothing, and leaves no worker behind."""
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
        ([0, 5], [0, 99], 20, 1),
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
    p.refuse("ValueError", p.name(f"{KV}layout:scatter_blocks"), blocks, layers, [0, 1])
    for layer in layers:
        p.see(layer.sum().item())
    assert subject.run(p) == [0, 0]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_15_4_bits_stay_bits(subject: Any, reference: Any, kind: str) -> None:
    """A cache in any dtype: what leaves has it, and comes back bit for bit, NaN included."""
    p = Program()
    names = p.execute(
        f"""
import torch
from {KV}layout import gather_blocks, scatter_blocks

dtype = getattr(torch, kind)
size = torch.empty(0, dtype=dtype).element_size()
torch.manual_seed(1)
raw = [torch.randint(-128, 128, (2, 3, 2, 1, 4 * size), dtype=torch.int8) for _ in range(2)]
layers = [r.clone().view(dtype) for r in raw]
blocks = gather_blocks(layers, [2, 0])
before = blocks.clone().view(torch.int8)
back = [torch.zeros_like(layer) for layer in layers]
scatter_blocks(blocks, back, [2, 0])
told = [before, blocks.view(torch.int8), *(layer.view(torch.int8) for layer in back)]
""",
        kind=kind,
    )
    p.see(p.call("builtins:str", names["blocks"].dtype))
    p.see(names["told"])
    (dtype, told), (right_dtype, right) = subject.run(p), reference.run(p)
    assert dtype == right_dtype and len(told) == len(right)
    assert all(map(np.array_equal, told, right)), "back bit for bit, and the blocks left alone"


@pytest.mark.parametrize("hours", [1, -1])
def test_15_13_on_the_clock_of_its_deadline(subject: Any, hours: int) -> None:
    """A lease that ends in an hour of the monotonic clock is good, one that ended then is not."""
    p = Program()
    names = p.execute(
        f"""
import time
from {KV}leases import Lease, Leases
from {KV}wire import Question

table = Leases("north", b"n" * 32, 10.0)
table.leases["ada"] = Lease("a", [4], time.monotonic() + 3600.0 * hours)
try:
    table._check(Question("read", "north", "ada", "a", b"n" * 32, [4]))
    is_refused = False
except ValueError:
    is_refused = True
left = sorted(table.leases)
""",
        hours=hours,
    )
    p.see([names["is_refused"], names["left"]])
    assert subject.run(p) == [[hours < 0, ["ada"]]]


@pytest.mark.parametrize("deadline", [99.0, 100.0, 101.0])
def test_15_13_at_its_deadline_and_a_moment_before(subject: Any, deadline: float) -> None:
    """The clock says 100: a lease that ends then is over, and of four blocks the third may be the
    wrong one."""
    p = Program()
    names = p.execute(
        f"""
from unittest.mock import patch
from {KV}leases import Lease, Leases
from {KV}wire import Question

table, told = Leases("north", b"n" * 32, 10.0), []
table.leases["ada"] = Lease("a", [4, 5, 6], deadline)
with patch("time.monotonic", return_value=100.0):
    for blocks in ([4, 5, 6], [4, 5, 9, 6]):
        try:
            table._check(Question("read", "north", "ada", "a", b"n" * 32, blocks))
            told.append("in")
        except ValueError:
            told.append("refused")
""",
        deadline=deadline,
    )
    p.see(names["told"])
    assert subject.run(p) == [["in" if deadline > 100 else "refused", "refused"]]


@pytest.mark.parametrize(
    ("lease", "deadline", "block_id"),
    [("lease-0", None, 4), ("the-key", 0.0, 4), ("the-key", None, 9)],
    ids=["another lease", "too late", "another block"],
)
def test_15_13_a_refusal_gives_no_key(
    subject: Any, lease: str, deadline: float | None, block_id: int
) -> None:
    """What refuses a question is sent to the one that asked: it says no name of a lease."""
    p = Program()
    names = p.execute(
        f"""
from {KV}leases import Lease, Leases
from {KV}wire import Question

table = Leases("north", b"n" * 32, 10.0)
table.leases["ada"] = Lease("the-key", [4], deadline)
table.leases["ben"] = Lease("bens-key", [9], None)
try:
    table._check(Question("read", "north", "ada", lease, b"n" * 32, [block_id]))
    said = "nothing was refused"
except ValueError as error:
    said = str(error).replace(lease, "")
leaks = [name for name in ("the-key", "bens-key") if name in said]
""",
        lease=lease,
        deadline=deadline,
        block_id=block_id,
    )
    p.see([names["said"], names["leaks"]])
    ((said, leaks),) = subject.run(p)
    assert said != "nothing was refused" and leaks == []


def test_15_13_under_the_lock(subject: Any) -> None:
    """The server's thread reads the table, and the engine's takes out of it."""
    p = Program()
    table = p.new(f"{KV}leases:Leases", "north", NORTH, 10.0)
    table.leases.update({"ben": p.new(f"{KV}leases:Lease", "b", [4], 5.0)})
    lock = p.new("unittest.mock:MagicMock")
    p.set(table, "_lock", lock)
    p.see(table.take_ended(9.0))
    p.see(p.call("builtins:bool", lock.mock_calls))
    assert subject.run(p) == [{"ben"}, True]


def test_15_13_what_is_released_is_held_until_it_is_taken(subject: Any) -> None:
    """One of ada's readers has let go. Others may read on, until the engine takes the blocks."""
    p = Program()
    names = p.execute(f"""
import time
from {KV}leases import Lease, Leases
from {KV}wire import Question

table = Leases("north", b"n" * 32, 10.0)
table.leases["ada"] = Lease("a", [4])
question, told = Question("read", "north", "ada", "a", b"n" * 32, [4]), []

def ask():
    try:
        with table.reading(question):
            told.append("read")
    except ValueError:
        told.append("refused")

table.release(question)
ask()
table.leases["ada"].deadline = time.monotonic() + 1000.0
ask()
told.append(sorted(table.take_ended(time.monotonic())))
ask()
""")
    p.see(names["told"])
    assert subject.run(p) == [["read", "read", ["ada"], "refused"]]


def test_15_13_a_release_waits_for_its_request(subject: Any) -> None:
    """ada's reader has let go while ada runs: that counts once ada has ended, and not before."""
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
