"""All of a name counts, however long its parts are, and a call changes what it says and nothing
beside it: no order of other blocks, no list of a caller, no name, no count."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.judge.collisions import crc_twins, weak_hashes_say_7
from labkit.process.worker import Program

many = settings(max_examples=40)
HASH = "mini_vllm.core.block_hash:"
POOL = "mini_vllm.core.block_pool:"
MANAGER = "mini_vllm.core.kv_cache_manager:KVCacheManager"
TWINS = ("aA", "eé", "éè", "?é", "01", "ſs", "Ωω", " \u00a0", "\ud800\ud801")
"""Characters that some way of writing a text down takes for one another."""


def request(p: Program, name: str, prompt: Sequence[int], **keys: Any) -> Any:
    return p.new("mini_vllm.request:Request", name, list(prompt), **keys)


def first_name(p: Program, hasher: Any, **keys: Any) -> None:
    """See the name of a block of four equal tokens."""
    made = request(p, "r", [7] * 4, **keys)
    made.set_block_hasher(hasher)
    p.see(made.block_hashes)


def chain(root: bytes, tokens: Sequence[int], size: int) -> list[bytes]:
    """The names of plain text, as the docstring says."""
    names, parent = [], root
    for begin in range(0, len(tokens) - size + 1, size):
        plain = array("q", tokens[begin : begin + size]).tobytes()
        parent = hashlib.sha256(parent + plain).digest()
        names.append(parent)
    return names


# ------------------------------------------------------------------ 02.1 names
@many
@given(
    part=st.sampled_from(["lora_name", "cache_salt", "mm_hashes"]),
    length=st.integers(0, 300),
    place=st.floats(0, 1),
    twins=st.sampled_from(TWINS),
)
def test_02_1_every_character_of_a_key_counts(
    subject: Any, part: str, length: int, place: float, twins: str
) -> None:
    """Two long texts that differ in one character, anywhere, and be it by its case."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    before = round(place * length)
    for twin in twins:
        text = "tenant-" * 50
        text = text[:before] + twin + text[: length - before]
        first_name(p, hasher, **{part: [(0, 1, text)] if part == "mm_hashes" else text})
    one, other = subject.run(p)
    assert one != other


@many
@given(number=st.integers(1, 40), data=st.data())
def test_02_1_every_key_of_a_block_counts(subject: Any, number: int, data: st.DataObject) -> None:
    """A block of many images, one of which is another."""
    p = Program()
    other = data.draw(st.integers(0, number - 1))
    keys = [("mm", f"image {index}", index) for index in range(number)]
    p.see(p.call(f"{HASH}hash_block", b"\0" * 32, [1, 2], tuple(keys)))
    keys[other] = ("mm", "another", other)
    p.see(p.call(f"{HASH}hash_block", b"\0" * 32, [1, 2], tuple(keys)))
    one, two = subject.run(p)
    assert one != two


def test_02_1_keys_are_no_numbers(subject: Any) -> None:
    """Those that Python's hash() takes for one are two, and a key may be there twice."""
    p = Program()
    wanted: list[tuple[Any, ...]] = [(0,), (2**61 - 1,), (-1,), (-2,), ("0",), ((0,),), ((0,), 0)]
    wanted += [("a",), ("a", "a"), ("a", "a", "a"), (1, 12), (11, 2), (112,), (1, 1, 2)]
    for keys in wanted:
        p.see(p.call(f"{HASH}hash_block", b"\0" * 32, [1, 2], keys))
    names = subject.run(p)
    assert len(set(names)) == len(wanted)


def test_02_1_keys_are_not_cut_to_a_few_bits(subject: Any) -> None:
    """Of 200,000 keys no two have one name. Of as many that are cut to 32 bits, some nearly always
    do."""
    p = Program()
    name = p.call("functools:partial", p.name(f"{HASH}hash_block"), b"\0" * 32, [1, 2])
    names = p.call("builtins:map", name, p.call("builtins:zip", p.call("builtins:range", 200_000)))
    p.see(p.call("builtins:len", p.call("builtins:set", names)))
    assert subject.run(p) == [200_000]


def test_02_1_no_checksum_stands_for_a_key(subject: Any, seed: int) -> None:
    """Texts of one CRC-32 have two names, and so have others when `hash()` and all checksums say 7
    to everything: a name is made of the keys themselves."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    texts = [text.decode() for text in crc_twins(seed)]
    with weak_hashes_say_7(p):
        for text in (*texts, "x", "y"):
            first_name(p, hasher, lora_name=text)
            first_name(p, hasher, cache_salt=text)
            first_name(p, hasher, mm_hashes=[(0, 1, text)])
    names = [name for (name,) in subject.run(p)]
    assert len(set(names)) == 12, "what tells contents apart is hash() or a checksum"


def test_02_1_an_empty_text_is_not_none(subject: Any) -> None:
    """No adapter, salt or image, and each of them with an empty name: eight contents."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    for lora, salt, images in product((None, ""), (None, ""), ([], [(0, 1, "")])):
        first_name(p, hasher, lora_name=lora, cache_salt=salt, mm_hashes=images)
    assert len({name for (name,) in subject.run(p)}) == 8, "an empty text was taken for none"


TIDY = ("a", " a", "a ", "\ta", "a\n", "a\0", "A", "\uff41", "a\u200b", "\u00e4", "a\u0308", "'a'")
"""Texts that tidying makes equal: spaces, ends, capitals, quotes, Unicode's other forms."""


@pytest.mark.parametrize("part", ["lora_name", "cache_salt", "mm_hashes"])
def test_02_1_keys_are_taken_as_they_are(subject: Any, part: str) -> None:
    """Users choose these texts, and two that look alike are two."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    for text in TIDY:
        first_name(p, hasher, **{part: [(0, 1, text)] if part == "mm_hashes" else text})
    assert len({name for (name,) in subject.run(p)}) == len(TIDY), "texts were changed"


def test_02_1_equal_texts_have_equal_names(subject: Any) -> None:
    """One string as adapter and salt, and two strings that are equal. (Pickle, for one, writes a
    string once and then where it was, so that equal keys differ.)"""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    one = p.call("builtins:str", b"tenant", "ascii")
    first_name(p, hasher, lora_name=one, cache_salt=one, mm_hashes=[(0, 1, one)])
    keys = {"lora_name": "tenant", "cache_salt": "tenant", "mm_hashes": [(0, 1, "tenant")]}
    first_name(p, hasher, **keys)
    yours, other = subject.run(p)
    assert yours == other


@many
@given(
    root=st.binary(max_size=40),
    size=st.integers(1, 20),
    length=st.integers(0, 700) | st.just(9001),
    scale=st.sampled_from([1, 2**31, 2**32, 2**40 + 1]),
)
def test_02_1_names_of_a_long_text(
    subject: Any, root: bytes, size: int, length: int, scale: int
) -> None:
    """Every full block has its name, from whatever root, with tokens of up to 64 bits."""
    p = Program()
    tokens = [scale * (index % 5) for index in range(length)]
    made = request(p, "r", tokens)
    made.set_block_hasher(p.new(f"{HASH}BlockHasher", size, root))
    p.see(made.block_hashes)
    assert subject.run(p) == [chain(root, tokens, size)]


@many
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=2, max_size=4),
    size=st.integers(1, 3),
)
def test_02_1_a_hasher_remembers_no_request(
    subject: Any, prompts: list[list[int]], size: int
) -> None:
    """Requests of one id come one after the other, and the hasher is asked directly: what it
    answered before stays, and where nothing is new, nothing comes."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", size, b"root")
    answers = [hasher(request(p, "r", prompt)) for prompt in prompts]
    for answer in answers:
        p.see(answer)
    made = request(p, "r", prompts[0])
    made.set_block_hasher(hasher)
    p.see(hasher(made))
    p.see(made.block_hashes)
    names = [chain(b"root", prompt, size) for prompt in prompts]
    assert subject.run(p) == [*names, [], names[0]]


def test_02_1_an_image_that_began_before_its_block(subject: Any) -> None:
    """Where it begins is told for every distance, before the block as well as in it; a long image
    begins many blocks before."""
    p = Program()
    for distance in range(-9, 4):
        for start in (12, 16):
            made = request(p, "r", [0] * 20, mm_hashes=[(start + distance, 13, "cat")])
            p.see(p.call(f"{HASH}extra_hash_keys", made, start, start + 4))
    seen = subject.run(p)
    assert seen[::2] == seen[1::2]
    assert len(set(seen)) == 13


# ------------------------------------------------------------------ 02.2 the queue
def pop(queue: Any, blocks: list[Any]) -> None:
    queue.popleft()


def leave(queue: Any, blocks: list[Any]) -> None:
    queue.remove(blocks[len(blocks) // 2])


def join(queue: Any, blocks: list[Any]) -> None:
    queue.append(blocks[-1])


@pytest.mark.parametrize("act", [pop, leave, join])
def test_02_2_the_cost_does_not_grow_with_the_queue(
    subject: Any, act: Callable[[Any, list[Any]], None]
) -> None:
    """A block that leaves, from the front or the middle, or joins, costs the same in a queue of 5
    and of 400. A cache of size 0 keeps nothing and counts reads of blocks' attributes."""
    p = Program()
    counted = p.call("functools:lru_cache", 0)(p.name("builtins:object.__getattribute__"))
    kinds = (p.name(f"{POOL}KVCacheBlock"),)
    watched = p.call("builtins:type", "Watched", kinds, {"__getattribute__": counted})
    for number in (5, 400):
        blocks = [watched(index) for index in range(number + 1)]
        queue = p.new(f"{POOL}FreeKVCacheBlockQueue", blocks[:-1])
        counted.cache_clear()
        act(queue, blocks)
        p.see(counted.cache_info().misses)
    short, long = subject.run(p)
    assert short == long


def test_02_2_the_queue_knows_no_names(subject: Any) -> None:
    """Blocks come and go with their names; the pool counts the holders."""
    p = Program()
    blocks = [p.new(f"{POOL}KVCacheBlock", number, 0, bytes([number])) for number in range(4)]
    queue = p.new(f"{POOL}FreeKVCacheBlockQueue", blocks)
    queue.popleft()
    queue.remove(blocks[2])
    queue.append(blocks[0])
    for attribute in ("block_id", "block_hash", "ref_cnt"):
        p.see_each(blocks, attribute)
    assert subject.run(p) == [list(range(4)), [bytes([n]) for n in range(4)], [0] * 4]


# ------------------------------------------------------------------ 02.3 and 02.4 the pool
@many
@given(data=st.data())
def test_02_3_names_change_no_order(subject: Any, data: st.DataObject) -> None:
    """All blocks of a pool are held, some are filed, some twice held; they are let go in any
    order, and given out in that order again, named or not."""
    p = Program()
    number = data.draw(st.integers(2, 24))
    ids = list(range(1, number + 1))
    pool = p.new(f"{POOL}BlockPool", number + 1)
    blocks = pool.get_new_blocks(number)
    filed = data.draw(st.sets(st.sampled_from(ids)))
    shared = data.draw(st.sets(st.sampled_from(ids)))
    order = data.draw(st.permutations(ids))
    again = data.draw(st.integers(0, number - len(shared)))
    names = [bytes([block]) for block in sorted(filed)]
    pool.cache_full_blocks([blocks[block - 1] for block in sorted(filed)], names)
    pool.touch([blocks[block - 1] for block in sorted(shared)])
    pool.free_blocks([blocks[block - 1] for block in order])
    p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
    taken = pool.get_new_blocks(again)
    p.see_each(taken, "block_id")
    p.see_each(blocks, "ref_cnt")
    p.see_each(blocks, "block_hash")
    free = [block for block in order if block not in shared]
    held = shared | set(free[:again])
    kept = filed - set(free[:again])
    assert subject.run(p) == [
        free,
        free[:again],
        [int(block in held) for block in ids],
        [bytes([block]) if block in kept else None for block in ids],
    ]


@many
@given(
    moves=st.lists(st.tuples(st.sampled_from(["forget", "look"]), st.integers(0, 5)), max_size=8),
    free=st.sets(st.integers(0, 5)),
)
def test_02_3_forgetting_moves_no_block(
    subject: Any, moves: list[tuple[str, int]], free: set[int]
) -> None:
    """Six named blocks, some free and some held: to look for one changes nothing, and to forget
    one takes its name and nothing else, held or not. A name that leads to no block is gone."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 8)
    blocks = pool.get_new_blocks(6)
    names = [bytes([number % 4]) * 32 for number in range(6)]
    pool.cache_full_blocks(blocks, names)
    order = sorted(free, reverse=True)
    pool.free_blocks([blocks[number] for number in order])
    known = list(enumerate(names))
    expected: list[Any] = []
    for move, number in moves:
        if move == "look":
            found = pool.get_cached_block(names[number])
            p.see(p.call("builtins:getattr", found, "block_id", None))
            expected.append(next((n + 1 for n, name in known if name == names[number]), None))
        else:
            pool.evict(blocks[number])
            known = [entry for entry in known if entry[0] != number]
        p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
        p.see_each(blocks, "ref_cnt")
        p.see_each(blocks, "block_hash")
        p.see(p.call("builtins:len", pool.cached_blocks))
        expected.append([7, *(number + 1 for number in order)])
        expected.append([int(number not in free) for number in range(6)])
        expected.append([dict(known).get(number) for number in range(6)])
        expected.append(len({name for _, name in known}))
    assert subject.run(p) == expected


def test_02_3_the_callers_lists_stay(subject: Any) -> None:
    """What is handed over is only read, be it a list, or an iterator that is read once."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 6)
    blocks = pool.get_new_blocks(4)
    for act in (pool.touch, pool.free_blocks, pool.free_blocks):
        act(blocks)
        p.see_each(blocks, "block_id")
    p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
    pool.touch(blocks)
    pool.free_blocks(p.call("builtins:iter", blocks))
    p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
    assert subject.run(p) == [*[[1, 2, 3, 4]] * 3, *[[5, 1, 2, 3, 4]] * 2]


def test_02_3_a_block_of_five_hundred_requests(subject: Any) -> None:
    """A system prompt that all have in common: its block is free when the last of them has gone."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 3)
    blocks = pool.get_new_blocks(1)
    shared = p.call("operator:mul", blocks, 499)
    pool.touch(shared)
    p.see_each(blocks, "ref_cnt")
    pool.free_blocks(shared)
    p.see_each(blocks, "ref_cnt")
    p.see(pool.num_free_blocks)
    pool.free_blocks(blocks)
    p.see(pool.num_free_blocks)
    assert subject.run(p) == [[500], [1], 1, 2]


def test_02_4_hundreds_of_twins(subject: Any) -> None:
    """As many requests have filled equal blocks side by side. Each of these is kept, and found when
    all older ones have gone."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 301)
    blocks = pool.get_new_blocks(300)
    order = [7 * number % 300 for number in range(300)]
    pool.cache_full_blocks([blocks[number] for number in order], [b"same"] * 300)
    for number in order:
        p.see(pool.get_cached_block(b"same").block_id)
        pool.evict(blocks[number])
    p.see(pool.get_cached_block(b"same"))
    assert subject.run(p) == [*(number + 1 for number in order), None]


def test_02_4_twins_of_one_call(subject: Any) -> None:
    """Of three blocks that are filed at once two have one name. Each is found when the older ones
    have gone."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 5)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, [b"same", b"other", b"same"])
    for gone in (0, 2):
        p.see(pool.get_cached_block(b"same").block_id)
        pool.evict(blocks[gone])
    p.see(pool.get_cached_block(b"same"))
    p.see(pool.get_cached_block(b"other").block_id)
    assert subject.run(p) == [1, 3, None, 2]


@many
@given(free=st.permutations(range(4)), looks=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_02_4_looking_moves_no_block(subject: Any, free: list[int], looks: list[int]) -> None:
    """Free blocks keep their places in the queue, however often they are looked up. Of what is
    not there nothing is noted."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 6)
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(blocks, [bytes([number]) for number in range(4)])
    pool.free_blocks([blocks[number] for number in free])
    for number in looks:
        p.see(pool.get_cached_block(bytes([number])).block_id)
        p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
        p.see_each(blocks, "ref_cnt")
        p.see(p.call("operator:is_", pool.get_cached_block(bytes([number, 0])), None))
        p.see(p.call("builtins:len", pool.cached_blocks))
    right = [[number + 1, [5, *(n + 1 for n in free)], [0] * 4, True, 4] for number in looks]
    assert subject.run(p) == [seen for row in right for seen in row]


@many
@given(
    head=st.binary(max_size=31),
    tail=st.binary(max_size=31),
    own=st.lists(st.binary(min_size=1, max_size=1), min_size=2, max_size=5, unique=True),
)
def test_02_4_all_of_a_name_counts(
    subject: Any, head: bytes, tail: bytes, own: list[bytes]
) -> None:
    """Names that begin and end alike. They are asked for by equal names, and what was handed over,
    a tuple or a list, is as it was."""
    p = Program()
    names = [head + middle + tail for middle in own]
    pool = p.new(f"{POOL}BlockPool", 2 * len(names) + 1)
    listed = p.call("builtins:list", names)
    for given_names in (tuple(names), listed):
        blocks = pool.get_new_blocks(len(names))
        pool.cache_full_blocks(blocks, given_names)
        p.see_each(blocks, "block_hash")
    p.see(listed)
    for name in names:
        p.see(pool.get_cached_block(name).block_id)
    p.see(pool.get_cached_block(head + tail))
    assert subject.run(p) == [names, names, names, *range(1, len(names) + 1), None]


# ------------------------------------------------------------------ 02.5 to 02.7 the manager
COUNTS = ("num_computed_tokens", "num_cached_tokens", "num_preemptions", "spec_token_ids")


def see_request(p: Program, made: Any) -> None:
    """What a manager reads of a request, and never writes."""
    for name in (*COUNTS, "block_hashes"):
        p.see(getattr(made, name))
    p.see(made.status.name)


def see_manager(p: Program, manager: Any) -> None:
    """The order of the free blocks, holders, names, tables and counts."""
    p.see_each(p.call("builtins:list", manager.block_pool.free_block_queue), "block_id")
    p.see_each(manager.block_pool.blocks, "ref_cnt")
    p.see_each(manager.block_pool.blocks, "block_hash")
    p.see(p.call("builtins:sorted", manager.req_to_blocks))
    p.see(manager.num_cached_blocks)
    for count in ("requests", "queries", "hits"):
        p.see(getattr(manager.prefix_cache_stats, count))


def hashed(p: Program, manager: Any, name: str, prompt: Sequence[int]) -> Any:
    made = request(p, name, prompt)
    made.set_block_hasher(manager.block_hasher)
    for count, value in zip(COUNTS, (0, 3, 2, [9, 9]), strict=True):
        p.set(made, count, value)
    return made


@many
@given(
    length=st.integers(1, 17), shared=st.integers(0, 17), gone=st.booleans(), evict=st.booleans()
)
def test_02_5_looking_changes_nothing(
    subject: Any, length: int, shared: int, gone: bool, evict: bool
) -> None:
    """No table, no count, no statistics, no order of free blocks, and nothing of the request: one
    that looks may never be admitted."""
    p = Program()
    manager = p.new(MANAGER, 9, 4, 64, hash_root=b"root")
    ana = hashed(p, manager, "ana", range(16))
    manager.allocate_slots(ana, 16)
    if gone:
        manager.free(ana)
    if evict:
        manager.block_pool.evict(manager.block_pool.blocks[2])
    ben = hashed(p, manager, "ben", [*range(min(shared, length)), *range(90, 90 + length)][:length])

    def see() -> None:
        see_manager(p, manager)
        see_request(p, ben)

    see()
    for _ in range(2):
        manager.get_computed_blocks(ben)
        see()
    seen = subject.run(p)
    third = len(seen) // 3
    assert seen[:third] == seen[third : 2 * third] == seen[2 * third :]


@pytest.mark.parametrize("length", [7, 8, 9, 799, 800, 2501])
def test_02_5_a_long_prefix_is_found_whole(subject: Any, length: int) -> None:
    """Hundreds of blocks, for a request that has drafts and was preempted often: all of them but
    the one of the last certain token."""
    p = Program()
    manager = p.new(MANAGER, 900, 4, 3000, hash_root=b"root")
    ana = hashed(p, manager, "ana", range(2600))
    manager.allocate_slots(ana, 2600)
    ben = hashed(p, manager, "ben", range(length))
    p.set(ben, "num_preemptions", 30)
    found = manager.get_computed_blocks(ben)
    p.see([found[0].get_block_ids(), found[1]])
    hits = (length - 1) // 4
    assert subject.run(p) == [[list(range(1, hits + 1)), 4 * hits]]


def test_02_6_answers_and_tables_are_lists_of_their_own(subject: Any) -> None:
    """What the manager has answered, and the hits that it was handed, stay as they were while the
    table grows, and to change the answer changes no table."""
    p = Program()
    manager = p.new(MANAGER, 12, 4, 64, hash_root=b"root")
    ana = hashed(p, manager, "ana", range(8))
    first = manager.allocate_slots(ana, 8)
    p.set(ana, "num_computed_tokens", 8)
    second = manager.allocate_slots(ana, 5)
    ben = hashed(p, manager, "ben", range(20))
    hits = manager.get_computed_blocks(ben)
    third = manager.allocate_slots(ben, 4, hits[1], hits[0])
    p.set(ben, "num_computed_tokens", 12)
    fourth = manager.allocate_slots(ben, 5)
    for answer in (first, second, hits[0], third, fourth):
        p.see(answer.get_block_ids())
    first.blocks.clear()
    fourth.blocks.clear()
    p.see(manager.get_block_ids("ana"))
    p.see(manager.get_block_ids("ben"))
    right = [[1, 2], [3, 4], [1, 2], [5], [6, 7], [1, 2, 3, 4], [1, 2, 5, 6, 7]]
    assert subject.run(p) == right


def test_02_6_the_last_block_of_a_full_model_is_findable(subject: Any) -> None:
    """A sequence of the model's whole length, whose last block is full."""
    p = Program()
    manager = p.new(MANAGER, 9, 4, 8, hash_root=b"root")
    manager.allocate_slots(hashed(p, manager, "ana", range(8)), 8)
    p.see(manager.num_cached_blocks)
    p.see(manager.get_computed_blocks(hashed(p, manager, "ben", range(9)))[1])
    assert subject.run(p) == [{"ana": 2}, 8]


@many
@given(first=st.integers(1, 10), second=st.integers(1, 10))
def test_02_6_the_request_is_the_schedulers(subject: Any, first: int, second: int) -> None:
    """Slots are given; the request's own counts and drafts are the scheduler's to change, and so
    are the statistics of what was looked up."""
    p = Program()
    manager = p.new(MANAGER, 12, 4, 64, hash_root=b"root")
    manager.allocate_slots(hashed(p, manager, "ana", range(8)), 8)
    ben = hashed(p, manager, "ben", range(24))
    hits = manager.get_computed_blocks(ben)
    see_request(p, ben)
    manager.allocate_slots(ben, first, hits[1], hits[0])
    see_request(p, ben)
    p.set(ben, "num_computed_tokens", 8 + first)
    manager.allocate_slots(ben, second)
    p.set(ben, "num_computed_tokens", 0)
    see_request(p, ben)
    p.see([getattr(manager.prefix_cache_stats, n) for n in ("requests", "queries", "hits")])
    seen = subject.run(p)
    number = len(COUNTS) + 2
    assert seen[:number] == seen[number : 2 * number] == seen[2 * number : 3 * number]
    assert seen[-1] == [0, 0, 0]


@many
@given(tokens=st.integers(1, 24), valid=st.integers(0, 24))
def test_02_7_the_request_is_the_schedulers(subject: Any, tokens: int, valid: int) -> None:
    """Nor does it change when its blocks leave the cache, or are taken away."""
    p = Program()
    manager = p.new(MANAGER, 12, 4, 64, hash_root=b"root")
    ana = hashed(p, manager, "ana", range(24))
    manager.allocate_slots(ana, tokens)
    p.set(ana, "num_computed_tokens", tokens)
    see_request(p, ana)
    manager.uncache_blocks(ana, valid)
    see_request(p, ana)
    manager.free(ana)
    see_request(p, ana)
    seen = subject.run(p)
    number = len(COUNTS) + 2
    assert seen[:number] == seen[number : 2 * number] == seen[2 * number :]


@many
@given(
    tokens=st.integers(1, 24),
    valid=st.integers(0, 30),
    holes=st.sets(st.integers(0, 5)),
    shared=st.booleans(),
)
def test_02_7_all_that_failed_leaves_the_cache(
    subject: Any, tokens: int, valid: int, holes: set[int], shared: bool
) -> None:
    """Blocks that are held by two, and those behind one that has lost its name before. Tables,
    holders, the computed tokens of the request and the count of another one stay."""
    p = Program()
    manager = p.new(MANAGER, 12, 4, 64, hash_root=b"root")
    ana = hashed(p, manager, "ana", range(tokens))
    manager.allocate_slots(ana, tokens)
    p.set(ana, "num_computed_tokens", tokens)
    ids = list(range(1, -(-tokens // 4) + 1))
    full, held = tokens // 4, ids[: (tokens - 1) // 4] if shared else []
    if shared:
        ben = hashed(p, manager, "ben", range(tokens))
        hits = manager.get_computed_blocks(ben)
        manager.allocate_slots(ben, 1, hits[1], hits[0])
        held.append(len(ids) + 1)
    for hole in holes:
        manager.block_pool.evict(manager.block_pool.blocks[hole + 1])
    manager.uncache_blocks(ana, valid)
    named = [number for number in range(min(full, valid // 4)) if number not in holes]
    p.see(p.call("builtins:list", p.call("builtins:map", p.name("builtins:bool"), [
        manager.block_pool.blocks[block].block_hash for block in ids
    ])))  # fmt: skip
    p.see(manager.get_block_ids("ana"))
    p.see_each(manager.block_pool.blocks, "ref_cnt")
    p.see(ana.num_computed_tokens)
    p.see(manager.num_cached_blocks)
    assert subject.run(p) == [
        [number in named for number in range(len(ids))],
        ids,
        [(block in ids) + (block in held) for block in range(12)],
        tokens,
        {"ana": min(full, valid // 4)} | ({"ben": (tokens - 1) // 4} if shared else {}),
    ]


@many
@given(
    tokens=st.integers(1, 24) | st.integers(1, 2500),
    holes=st.sets(st.integers(1, 6)),
    names=st.booleans(),
)
def test_02_7_a_table_is_freed_from_its_end(
    subject: Any, tokens: int, holes: set[int], names: bool
) -> None:
    """Whichever of its blocks have names: the last one is given out first."""
    p = Program()
    number = -(-tokens // 4)
    manager = p.new(MANAGER, max(8, number + 2), 4, 2500, names, hash_root=b"root")
    ana = hashed(p, manager, "ana", range(tokens))
    manager.allocate_slots(ana, tokens)
    for hole in sorted(holes):
        manager.block_pool.evict(manager.block_pool.blocks[hole])
    manager.free(ana)
    p.see_each(p.call("builtins:list", manager.block_pool.free_block_queue), "block_id")
    total = max(8, number + 2)
    assert subject.run(p) == [[*range(number + 1, total), *range(number, 0, -1)]]


@pytest.mark.parametrize("first", ["ana", "ben"])
def test_02_7_of_twins_the_own_one_loses_its_name(subject: Any, first: str) -> None:
    """Ana and ben have filled equal blocks, one of them first. Hers are forgotten and his are
    found, whichever are older."""
    p = Program()
    manager = p.new(MANAGER, 12, 4, 64, hash_root=b"root")
    made = {name: hashed(p, manager, name, range(8)) for name in (first, "ana", "ben")}
    for name in made:
        manager.allocate_slots(made[name], 8)
    manager.uncache_blocks(made["ana"], 4)
    for name in ("ana", "ben"):
        p.see_each(manager.req_to_blocks[name], "block_hash")
    p.see(manager.get_computed_blocks(hashed(p, manager, "cleo", range(9)))[0].get_block_ids())
    mine, his, found = subject.run(p)
    assert [name is not None for name in (*mine, *his)] == [True, False, True, True]
    assert found == [1, 4 if first == "ana" else 2]


@pytest.mark.parametrize("valid", [0, 3, 500, 796, 900])
def test_02_7_a_long_failure_is_taken_back_to_its_end(subject: Any, valid: int) -> None:
    """Hundreds of blocks: those before the failure are found, and none behind it has a name."""
    p = Program()
    manager = p.new(MANAGER, 300, 4, 2000, hash_root=b"root")
    ana = hashed(p, manager, "ana", range(800))
    manager.allocate_slots(ana, 800)
    manager.uncache_blocks(ana, valid)
    p.see_each(manager.req_to_blocks["ana"], "block_hash")
    (names,) = subject.run(p)
    assert [name is not None for name in names] == [4 * i + 4 <= valid for i in range(200)]
