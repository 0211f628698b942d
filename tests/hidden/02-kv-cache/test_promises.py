"""What the docstrings promise and random stories hardly ever meet: images on a border, errors by
their class, holes in a cached prefix, and what is left after a computation has failed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=60)
HASH = "mini_vllm.core.block_hash:"
POOL = "mini_vllm.core.block_pool:"
STEPS = "labkit.inside.cost:steps"
Image = tuple[int, int, str]


def request(p: Program, name: str, prompt: Sequence[int], **keys: Any) -> Any:
    return p.new("mini_vllm.request:Request", name, list(prompt), **keys)


# ------------------------------------------------------------------ 02.1 names


@many
@given(
    images=st.lists(
        st.lists(
            st.tuples(st.integers(0, 12), st.integers(1, 6), st.sampled_from(["cat", "dog"])),
            max_size=2,
        ),
        min_size=2,
        max_size=4,
    )
)
def test_02_1_images_count_where_they_lie(
    subject: Any, reference: Any, images: list[list[Image]]
) -> None:
    """The tokens are all the same, so that only the images tell blocks apart."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    for number, placed in enumerate(images):
        made = request(p, f"r{number}", [0] * 16, mm_hashes=placed)
        made.set_block_hasher(hasher)
        p.see(made.block_hashes)
    patterns = []
    for worker in (subject, reference):
        rows = worker.run(p)
        seen = [name for row in rows for name in row]
        patterns.append([[seen.index(name) for name in row] for row in rows])
    assert patterns[0] == patterns[1]


@pytest.mark.parametrize(
    ("keys", "start", "plain"),
    [
        ({}, 0, True),
        ({}, 4, True),
        ({"cache_salt": "acme"}, 0, False),
        ({"cache_salt": "acme"}, 4, True),
        ({"lora_name": "acme"}, 4, False),
        ({"mm_hashes": [(4, 4, "cat")]}, 0, True),
        ({"mm_hashes": [(4, 4, "cat")]}, 4, False),
        ({"mm_hashes": [(4, 4, "cat")]}, 8, True),
    ],
)
def test_02_1_plain_blocks_have_no_keys(
    subject: Any, keys: dict[str, Any], start: int, plain: bool
) -> None:
    """The empty tuple for what is told by its tokens, and never for anything else."""
    p = Program()
    p.see(p.call(f"{HASH}extra_hash_keys", request(p, "r", range(12), **keys), start, start + 4))
    (answer,) = subject.run(p)
    assert isinstance(answer, tuple)
    assert (answer == ()) is plain


def test_02_1_an_image_is_placed_within_its_block(subject: Any) -> None:
    """Token 1 of the first block and token 1 of the second are the same place."""
    p = Program()
    for offset, start in ((1, 0), (5, 4), (9, 8), (2, 0)):
        made = request(p, "r", [0] * 12, mm_hashes=[(offset, 2, "cat")])
        p.see(p.call(f"{HASH}extra_hash_keys", made, start, start + 4))
    first, second, third, other = subject.run(p)
    assert first == second == third != other


def test_02_1_a_name_is_made_of_its_own_block(subject: Any) -> None:
    """Each is `hash_block` of its parent, its own tokens and its own keys."""
    p = Program()
    tokens = list(range(12))
    made = request(p, "r", tokens, cache_salt="acme")
    made.set_block_hasher(p.new(f"{HASH}BlockHasher", 4, b"root"))
    p.see(made.block_hashes)
    parent = b"root"
    for start in (0, 4, 8):
        keys = p.call(f"{HASH}extra_hash_keys", made, start, start + 4)
        parent = p.call(f"{HASH}hash_block", parent, tokens[start : start + 4], keys)
        p.see(parent)
    names, *chain = subject.run(p)
    assert names == chain


def test_02_1_a_request_is_only_read(subject: Any) -> None:
    """Drafts have no names, for they may be rejected. Images, drafts and tokens are there as
    before, so that the same names come when it is asked again from the beginning."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    images = [(1, 2, "cat"), (5, 6, "dog"), (12, 1, "cow")]
    made = request(p, "r", range(14), mm_hashes=images, lora_name="x", cache_salt="y")
    p.set(made, "spec_token_ids", [7] * 9)
    parts = ("mm_hashes", "spec_token_ids", "all_token_ids", "block_hashes")
    for _ in range(2):
        names = hasher(made)
        p.see(names)
        for part in parts:
            p.see(p.call("builtins:list", getattr(made, part)))
    seen = subject.run(p)
    assert seen[:5] == seen[5:] and len(seen[0]) == 3
    assert seen[1:5] == [images, [7] * 9, list(range(14)), []]


# ------------------------------------------------------------------ 02.2 the free queue


def empty_pop(queue: Any, blocks: list[Any]) -> None:
    for _ in range(4):
        queue.popleft()


def absent_remove(queue: Any, blocks: list[Any]) -> None:
    queue.remove(blocks[1])
    queue.remove(blocks[1])


def double_append(queue: Any, blocks: list[Any]) -> None:
    queue.append(blocks[1])


@pytest.mark.parametrize(
    ("act", "error"),
    [(empty_pop, "IndexError"), (absent_remove, "ValueError"), (double_append, "ValueError")],
    ids=["no block is free", "not in the queue", "in the queue already"],
)
def test_02_2_what_cannot_be_is_refused(
    subject: Any, act: Callable[[Any, list[Any]], None], error: str
) -> None:
    """Each error has its class."""
    p = Program()
    blocks = [p.new(f"{POOL}KVCacheBlock", number) for number in range(3)]
    act(p.new(f"{POOL}FreeKVCacheBlockQueue", blocks), blocks)
    assert subject.run(p) == [{"!raises": error}]


def test_02_2_leaving_costs_the_same_in_any_queue(subject: Any) -> None:
    """Any block can leave in O(1): attributes of blocks are read as often in a queue of 400 as in
    one of 5. A cache of size 0 keeps nothing and counts the calls of what it wraps."""
    p = Program()
    counted = p.call("functools:lru_cache", 0)(p.name("builtins:object.__getattribute__"))
    kinds = (p.name(f"{POOL}KVCacheBlock"),)
    watched = p.call("builtins:type", "Watched", kinds, {"__getattribute__": counted})
    for number in (5, 400):
        blocks = [watched(i) for i in range(number)]
        queue = p.new(f"{POOL}FreeKVCacheBlockQueue", blocks)
        counted.cache_clear()
        queue.remove(blocks[number // 2])
        p.see(counted.cache_info().misses)
    short, long = subject.run(p)
    assert short == long


# ------------------------------------------------------------------ what a step costs


def test_02_1_each_hash_is_computed_once(subject: Any) -> None:
    """One more full block costs the same behind 8 blocks and behind 256; a text three times as long
    costs three times as much."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    for held in (8, 256):
        made = request(p, "r", range(4 * held))
        made.set_block_hasher(hasher)
        made.all_token_ids.extend([1, 2, 3, 4])
        p.see(p.call(STEPS, hasher, made))
    for blocks in (10, 40, 70):
        p.see(p.call(STEPS, hasher, request(p, "r", range(4 * blocks))))
    short, long, one, two, three = subject.run(p)
    assert long < 1.5 * short
    assert three - two < 1.5 * (two - one)


def crowded(p: Program, known: int) -> tuple[Any, Any, list[bytes]]:
    """A pool in which so many blocks and one more are named and as many are free; these blocks, and
    the names."""
    pool = p.new(f"{POOL}BlockPool", 2 * known + 2)
    blocks = pool.get_new_blocks(known + 1)
    names = [number.to_bytes(4, "big") for number in range(known + 1)]
    p.set(pool, "cached_blocks", {name: {n + 1: blocks[n]} for n, name in enumerate(names)})
    for number, name in enumerate(names):
        p.set(blocks[number], "block_hash", name)
    return pool, blocks, names


def test_02_3_no_other_block_is_asked(subject: Any) -> None:
    """To forget, to let go of, to hold and to take a block costs the same in a pool that knows 4
    names and 400."""
    p = Program()
    for known in (4, 400):
        pool, blocks, _ = crowded(p, known)
        p.see(p.call(STEPS, pool.evict, blocks[known]))
        p.see(p.call(STEPS, pool.free_blocks, [blocks[0]]))
        p.see(p.call(STEPS, pool.touch, [blocks[0]]))
        pool.free_blocks([blocks[0]])
        p.see(p.call(STEPS, pool.get_new_blocks, 1))
    costs = subject.run(p)
    assert all(long < 1.5 * short for short, long in zip(costs[:4], costs[4:], strict=True))


def test_02_4_no_other_name_is_read(subject: Any) -> None:
    """To file and to find a block costs the same in a pool that knows 4 names and 400."""
    p = Program()
    for known in (4, 400):
        pool, blocks, names = crowded(p, known)
        pool.evict(blocks[1])
        p.see(p.call(STEPS, pool.cache_full_blocks, [blocks[1]], [b"new"]))
        p.see(p.call(STEPS, pool.get_cached_block, names[-1]))
    costs = subject.run(p)
    assert all(long < 1.5 * short for short, long in zip(costs[:2], costs[2:], strict=True))


def test_02_5_each_name_is_looked_up_once(subject: Any) -> None:
    """A prompt three times as long, of which nothing is cached, costs three times as much or less;
    one block of it is found with the first names alone."""
    p = Program()
    manager = make_manager(p, 100)
    manager.allocate_slots(hashed(p, manager, "ana", range(4)), 4)
    for blocks in (10, 40, 70):
        made = hashed(p, manager, "ben", range(4 * blocks))
        p.see(p.call(STEPS, manager.get_computed_blocks, made))
    one, two, three = subject.run(p)
    assert three - two < 1.5 * (two - one) + 20


def test_02_5_the_first_miss_ends_the_walk(subject: Any) -> None:
    """A prompt of which nothing is cached costs the same whether it has 10 blocks or 400."""
    p = Program()
    manager = make_manager(p, 9)
    for blocks in (10, 400):
        made = hashed(p, manager, "ben", range(4 * blocks))
        p.see(p.call(STEPS, manager.get_computed_blocks, made))
    short, long = subject.run(p)
    assert long < 1.5 * short


def test_02_5_what_is_published_is_not_looked_at_again(subject: Any) -> None:
    """One more block costs the same behind 8 that are published and behind 256."""
    p = Program()
    for held in (8, 256):
        manager = make_manager(p, held + 1)
        made = hashed(p, manager, "ana", range(4 * held + 4))
        pool = manager.block_pool
        p.call("operator:setitem", manager.req_to_blocks, "ana", pool.get_new_blocks(held + 1))
        p.call("operator:setitem", manager.num_cached_blocks, "ana", 0)
        manager.cache_blocks(made, held)
        p.see(p.call(STEPS, manager.cache_blocks, made, held + 1))
    short, long = subject.run(p)
    assert long < 1.5 * short


# ------------------------------------------------------------------ 02.5 to 02.7 the manager


def make_manager(p: Program, blocks: int = 7, caching: bool = True) -> Any:
    """Blocks of 4 tokens; so many are usable."""
    return p.new(
        "mini_vllm.core.kv_cache_manager:KVCacheManager",
        blocks + 1, 4, 64, caching, hash_root=b"root",
    )  # fmt: skip


def hashed(p: Program, manager: Any, name: str, prompt: Sequence[int], **keys: Any) -> Any:
    made = request(p, name, prompt, **keys)
    made.set_block_hasher(manager.block_hasher)
    return made


@pytest.mark.parametrize("hole", range(7))
def test_02_5_a_hole_ends_the_prefix(subject: Any, hole: int) -> None:
    """Of seven cached blocks one is forgotten; those behind it are of no use without it."""
    p = Program()
    manager = make_manager(p)
    manager.allocate_slots(hashed(p, manager, "ana", range(28)), 28)
    ben = hashed(p, manager, "ben", range(30))
    manager.block_pool.evict(manager.req_to_blocks["ana"][hole])
    found = manager.get_computed_blocks(ben)
    p.see(found[0].get_block_ids())
    p.see(found[1])
    assert subject.run(p) == [list(range(1, hole + 1)), 4 * hole]


def test_02_5_a_lookup_keeps_what_it_found(subject: Any) -> None:
    """A later lookup that finds less, or nothing, changes no earlier answer."""
    p = Program()
    manager = make_manager(p)
    manager.allocate_slots(hashed(p, manager, "ana", range(12)), 12)
    found = [
        manager.get_computed_blocks(hashed(p, manager, f"r{length}", prompt))
        for length, prompt in ((12, range(12)), (7, range(7)), (9, range(50, 59)), (13, range(13)))
    ]
    for blocks in found:
        p.see(blocks[0].get_block_ids())
    manager.allocate_slots(hashed(p, manager, "ben", range(50, 54)), 4)
    for blocks in found:
        p.see(blocks[0].get_block_ids())
    assert subject.run(p) == 2 * [[1, 2], [1], [], [1, 2, 3]]


def test_02_5_prompt_logprobs_read_no_prefix_cache(subject: Any) -> None:
    """Logprobs of the prompt need every token of it computed, even if only the token's own is
    wanted: 0 is not None."""
    p = Program()
    manager = make_manager(p)
    manager.allocate_slots(hashed(p, manager, "ana", range(12)), 12)
    for logprobs in (None, 0, 1):
        params = p.new("mini_vllm.sampling_params:SamplingParams", prompt_logprobs=logprobs)
        ben = hashed(p, manager, "ben", range(12), sampling_params=params)
        found = manager.get_computed_blocks(ben)
        p.see(found[0].get_block_ids())
        p.see(found[1])
    assert subject.run(p) == [[1, 2], 8, [], 0, [], 0]


def test_02_5_skip_reading_prefix_cache_publishes_all_the_same(subject: Any) -> None:
    """A request with prompt logprobs reads no block. Its own blocks are found by the next one."""
    p = Program()
    manager = make_manager(p)
    params = p.new("mini_vllm.sampling_params:SamplingParams", prompt_logprobs=1)
    manager.allocate_slots(hashed(p, manager, "ana", range(12), sampling_params=params), 12)
    p.see(manager.num_cached_blocks)
    p.see(manager.get_computed_blocks(hashed(p, manager, "ben", range(14)))[1])
    assert subject.run(p) == [{"ana": 3}, 12]


@pytest.mark.parametrize("skip", [True, False, None])
def test_02_5_skip_reading_prefix_cache_finds_nothing(subject: Any, skip: bool | None) -> None:
    """A request may say so itself, with logprobs of its prompt and without."""
    p = Program()
    manager = make_manager(p)
    manager.allocate_slots(hashed(p, manager, "ana", range(12)), 12)
    right = []
    for logprobs in (None, 1):
        params = p.new(
            "mini_vllm.sampling_params:SamplingParams",
            prompt_logprobs=logprobs, skip_reading_prefix_cache=skip,
        )  # fmt: skip
        found = manager.get_computed_blocks(
            hashed(p, manager, "ben", range(12), sampling_params=params)
        )
        p.see(found[1])
        right.append(0 if skip or logprobs else 8)
    assert subject.run(p) == right


@pytest.mark.parametrize(("caching", "found"), [(True, [1, 2, 3]), (False, [])])
def test_02_5_off_means_that_nothing_is_found(
    subject: Any, caching: bool, found: list[int]
) -> None:
    """Blocks stand in the index under ana's names; with caching off none is shared."""
    p = Program()
    manager = make_manager(p, caching=caching)
    pool, ana = manager.block_pool, hashed(p, manager, "ana", range(14))
    pool.cache_full_blocks(pool.get_new_blocks(3), ana.block_hashes)
    hits = manager.get_computed_blocks(ana)
    p.see(hits[0].get_block_ids())
    p.see(hits[1])
    assert subject.run(p) == [found, 4 * len(found)]


@many
@given(
    size=st.integers(1, 5),
    prompt=st.lists(st.integers(0, 2**31), min_size=1, max_size=20),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    shared=st.integers(0, 20),
    own=st.lists(st.integers(0, 2**31), max_size=6),
)
def test_02_5_any_prompt_and_what_is_found_of_it(
    subject: Any, size: int, prompt: list[int], chunks: list[int], shared: int, own: list[int]
) -> None:
    """Ana's prompt is computed chunk by chunk, and ben's begins like hers. Whole blocks are found
    that she has computed and both have, and never his last token."""
    p = Program()
    manager = p.new(
        "mini_vllm.core.kv_cache_manager:KVCacheManager", 30, size, 64, True, hash_root=b"root"
    )
    ana, other = hashed(p, manager, "ana", prompt), [*prompt[:shared], *own] or [7]
    ben = hashed(p, manager, "ben", other)
    same = (mine == his for mine, his in zip(prompt, other, strict=False))
    common = sum(1 for _ in takewhile(bool, same))
    computed, expected = 0, []
    for chunk in chunks:
        new = min(chunk, len(prompt) - computed)
        if new:
            manager.allocate_slots(ana, new)
            computed += new
            p.set(ana, "num_computed_tokens", computed)
        found = manager.get_computed_blocks(ben)
        p.see(found[0].get_block_ids())
        p.see(found[1])
        p.see(manager.num_cached_blocks["ana"])
        hits = min(common, computed, len(other) - 1) // size
        expected += [list(range(1, hits + 1)), hits * size, computed // size]
    assert subject.run(p) == expected


@pytest.mark.parametrize("number", [0, -1])
def test_02_6_at_least_one_token(subject: Any, number: int) -> None:
    """Slots for nothing are a mistake of the caller, whatever is found or looked ahead."""
    p = Program()
    manager = make_manager(p)
    manager.allocate_slots(hashed(p, manager, "ana", range(8)), 8)
    ben = hashed(p, manager, "ben", range(9))
    hits = manager.get_computed_blocks(ben)
    refuse = functools.partial(p.refuse, "ValueError", manager.allocate_slots, ben, number)
    refuse()
    refuse(hits[1], hits[0])
    refuse(0, None, 4)
    refuse(hits[1], hits[0], 4, True)
    p.see(manager.get_block_ids("ben"))
    assert subject.run(p) == [[]]


def test_02_6_a_refused_request_is_not_noted(subject: Any) -> None:
    """Two blocks are free and ana needs three: she has no table afterwards, not even an empty
    one."""
    p = Program()
    manager = make_manager(p, blocks=2)
    p.see(manager.allocate_slots(hashed(p, manager, "ana", range(12)), 12))
    p.see(p.call("builtins:list", manager.req_to_blocks))
    p.see(manager.num_cached_blocks)
    assert subject.run(p) == [None, [], {}]


@pytest.mark.parametrize(("new", "lookahead"), [(8, 3), (9, 1), (9, 60), (10, 1)])
def test_02_6_no_slots_behind_the_models_length(subject: Any, new: int, lookahead: int) -> None:
    """A sequence of the model's 10 tokens takes 5 blocks of 2, however far the lookahead goes."""
    p = Program()
    manager = p.new("mini_vllm.core.kv_cache_manager:KVCacheManager", 7, 2, 10)
    answer = manager.allocate_slots(hashed(p, manager, "ana", range(10)), new, 0, None, lookahead)
    p.see(answer.get_block_ids())
    p.see(manager.num_free_blocks)
    assert subject.run(p) == [[1, 2, 3, 4, 5], 1]


@pytest.mark.parametrize(("blocks", "granted"), [(2, []), (1, None)])
def test_02_6_the_gate_for_a_request_with_room(
    subject: Any, blocks: int, granted: list[int] | None
) -> None:
    """Ana holds a block with one free slot, and her last token needs another block. With the gate
    she gets the slot only if that block is free, and takes no block yet."""
    p = Program()
    manager = make_manager(p, blocks)
    ana = hashed(p, manager, "ana", range(5))
    manager.allocate_slots(ana, 3)
    p.set(ana, "num_computed_tokens", 3)
    answer = manager.allocate_slots(ana, 1, full_sequence_must_fit=True)
    if granted is None:
        p.see(answer)
    else:
        p.see(answer.get_block_ids())
    p.see(manager.get_block_ids("ana"))
    p.see(manager.num_free_blocks)
    assert subject.run(p) == [granted, [1], blocks - 1]


@pytest.mark.parametrize(("output", "granted"), [(8, [1]), (9, None)])
def test_02_6_the_gate_counts_the_output(
    subject: Any, output: int, granted: list[int] | None
) -> None:
    """A preempted request: its prompt of 4 tokens and its output must fit into 3 blocks."""
    p = Program()
    manager = make_manager(p, 3)
    ana = hashed(p, manager, "ana", range(4))
    ana.append_output_token_ids([7] * output)
    answer = manager.allocate_slots(ana, 4, full_sequence_must_fit=True)
    p.see(answer if granted is None else answer.get_block_ids())
    assert subject.run(p) == [granted]


@pytest.mark.parametrize(
    ("gate", "reserved", "granted"),
    [(False, 3, [3]), (False, 4, None), (True, 2, [3]), (True, 3, None)],
)
def test_02_6_blocks_stay_free_beside_hits_and_gate(
    subject: Any, gate: bool, reserved: int, granted: list[int] | None
) -> None:
    """Six blocks are free, and two of them are hits. One token needs a third block, so that three
    remain; all 13 tokens need a fourth."""
    p = Program()
    manager = make_manager(p, 6)
    ana = hashed(p, manager, "ana", range(8))
    manager.allocate_slots(ana, 8)
    manager.free(ana)
    ben = hashed(p, manager, "ben", range(13))
    hits = manager.get_computed_blocks(ben)
    how = {"full_sequence_must_fit": gate, "reserved_blocks": reserved}
    answer = manager.allocate_slots(ben, 1, hits[1], hits[0], **how)
    p.see(answer if granted is None else answer.get_block_ids())
    p.see(manager.num_free_blocks)
    assert subject.run(p) == [granted, 6 if granted is None else 3]


@pytest.mark.parametrize(
    ("held", "new", "reserved", "granted"),
    [
        (0, 4, 2, [1]),
        (0, 4, 3, None),
        (0, 5, 2, None),
        (0, 5, 1, [1, 2]),
        (3, 1, 2, []),
        (3, 1, 3, None),
    ],
)
def test_02_6_so_many_blocks_stay_free(
    subject: Any, held: int, new: int, reserved: int, granted: list[int] | None
) -> None:
    """Of three blocks of 4 tokens, behind what ana holds; also where ana takes none. A refusal
    changes nothing."""
    p = Program()
    manager = make_manager(p, 3)
    ana = hashed(p, manager, "ana", range(5))
    if held:
        manager.allocate_slots(ana, held)
        p.set(ana, "num_computed_tokens", held)
    answer = manager.allocate_slots(ana, new, reserved_blocks=reserved)
    p.see(answer if granted is None else answer.get_block_ids())
    p.see(manager.num_free_blocks)
    assert subject.run(p) == [granted, 3 - (held > 0) - len(granted or [])]


def test_02_6_one_token_more_costs_the_same(subject: Any) -> None:
    """Behind 8 blocks in a small pool and behind 256 in a large one: a token that has room, one
    that fills its block, and one that needs another."""
    p = Program()
    for held in (8, 256):
        manager = p.new(
            "mini_vllm.core.kv_cache_manager:KVCacheManager",
            2 * held, 4, 2000, True, hash_root=b"root",
        )  # fmt: skip
        ana = hashed(p, manager, "ana", range(4 * held + 5))
        manager.allocate_slots(ana, 4 * held + 2)
        for computed in range(4 * held + 2, 4 * held + 5):
            p.set(ana, "num_computed_tokens", computed)
            p.see(p.call(STEPS, manager.allocate_slots, ana, 1))
    costs = subject.run(p)
    assert all(long < 1.5 * short for short, long in zip(costs[:3], costs[3:], strict=True))


@many
@given(certain=st.integers(1, 20), drafts=st.integers(1, 12), beyond=st.integers(0, 3))
def test_02_6_drafts_are_not_published(
    subject: Any, certain: int, drafts: int, beyond: int
) -> None:
    """The tokens of a step end with drafts that the request knows. Blocks of certain tokens alone
    become findable."""
    p = Program()
    manager = make_manager(p, 12)
    ana = hashed(p, manager, "ana", range(certain))
    p.set(ana, "spec_token_ids", list(range(50, 50 + drafts)))
    manager.allocate_slots(ana, certain + drafts, num_lookahead_tokens=beyond)
    p.see(manager.num_cached_blocks["ana"])
    p.see(p.call("builtins:len", manager.block_pool.cached_blocks))
    p.see(p.call("builtins:len", manager.get_block_ids("ana")))
    right = certain // 4
    assert subject.run(p) == [right, right, -(-(certain + drafts + beyond) // 4)]


@pytest.mark.parametrize(("valid", "hits"), [(12, 12), (8, 8), (7, 4), (3, 0)])
def test_02_7_what_was_computed_stays_findable(subject: Any, valid: int, hits: int) -> None:
    """Only blocks behind the valid tokens leave the cache, the one that is cut among them."""
    p = Program()
    manager = make_manager(p)
    ana = hashed(p, manager, "ana", range(12))
    manager.allocate_slots(ana, 12)
    manager.uncache_blocks(ana, valid)
    p.see(manager.num_cached_blocks["ana"])
    p.see(manager.get_computed_blocks(hashed(p, manager, "ben", range(14)))[1])
    assert subject.run(p) == [hits // 4, hits]


def test_02_7_uncaching_publishes_nothing(subject: Any) -> None:
    """One block of ana's is published when 8 of her tokens are said to be valid. It stays one, so
    the others are published when their turn comes."""
    p = Program()
    manager = make_manager(p)
    ana = hashed(p, manager, "ana", range(12))
    manager.allocate_slots(ana, 5)
    manager.uncache_blocks(ana, 8)
    p.see(manager.num_cached_blocks["ana"])
    p.set(ana, "num_computed_tokens", 5)
    manager.allocate_slots(ana, 7)
    p.see(manager.get_computed_blocks(hashed(p, manager, "ben", range(14)))[1])
    assert subject.run(p) == [1, 12]


def test_02_7_computed_again_it_is_findable_again(subject: Any) -> None:
    """The second block fails and is computed a second time."""
    p = Program()
    manager = make_manager(p)
    ana = hashed(p, manager, "ana", range(8))
    manager.allocate_slots(ana, 8)
    manager.uncache_blocks(ana, 4)
    p.set(ana, "num_computed_tokens", 4)
    manager.allocate_slots(ana, 4)
    p.see(manager.get_computed_blocks(hashed(p, manager, "ben", range(9)))[1])
    manager.check_integrity()
    p.see("whole")
    assert subject.run(p) == [8, "whole"]


def test_02_7_a_request_without_blocks_has_nothing_to_forget(subject: Any) -> None:
    """It fails before it held a block: nothing is noted about it."""
    p = Program()
    manager = make_manager(p)
    manager.uncache_blocks(hashed(p, manager, "ana", range(8)), 0)
    p.see(manager.num_cached_blocks)
    p.see(manager.num_free_blocks)
    assert subject.run(p) == [{}, 7]
