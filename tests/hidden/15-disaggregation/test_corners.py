"""Where a wrong answer was seen to get full points: age, half a checksum, half a name, and counts
of steps."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.process.worker import Program

TIER = """
from labkit.inside.cost import steps
from mini_vllm.kv_transfer.offload_manager import BlockStatus, CPUOffloadingManager, LRUCachePolicy

def tier(size, stored):
    manager = CPUOffloadingManager(size)
    for name in stored:
        manager.policy.insert(name, BlockStatus(manager.free_ids.pop(), 0))
    return manager
"""


def told(subject: Any, code: str, **given: Any) -> Any:
    """`seen`, as a piece of code that the worker runs leaves it."""
    p = Program()
    names = p.execute(code, **given)
    p.see(names["seen"])
    (seen,) = subject.run(p)
    return seen


def test_15_1_hardly_faster(subject: Any) -> None:
    """A link that is faster by a thousandth, and an engine that computes a million tokens a second:
    a token gains a billionth of a second, and enough of them pay."""
    p = Program()
    p.see(p.call("mini_vllm.kv_transfer.economics:break_even_tokens", 1000, 1.001e9, 1e6, 1e-3))
    (found,) = subject.run(p)
    assert abs(found - 1_001_000) < 10


def test_15_2_once_through_all(subject: Any) -> None:
    """Of 300 blocks 150 go, and of 600 twice as many, in twice as many steps."""
    few, many = told(
        subject,
        TIER
        + """
seen = []
for size in (300, 600):
    policy = LRUCachePolicy(size)
    for number in range(size):
        policy.insert(number.to_bytes(32, "big"), BlockStatus(number, number % 2 - 1))
    seen.append(steps(policy.evict, size // 2, ()))
""",
    )
    assert many < 3 * few


def test_15_2_every_block_of_a_long_prompt(subject: Any) -> None:
    """200 blocks are asked for, in the order in which they lie there: all turn round."""
    code = """
policy = LRUCachePolicy(200)
keys = [number.to_bytes(32, "big") for number in range(200)]
for number, key in enumerate(keys):
    policy.insert(key, BlockStatus(number, 0))
policy.touch(keys)
seen = [int.from_bytes(key, "big") for key in policy.blocks]
"""
    assert told(subject, TIER + code) == list(range(200))[::-1]


@pytest.mark.parametrize("asked", [b"a", b"ab", b"ba"])
def test_15_3_a_store_is_no_use(subject: Any, asked: bytes) -> None:
    """What is there already is left out, and stays as old as it is."""
    code = """
manager = tier(3, [b"a" * 32, b"b" * 32, b"c" * 32])
place = manager.prepare_store([bytes([letter]) * 32 for letter in asked])
seen = [place.keys_to_store, place.evicted_keys, list(manager.policy.blocks)]
"""
    assert told(subject, TIER + code, asked=asked) == [[], [], [c * 32 for c in (b"a", b"b", b"c")]]


def test_15_3_readers_are_counted_on(subject: Any) -> None:
    """Two readers, and a report that the block has been written: two are left."""
    code = """
seen = []
manager = tier(2, [b"a" * 32])
for _ in range(2):
    manager.prepare_load([b"a" * 32])
for success in (True, False):
    manager.complete_store([b"a" * 32], success)
    seen.append(manager.policy.get(b"a" * 32).ref_cnt)
"""
    assert told(subject, TIER + code) == [2, 2]


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_15_3_with_either_policy(subject: Any, policy: str) -> None:
    """The manager asks its policy, whichever it is, and no table of one of them: stored, failed,
    read, evicted."""
    code = """
a, b, c, d = (letter * 32 for letter in (b"a", b"b", b"c", b"d"))
manager = CPUOffloadingManager(3, policy)
seen = [len(manager.prepare_store([a, b, b, c]).keys_to_store)]
manager.complete_store([a, b])
manager.complete_store([c], success=False)
seen.append([manager.lookup(key) for key in (a, b, c, d)])
manager.prepare_load([a])
place = manager.prepare_store([c, a, d])
seen += [place.keys_to_store, place.evicted_keys, manager.prepare_store([b])]
seen.append([manager.lookup(key) for key in (a, b, c, d)])
manager.check_integrity()
"""
    b, c, d = (letter * 32 for letter in (b"b", b"c", b"d"))
    assert told(subject, TIER + code, policy=policy) == [
        3, [True, True, False, False], [c, d], [b], None, [True, False, None, None]
    ]  # fmt: skip


@pytest.mark.parametrize("loading", [0, 1])
def test_15_5_without_an_offer_nothing_is_touched(subject: Any, loading: int) -> None:
    """Two blocks are found, and another request is loading one of them."""
    code = """
from types import SimpleNamespace
from mini_vllm.kv_transfer.offloading import OffloadingConnector

hashes = [b"a" * 32, b"b" * 32]
manager = tier(4, [*hashes, b"x" * 32])
me = SimpleNamespace(
    context=SimpleNamespace(block_size=4), manager=manager, loads={"ben": ([hashes[loading]], None)}
)
request = SimpleNamespace(request_id="ada", block_hashes=hashes)
answer = OffloadingConnector.get_num_new_matched_tokens(me, request, 0)
seen = [list(answer), [key[:1] for key in manager.policy.blocks]]
"""
    assert told(subject, TIER + code, loading=loading) == [[None, False], [b"a", b"b", b"x"]]


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("arrived", [False, True])
def test_15_7_of_any_of_the_sets(subject: Any, arrived: bool, failed: bool) -> None:
    """It leaves those of the three sets in which it is, and others stay."""
    code = """
from types import SimpleNamespace
from mini_vllm.kv_transfer.remote_kv import TransferState, take_arrived

state = TransferState({"ada", "ben"}, {"ben"}, {"ben"})
state.arrived |= {"ada"} if arrived else set()
state.failed |= {"ada"} if failed else set()
manager = SimpleNamespace(
    block_size=4, cache_blocks=lambda request, num_full_blocks: None, free=lambda request: None
)
request = SimpleNamespace(request_id="ada", num_computed_tokens=8, num_tokens=11)
take_arrived(state, manager, request)
seen = [sorted(ids) for ids in (state.loading, state.arrived, state.failed)]
"""
    assert told(subject, code, arrived=arrived, failed=failed) == [["ben"]] * 3


@pytest.mark.parametrize("num_came", [0, 1])
def test_15_7_a_prompt_of_one_token(subject: Any, num_came: int) -> None:
    """If it came, it is computed again in its place, and the block is kept for that; if it did not,
    the block goes."""
    code = """
from types import SimpleNamespace
from mini_vllm.kv_transfer.remote_kv import TransferState, take_arrived

freed = []
manager = SimpleNamespace(
    block_size=4,
    cache_blocks=lambda request, num_full_blocks: None,
    free=lambda request: freed.append(request),
)
request = SimpleNamespace(request_id="ada", num_computed_tokens=came, num_tokens=1)
take_arrived(TransferState({"ada"}, {"ada"}, {"ada"}), manager, request)
seen = [len(freed), request.num_computed_tokens]
"""
    assert told(subject, code, came=num_came) == [1 - num_came, 0]


@pytest.mark.parametrize("byte", range(4))
def test_15_10_each_byte_of_the_checksum(subject: Any, byte: int) -> None:
    """One bit of one of its four bytes was flipped."""
    code = """
from mini_vllm.kv_transfer.store import HEADER, pack_entry, unpack_entry

damaged = bytearray(b"".join(pack_entry(b"n" * 32, b"a" * 32, bytes(40))))
damaged[HEADER.size - 1 - byte] ^= 16
seen = unpack_entry(b"n" * 32, b"a" * 32, bytes(damaged))
"""
    assert told(subject, code, byte=byte) is None


def test_15_10_a_disk_that_refuses_once(subject: Any) -> None:
    """The file that could not be read is there the next time."""
    code = """
import tempfile
from unittest.mock import patch
from mini_vllm.kv_transfer.store import BlockStore

store = BlockStore(tempfile.mkdtemp(), b"n" * 32)
store.put(b"a" * 32, b"kv")
no = OSError("too many open files")
with patch("pathlib.Path.read_bytes", side_effect=no), patch("builtins.open", side_effect=no):
    with patch("pathlib.Path.open", side_effect=no):
        seen = [store.get(b"a" * 32)]
seen.append(store.get(b"a" * 32))
"""
    assert told(subject, code) == [None, b"kv"]


def test_15_11_what_ends_otherwise(subject: Any) -> None:
    """A young file without .kv is neither counted nor deleted, however little room there is."""
    code = """
import tempfile
from mini_vllm.kv_transfer.store import BlockStore

store = BlockStore(tempfile.mkdtemp(), b"n" * 32)
store.put(b"a" * 32, bytes(100))
note = store.path_of(b"a" * 32).parent / "note.txt"
note.write_bytes(bytes(1000))
whole = store.evict()
store.max_bytes = whole
seen = [store.evict() == whole, store.contains(b"a" * 32), note.exists(), whole < 1000]
"""
    assert told(subject, code) == [True, True, True, True]


@pytest.mark.parametrize(
    ("lease", "last"), [("", b"n"), ("the", b"n"), ("the-key-", b"n"), ("the-key", b"s")]
)
def test_15_13_a_part_of_a_name(subject: Any, lease: str, last: bytes) -> None:
    """The beginning of a lease's name, or more than it, or a namespace with another last byte."""
    code = """
from mini_vllm.kv_transfer.leases import Lease, Leases
from mini_vllm.kv_transfer.wire import Question

table = Leases("north", b"n" * 32, 10.0)
table.leases["ada"] = Lease("the-key", [4], None)
table._check(Question("read", "north", "ada", "the-key", b"n" * 32, [4]))
try:
    table._check(Question("read", "north", "ada", lease, b"n" * 31 + last, [4]))
    seen = "in"
except ValueError:
    seen = "refused"
"""
    assert told(subject, code, lease=lease, last=last) == "refused"


def test_15_14_a_gap_in_the_middle(subject: Any) -> None:
    """Of a prompt twice as long half is found in twice as many steps."""
    code = """
from labkit.inside.cost import steps
from mini_vllm.kv_transfer.routing import PrefixIndex

seen = []
for size in (200, 400):
    hashes = [number.to_bytes(32, "big") for number in range(size)]
    index = PrefixIndex()
    index.copies["north"] = {h: 1 for h in hashes if h != hashes[size // 2]}
    seen += [index.score("north", hashes), steps(index.score, "north", hashes)]
"""
    half, few, whole, many = told(subject, code)
    assert (half, whole) == (100, 200) and many < 3 * few
