"""Random tiers, stores, transfers and routes, beside the reference or exact arithmetic."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.judge.collisions import weak_hashes_say_7
from labkit.process.worker import Program

many = settings(max_examples=25)
KV = "mini_vllm.kv_transfer."
KEYS = st.sampled_from([bytes([letter]) * 32 for letter in b"abcdefgh"])
NORTH = b"n" * 32
IDS = st.sampled_from(["ada", "ben", "cyd"])
IN_2033 = 2_000_000_000


def compare(subject: Any, reference: Any, p: Program) -> None:
    """The same answers, kinds of numbers included."""
    yours, theirs = subject.run(p), reference.run(p)
    assert yours == theirs
    assert [type(a) for a in yours] == [type(b) for b in theirs]


@many
@given(
    size=st.integers(1, 10**6),
    rate=st.integers(1, 10**5),
    speed=st.floats(0.5, 50),
    fixed=st.sampled_from([0.0, 1e-3, 0.5]),
)
def test_15_1_any_link(
    subject: Any, reference: Any, size: int, rate: int, speed: float, fixed: float
) -> None:
    """Links slower, as fast and faster than computing."""
    p = Program()
    p.see(p.call(f"{KV}economics:break_even_tokens", size, speed * size * rate, rate, fixed))
    p.see(p.call(f"{KV}economics:break_even_tokens", size, float(size * rate), rate, fixed))
    yours, theirs = subject.run(p), reference.run(p)
    assert np.allclose(yours, theirs, rtol=1e-6)


@many
@given(data=st.data())
def test_15_2_any_tier(subject: Any, reference: Any, data: Any) -> None:
    """Touches and evictions of any blocks, in any order."""
    p = Program()
    policy = p.new(f"{KV}offload_manager:LRUCachePolicy", 8)
    for place, key in enumerate(data.draw(st.permutations([bytes([c]) * 32 for c in b"abcdefg"]))):
        ref_cnt = data.draw(st.sampled_from([0, 0, 0, -1, 1]))
        policy.insert(key, p.new(f"{KV}offload_manager:BlockStatus", place, ref_cnt))
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            policy.touch(data.draw(st.lists(KEYS, max_size=4)))
        else:
            gone = policy.evict(data.draw(st.integers(0, 4)), data.draw(st.lists(KEYS, max_size=2)))
            p.see(p.call("builtins:repr", gone))
        p.see(p.call("builtins:list", policy.blocks))
    compare(subject, reference, p)


def whichever_is_free(seen: list[Any]) -> list[Any]:
    """Which of the free blocks a key gets is free: only how many, each of its own."""

    def number(found: re.Match[str]) -> str:
        ids = re.findall(r"\d+", found[0])
        assert len(ids) == len(set(ids))
        return f"{len(ids)} blocks"

    return [re.sub(r"block_ids=\[.*?\]", number, x) if isinstance(x, str) else x for x in seen]


@many
@given(data=st.data())
def test_15_3_any_stores(subject: Any, reference: Any, data: Any) -> None:
    """Stores, loads and their ends in any order; nothing lost, nothing twice."""
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", data.draw(st.integers(1, 5)))
    for _ in range(data.draw(st.integers(1, 8))):
        keys = data.draw(st.lists(KEYS, min_size=1, max_size=4))
        move = data.draw(st.sampled_from(["store", "store", "done", "failed"]))
        if move == "store":
            place = manager.prepare_store(keys)
            p.see(p.call("builtins:repr", place))
        else:
            manager.complete_store(keys, success=move == "done")
        p.see([manager.lookup(bytes([letter]) * 32) for letter in b"abcdefgh"])
        manager.check_integrity()
    assert whichever_is_free(subject.run(p)) == whichever_is_free(reference.run(p))


@many
@given(data=st.data())
def test_15_4_any_blocks(subject: Any, data: Any) -> None:
    """Any shapes and orders, there and back, bit for bit."""
    layers, blocks = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 6))
    shape = (2, blocks, *data.draw(st.tuples(*[st.integers(1, 3)] * 3)))
    ids = data.draw(st.permutations(range(blocks)))[: data.draw(st.integers(1, blocks))]
    targets = data.draw(st.permutations(range(blocks)))[: len(ids)]
    numbers = [np.random.default_rng(n).integers(0, 99, shape) for n in range(layers)]
    p = Program()
    cache = [p.call("torch:tensor", n.tolist()) for n in numbers]
    blank = [p.call("torch:zeros", list(shape), dtype=p.name("torch:long")) for _ in numbers]
    out = p.call(f"{KV}layout:gather_blocks", cache, list(ids))
    for layer in cache:
        layer.zero_()
    p.see(out)
    p.see(out.is_contiguous())
    p.call(f"{KV}layout:scatter_blocks", out, blank, list(targets))
    for layer in blank:
        p.see(layer)
    gathered, contiguous, *restored = subject.run(p)
    assert contiguous
    for n, number in enumerate(numbers):
        assert np.array_equal(gathered[:, n], np.moveaxis(number[:, list(ids)], 1, 0))
        expected = np.zeros(shape)
        expected[:, list(targets)] = number[:, list(ids)]
        assert np.array_equal(restored[n], expected)


def test_15_4_no_blocks(subject: Any) -> None:
    """Nothing is gathered of nothing, and scattered to nowhere."""
    p = Program()
    layers = [p.call("torch:ones", [2, 3, 1, 1, 1]) for _ in range(2)]
    nothing = p.call(f"{KV}layout:gather_blocks", layers, [])
    p.call(f"{KV}layout:scatter_blocks", nothing, layers, [])
    p.see(p.call("builtins:list", nothing.shape))
    assert subject.run(p) == [[0, 2, 2, 1, 1, 1]]


@many
@given(data=st.data())
def test_15_5_any_offer(subject: Any, reference: Any, data: Any) -> None:
    """Any blocks on the host, being written, being loaded; any beginning on the device."""
    p = Program()
    config = p.new(
        "mini_vllm.config:KVTransferConfig", "OffloadingConnector", "kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 8}, engine_id="e",
    )  # fmt: skip
    size = data.draw(st.sampled_from([4, 4, 5, 16]))
    context = p.new(f"{KV}base:ConnectorContext", NORTH, size, 1, 64)
    role = p.name(f"{KV}base:KVConnectorRole.SCHEDULER")
    connector = p.new(f"{KV}offloading:OffloadingConnector", config, role, context)
    for place, letter in enumerate(b"abcde"):
        kind = data.draw(st.sampled_from(["ready", "ready", "ready", "written", "missing"]))
        if kind != "missing":
            ref_cnt = 0 if kind == "ready" else -1
            block = p.new(f"{KV}offload_manager:BlockStatus", place, ref_cnt)
            connector.manager.policy.insert(bytes([letter]) * 32, block)
    if data.draw(st.booleans()):
        connector.loads.update({"ben": ([data.draw(KEYS)], None)})
    spare = data.draw(st.integers(0, size - 1))
    request = p.new("mini_vllm.request:Request", "ada", list(range(5 * size + spare)))
    p.set(request, "block_hashes", [bytes([letter]) * 32 for letter in b"abcde"])
    p.see(connector.get_num_new_matched_tokens(request, size * data.draw(st.integers(0, 4))))
    p.see(p.call("builtins:list", connector.manager.policy.blocks))
    compare(subject, reference, p)


@many
@given(data=st.data())
def test_15_7_any_arrival(subject: Any, reference: Any, data: Any) -> None:
    """Any number of tokens, some of them its output, of which any number came."""
    num_tokens = data.draw(st.integers(1, 17))
    num_output = data.draw(st.sampled_from([0, 0, min(2, num_tokens - 1)]))
    came = data.draw(
        st.one_of(st.integers(0, num_tokens), st.integers(num_tokens - num_output, num_tokens))
    )
    p = Program()
    manager = p.new(f"{KV}remote_kv:RemoteKVCacheManager", 16, 4, 64, hash_root=NORTH)
    prompt = list(range(num_tokens - num_output))
    request = p.new("mini_vllm.request:Request", "ada", prompt)
    request.set_block_hasher(manager.block_hasher)
    for token in range(num_output):
        request.append_output_token_ids(50 + token)
    nothing = p.new("mini_vllm.core.kv_cache_manager:KVCacheBlocks")
    manager.allocate_for_load(request, max(came, 1), 0, nothing, False)
    p.set(request, "num_computed_tokens", came)
    both = [p.call("builtins:set", ["ada", "ben"]) for _ in range(3)]
    state = p.new(f"{KV}remote_kv:TransferState", *both)
    p.call(f"{KV}remote_kv:take_arrived", state, manager, request)
    p.see(request.num_computed_tokens)
    p.see(manager.get_block_ids("ada"))
    p.see(p.call("builtins:list", manager.block_pool.cached_blocks))
    p.see([state.loading, state.arrived, state.failed])
    p.see(manager.num_free_blocks)
    compare(subject, reference, p)


@many
@given(data=st.data())
def test_15_8_any_end(subject: Any, reference: Any, data: Any) -> None:
    """Ends and reports in any order: each request is freed once, after its last transfer."""
    p = Program()
    sets = [set(data.draw(st.lists(IDS, max_size=3))) for _ in range(3)]
    state = p.new(
        f"{KV}remote_kv:TransferState",
        *[p.call("builtins:set", sorted(ids)) for ids in (sets[0] | sets[1], sets[1], sets[2])],
    )
    for name in data.draw(st.permutations(["ada", "ben", "cyd"]))[: data.draw(st.integers(1, 3))]:
        request = p.new("mini_vllm.request:Request", name, [1, 2])
        keeps = data.draw(st.booleans())
        pending = p.call(f"{KV}remote_kv:transfers_of_ended", state, request, keeps)
        p.see(pending)
        if keeps or name in sets[0] - sets[1]:  # without a transfer no request is held
            state.held.update({name: (request, pending)})
    for _ in range(data.draw(st.integers(1, 6))):
        ids = p.call("builtins:set", data.draw(st.lists(IDS, max_size=3)))
        kind = data.draw(st.sampled_from(["recv", "send"]))
        over = p.call(f"{KV}remote_kv:transfers_over", state, ids, kind)
        p.see_each(over, "request_id")
        p.see([state.loading, state.arrived, state.failed])
        p.see(p.call("builtins:sorted", state.held))
    compare(subject, reference, p)


def test_15_8_freed_requests_come_in_order(subject: Any) -> None:
    """By their ids, however many transfers are over at once."""
    p = Program()
    names = [f"request {number:02}" for number in range(12)]
    state = p.new(f"{KV}remote_kv:TransferState")
    for name in names:
        held = p.new("mini_vllm.request:Request", name, [1, 2]), p.call("builtins:set", ["send"])
        state.held.update({name: held})
    ids = p.call("builtins:set", names[::-1])
    over = p.call(f"{KV}remote_kv:transfers_over", state, ids, "send")
    p.see_each(over, "request_id")
    assert subject.run(p) == [names]


@many
@given(data=st.data())
def test_15_9_any_hole(subject: Any, reference: Any, data: Any) -> None:
    """Any tables, shared or not, any holes, any tokens of this step."""
    p = Program()
    requests, tables, scheduled = [], {}, {}
    for name in ("ada", "ben", "cyd"):
        computed = data.draw(st.integers(1, 20))
        request = p.new("mini_vllm.request:Request", name, list(range(24)))
        p.set(request, "num_computed_tokens", computed)
        requests.append(request)
        blocks = data.draw(st.lists(st.integers(1, 9), min_size=6, max_size=6, unique=True))
        tables[name] = blocks
        if data.draw(st.booleans()):
            scheduled[name] = data.draw(st.integers(1, computed))
    invalid = p.call("builtins:set", data.draw(st.lists(st.integers(1, 9), max_size=4)))
    find = f"{KV}remote_kv:find_rewinds"
    given_tables = p.call("builtins:dict", tables)
    size = data.draw(st.sampled_from([4, 4, 7]))
    p.see(p.call(find, requests, invalid, given_tables, scheduled, size))
    p.see([invalid, given_tables])
    p.see_each(p.call("builtins:list", requests), "num_computed_tokens")
    compare(subject, reference, p)


@many
@given(data=st.data())
def test_15_10_any_damage(subject: Any, reference: Any, data: Any) -> None:
    """Any bit, any length, any owner: either the very payload, or nothing."""
    payload = data.draw(st.binary(max_size=60))
    p = Program()
    key, other = data.draw(KEYS), data.draw(KEYS)
    entry = p.call("builtins:bytes.join", b"", p.call(f"{KV}store:pack_entry", NORTH, key, payload))
    end = data.draw(st.integers(0, 84 + len(payload)))
    cut = p.call("operator:getitem", entry, p.call("builtins:slice", end))
    place = data.draw(st.integers(0, 83 + len(payload)))
    flipped = p.call("builtins:bytearray", entry)
    number = p.call("operator:getitem", flipped, place)
    p.call(
        "operator:setitem",
        flipped,
        place,
        p.call("operator:xor", number, 1 << data.draw(st.integers(0, 7))),
    )
    unpack = f"{KV}store:unpack_entry"
    p.see(p.call(unpack, NORTH, key, entry))
    p.see(p.call(unpack, NORTH, other, entry))
    p.see(p.call(unpack, b"s" * 32, key, entry))
    p.see(p.call(unpack, NORTH, key, cut))
    p.see(p.call(unpack, NORTH, key, p.call("builtins:bytes", flipped)))
    compare(subject, reference, p)


@many
@given(data=st.data())
def test_15_10_any_store(subject: Any, reference: Any, data: Any) -> None:
    """Puts, gets and damaged files in any order."""
    moves = data.draw(
        st.lists(st.tuples(st.sampled_from(["put", "get", "spoil", "age"]), KEYS), max_size=8)
    )
    p = Program()
    store = p.new(f"{KV}store:BlockStore", p.call("tempfile:mkdtemp"), NORTH)
    for move, key in moves:
        path = store.path_of(key)
        if move == "put":
            p.see(store.put(key, key * 3))
        elif move == "get":
            p.see(store.get(key))
            p.see(path.exists())
        elif move == "age":
            store.put(key, key * 3)
            p.call("os:utime", path, (1000, 1000))
            store.get(key)
            p.see(path.stat().st_mtime)
        else:
            store.put(key, key * 3)
            path.write_bytes(b"miniKV01 and nonsense")
    for _, key in moves:
        p.see(p.call("builtins:len", p.call("os:listdir", store.path_of(key).parent)))
    yours, right = (
        [seen > 1000 if type(seen) is float else seen for seen in worker.run(p)]
        for worker in (subject, reference)
    )
    assert yours == right


def test_15_10_neighbours(subject: Any) -> None:
    """Two blocks in one folder, the second when the folder is there already."""
    p = Program()
    store = p.new(f"{KV}store:BlockStore", p.call("tempfile:mkdtemp"), NORTH)
    first, second = b"a" * 32, b"a" * 31 + b"b"
    for key in (first, second, first):
        p.see(store.put(key, key * 2))
    for key in (first, second):
        p.see(store.get(key))
    assert subject.run(p) == [True, True, True, first * 2, second * 2]


@many
@given(data=st.data())
def test_15_11_any_sweep(subject: Any, reference: Any, data: Any) -> None:
    """Files of any size and age, finished or not, and any limit."""
    files = data.draw(
        st.lists(
            st.tuples(st.integers(1, 50), st.integers(0, 5), st.booleans()), min_size=1, max_size=6
        )
    )
    limit = data.draw(st.one_of(st.none(), st.integers(0, 200)))
    p = Program()
    store = p.new(f"{KV}store:BlockStore", p.call("tempfile:mkdtemp"), NORTH)
    paths = []
    for number, (size, age, finished) in enumerate(files):
        path = store.path_of(bytes([number]) * 32)
        if not finished:
            path = path.with_suffix(".tmp")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * size)
        if age or finished:  # each at a time of its own, which a folder's clock does not promise
            written = (1000 + 10 * age if age else IN_2033) + number
            p.call("os:utime", path, (written, written))
        paths.append(path)
    p.set(store, "max_bytes", limit)
    p.see(store.evict())
    p.see(store.num_bytes)
    for path in paths:
        p.see(path.exists())
    compare(subject, reference, p)


@many
@given(data=st.data())
def test_15_13_any_lease(subject: Any, reference: Any, data: Any) -> None:
    """Any questions about any leases, and whose time is over, now and later."""
    p = Program()
    table = p.new(f"{KV}leases:Leases", "north", NORTH, 10.0)
    for name in ("ada", "ben", "cyd"):
        deadline = data.draw(st.sampled_from([None, 0.0, 50.0, 1e12]))
        lease = p.new(f"{KV}leases:Lease", f"lease-{name}", [4, 5, 6], deadline)
        table.leases.update({name: lease})
    table.released.update(data.draw(st.lists(IDS, max_size=2)))
    for now in (10.0, 50.0, 60.0):
        p.see(table.take_ended(now))
        p.see(p.call("builtins:sorted", table.leases))
        p.see(p.call("builtins:sorted", table.released))
    name = data.draw(IDS)
    question = p.new(
        f"{KV}wire:Question",
        "read",
        data.draw(st.sampled_from(["north", "north", "north", "west"])),
        name,
        data.draw(st.sampled_from([f"lease-{name}", f"lease-{name}", "lease-ada"])),
        data.draw(st.sampled_from([NORTH, NORTH, NORTH, b"s" * 32])),
        data.draw(st.sampled_from([[5], [4, 6], [4, 9], []])),
    )
    p.see(table._check(question))
    compare(subject, reference, p)


@pytest.mark.parametrize(
    ("wrong", "is_refused"),
    [
        ({}, False),
        ({"block_ids": []}, False),
        ({"block_ids": [6, 4]}, False),
        ({"block_ids": [6, 4, 5, 6]}, False),
        ({"request_id": "ben", "lease": "lease-ben"}, False),
        ({"engine_id": "west"}, True),
        ({"namespace": b"s" * 32}, True),
        ({"lease": "lease-ben"}, True),
        ({"request_id": "ben"}, True),
        ({"request_id": "cyd", "lease": "lease-cyd"}, True),
        ({"request_id": "dan"}, True),
        ({"block_ids": [5, 9]}, True),
    ],
    ids=str,
)
def test_15_13_one_thing_wrong(subject: Any, wrong: dict[str, Any], is_refused: bool) -> None:
    """A question is answered if everything in it is right, and refused for each thing alone."""
    p = Program()
    names = p.execute(
        f"""
from {KV}leases import Lease, Leases
from {KV}wire import Question

table = Leases("north", b"n" * 32, 10.0)
for name, deadline in (("ada", None), ("ben", 1e12), ("cyd", 0.0)):
    table.leases[name] = Lease("lease-" + name, [4, 5, 6], deadline)
order = ("kind", "engine_id", "request_id", "lease", "namespace", "block_ids")
try:
    table._check(Question(*[question[key] for key in order]))
    is_refused = False
except ValueError:
    is_refused = True
""",
        question={
            "kind": "read",
            "engine_id": "north",
            "request_id": "ada",
            "lease": "lease-ada",
            "namespace": NORTH,
            "block_ids": [5],
        }
        | wrong,
    )
    p.see(names["is_refused"])
    assert subject.run(p) == [is_refused]


def alike(number: int) -> bytes:
    """Keys that differ in their last two bytes alone."""
    return b"k" * 30 + number.to_bytes(2, "big")


def test_15_3_no_checksum_stands_for_a_key(subject: Any) -> None:
    """Keys that begin alike, while `hash()` and all checksums say 7 to everything: each has a
    place of its own."""
    keys = [alike(number) for number in range(4)]
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 8)
    with weak_hashes_say_7(p):
        stored = manager.prepare_store(keys[:3])
        p.see([stored.keys_to_store, p.call("builtins:len", stored.block_ids)])
        manager.complete_store(keys[:2])
        p.see([manager.lookup(key) for key in keys])
    assert subject.run(p) == [[keys[:3], 3], [True, True, None, False]]


def test_15_3_however_many_keys(subject: Any) -> None:
    """Forty are stored at once, the first of them named again behind the last; later a dozen of
    the oldest are asked for beside a new one, and all of them stay."""
    keys = [alike(number) for number in range(41)]
    p = Program()
    manager = p.new(f"{KV}offload_manager:CPUOffloadingManager", 40)
    p.see(manager.prepare_store([*keys[:40], keys[0]]).keys_to_store)
    manager.complete_store(keys[:40])
    p.see([manager.lookup(key) for key in keys])
    p.see(manager.prepare_store([*keys[:12], keys[40]]).evicted_keys)
    assert subject.run(p) == [keys[:40], [True] * 40 + [False], [keys[12]]]


def test_15_14_long_prompts_and_many_copies(subject: Any) -> None:
    """A prompt of 100 blocks, told of five times and removed four times."""
    keys = [alike(number) for number in range(100)]
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    index.apply("north", [p.new(f"{KV}events:BlockStored", keys, None, [], 4) for _ in range(5)])
    p.see(index.score("north", keys))
    for _ in range(5):
        index.apply("north", [p.new(f"{KV}events:BlockRemoved", keys)])
        p.see(index.score("north", keys))
    assert subject.run(p) == [100] * 5 + [0]


def test_15_14_no_checksum_stands_for_a_block(subject: Any) -> None:
    """Blocks that begin alike, while `hash()` and all checksums say 7: one is known of three."""
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    with weak_hashes_say_7(p):
        index.apply("north", [p.new(f"{KV}events:BlockStored", [alike(1)], None, [], 4)])
        p.see([index.score("north", [alike(number)]) for number in range(3)])
    assert subject.run(p) == [[0, 1, 0]]


@pytest.mark.parametrize("busy", [0, 2**15 - 1 - 8_968, 2**25])
def test_15_14_the_last_of_many_and_by_little(subject: Any, busy: int) -> None:
    """Of twenty workers any may be done first, though it be by one token."""
    p = Program()
    for first in (0, 7, 19):
        queued = [busy + 9 * (number + 1) * (number != first) for number in range(20)]
        p.see(p.call(f"{KV}routing:choose_worker", [2] * 20, queued, 9_000, 16))
        queued = [busy + (number != first) for number in range(20)]
        p.see(p.call(f"{KV}routing:choose_worker", [2] * 20, queued, 9_000, 16))
    assert subject.run(p) == [0, 0, 7, 7, 19, 19]


def test_15_14_after_a_reset(subject: Any) -> None:
    """What follows in the same batch counts again."""
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    keys = [b"a" * 32, b"b" * 32]
    old = p.new(f"{KV}events:BlockStored", keys, None, [], 4)
    new = p.new(f"{KV}events:BlockStored", keys[:1], None, [], 4)
    index.apply("north", [old, p.new(f"{KV}events:AllBlocksCleared"), new])
    p.see(index.score("north", keys))
    assert subject.run(p) == [1]


@many
@given(data=st.data())
def test_15_14_any_route(subject: Any, reference: Any, data: Any) -> None:
    """Any events of two workers, any prompts, any queues."""
    p = Program()
    index = p.new(f"{KV}routing:PrefixIndex")
    for _ in range(data.draw(st.integers(1, 6))):
        keys = data.draw(st.lists(KEYS, max_size=4))
        kind = data.draw(st.sampled_from(["stored", "stored", "removed", "cleared"]))
        if kind == "stored":
            event = p.new(f"{KV}events:BlockStored", keys, None, [], 4)
        elif kind == "removed":
            event = p.new(f"{KV}events:BlockRemoved", keys)
        else:
            event = p.new(f"{KV}events:AllBlocksCleared")
        index.apply(data.draw(st.sampled_from(["north", "south"])), [event])
    prompt = data.draw(st.lists(KEYS, max_size=5))
    scores = [index.score(worker, prompt) for worker in ("north", "south")]
    p.see(scores)
    queued = [data.draw(st.integers(0, 30)) for _ in scores]
    p.see(p.call(f"{KV}routing:choose_worker", scores, queued, 4 * len(prompt) + 1, 4))
    p.see(p.call(f"{KV}routing:choose_worker", [], [], 4, 4))
    compare(subject, reference, p)
