"""Borders between the parts of a name, refusals that move nothing, and states on the way to them.

A name is made of several texts that users choose. Joined without borders, the adapter `x` with the
salt `y` is the adapter `xy`: one tenant reads what another has computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=60)
HASH = "mini_vllm.core.block_hash:"
POOL = "mini_vllm.core.block_pool:"
CHARACTERS = "ax0:,|'\"()[] \\\n\x00="
WORDS = st.text(CHARACTERS, max_size=4) | st.sampled_from(
    ["", "None", "lora", "salt", "mm", "('salt', 'a')", "lora=a", "0", "1"]
)
KEYS = st.fixed_dictionaries(
    {
        "lora_name": st.none() | WORDS,
        "cache_salt": st.none() | WORDS,
        "mm_hashes": st.lists(st.tuples(st.integers(0, 2), st.just(1), WORDS), max_size=2),
    }
)


def cuts(text: str) -> list[dict[str, Any]]:
    """Every way to give one text to adapter, salt and image, part by part."""
    return [
        {"lora_name": text[:i], "cache_salt": text[i:j], "mm_hashes": [(0, 1, text[j:])]}
        for i in range(len(text) + 1)
        for j in range(i, len(text) + 1)
    ]


def names_of(worker: Any, wanted: list[dict[str, Any]]) -> list[int]:
    """The name of a block of four equal tokens with each of these keys, numbered by first sight."""
    p = Program()
    hasher = p.new(f"{HASH}BlockHasher", 4, b"root")
    for number, keys in enumerate(wanted):
        made = p.new("mini_vllm.request:Request", f"r{number}", [7] * 4, **keys)
        made.set_block_hasher(hasher)
        p.see(made.block_hashes)
    names = [row[0] for row in worker.run(p)]
    return [names.index(name) for name in names]


@many
@given(wanted=st.lists(KEYS, min_size=2, max_size=8))
def test_02_1_no_two_contents_have_one_name(
    subject: Any, reference: Any, wanted: list[dict[str, Any]]
) -> None:
    """Adapters, salts and images of any text, the empty one among them, and none at all."""
    assert names_of(subject, wanted) == names_of(reference, wanted)


@many
@given(text=st.text(CHARACTERS, min_size=1, max_size=5))
def test_02_1_parts_of_a_name_have_borders(subject: Any, text: str) -> None:
    """One text, cut into adapter, salt and image in every possible way."""
    wanted = cuts(text)
    assert names_of(subject, wanted) == list(range(len(wanted)))


BORDERS = ("", "+", ",", "|", ":", ";", "/", "-", "_", "=", " ", "\n", "\0", ", ", "::", "', '")
LABELS = ("", "salt", "cache_salt", "lora", "lora_name", "mm", "image", "None")


@pytest.mark.parametrize("border", BORDERS, ids=repr)
def test_02_1_a_text_may_look_like_a_border(subject: Any, border: str) -> None:
    """An adapter whose name holds what could stand between an adapter and a salt."""
    wanted: list[dict[str, Any]] = [{"lora_name": "x", "cache_salt": "y"}]
    for label in LABELS:
        inner = [label, "y"] if label else ["y"]
        wanted.append({"lora_name": border.join(["x", *inner])})
        wanted.append({"cache_salt": border.join(["y", *inner[:-1], "x"])})
        wanted.append({"lora_name": border.join(["x", label]), "cache_salt": "y"})
    distinct = [keys for number, keys in enumerate(wanted) if keys not in wanted[:number]]
    assert names_of(subject, distinct) == list(range(len(distinct)))


@many
@given(
    keys=st.lists(
        st.lists(WORDS | st.integers(0, 12) | st.tuples(WORDS, WORDS), max_size=3).map(tuple),
        min_size=2,
        max_size=8,
    )
)
def test_02_1_keys_of_any_form_make_names_of_their_own(
    subject: Any, reference: Any, keys: list[tuple[Any, ...]]
) -> None:
    """`hash_block` alone: other extra keys, another name, and the same keys the same. A hasher
    that sorts the keys takes none away."""
    p = Program()
    seen: dict[bytes, int] = {}
    for extra in keys:
        p.see(p.call(f"{HASH}hash_block", b"\0" * 32, [1, 2], extra))
    forms = [sorted(map(repr, extra)) for extra in keys]
    for number, name in enumerate(subject.run(p)):
        first = seen.setdefault(name, number)
        assert forms[first] == forms[number], "two contents have one name"
        assert first <= keys.index(keys[number]), "one content has two names"


# ------------------------------------------------------------------ 02.2 refusals move nothing
def refused(p: Program, error: str, function: Any, *args: Any) -> None:
    """A call that must raise; what it leaves behind can be looked at afterwards."""
    p.refuse(error, function, *args)


def pop_none(p: Program, queue: Any, blocks: list[Any], absent: Any) -> list[int]:
    for _ in blocks:
        queue.popleft()
    refused(p, "IndexError", queue.popleft)
    return []


def remove_absent(p: Program, queue: Any, blocks: list[Any], absent: Any) -> list[int]:
    refused(p, "ValueError", queue.remove, absent)
    return [0, 1, 2]


def remove_twice(p: Program, queue: Any, blocks: list[Any], absent: Any) -> list[int]:
    queue.remove(blocks[1])
    refused(p, "ValueError", queue.remove, blocks[1])
    return [0, 2]


def append_twice(p: Program, queue: Any, blocks: list[Any], absent: Any) -> list[int]:
    refused(p, "ValueError", queue.append, blocks[2])
    return [0, 1, 2]


@pytest.mark.parametrize(
    "act",
    [pop_none, remove_absent, remove_twice, append_twice],
    ids=["empty", "absent", "removed twice", "appended twice"],
)
def test_02_2_a_refusal_leaves_queue_and_count(
    subject: Any, act: Callable[[Program, Any, list[Any], Any], list[int]]
) -> None:
    """The count of free blocks and their order are those from before the call."""
    p = Program()
    blocks = [p.new(f"{POOL}KVCacheBlock", number) for number in range(3)]
    queue = p.new(f"{POOL}FreeKVCacheBlockQueue", blocks)
    left = act(p, queue, blocks, p.new(f"{POOL}KVCacheBlock", 9))
    p.see(queue.num_free_blocks)
    p.see_each(p.call("builtins:list", queue), "block_id")
    assert subject.run(p) == [len(left), left]


@many
@given(held=st.integers(0, 4), more=st.integers(1, 3), filed=st.integers(0, 3))
def test_02_3_blocks_that_cannot_be_given_keep_their_names(
    subject: Any, held: int, more: int, filed: int
) -> None:
    """Too many are wanted: holders, free queue, names and index are those from before."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 5)
    known = [bytes([number]) * 32 for number in range(min(filed, 4))]
    if known:
        blocks = pool.get_new_blocks(len(known))
        pool.cache_full_blocks(blocks, known)
        pool.free_blocks(blocks)
    if held:
        pool.get_new_blocks(held)

    def see() -> None:
        p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
        p.see_each(pool.blocks, "ref_cnt")
        p.see_each(pool.blocks, "block_hash")
        p.see(p.call("builtins:list", pool.cached_blocks))
        p.see(pool.num_free_blocks)

    see()
    refused(p, "ValueError", pool.get_new_blocks, 4 - held + more)
    see()
    seen = subject.run(p)
    assert seen[:5] == seen[5:] and seen[4] == 4 - held


# ------------------------------------------------------------------ 02.6 refusals of the manager
@many
@given(
    usable=st.integers(1, 6),
    held=st.integers(1, 5),
    shared=st.booleans(),
    wanted=st.integers(0, 30),
    lookahead=st.integers(0, 6),
    gate=st.booleans(),
)
def test_02_6_a_refusal_leaves_everything(
    subject: Any, reference: Any, usable: int, held: int, shared: bool, wanted: int,
    lookahead: int, gate: bool,
) -> None:  # fmt: skip
    """Free blocks, holders, tables, names and counts, whether it is None or a ValueError."""
    p = Program()
    manager = p.new(
        "mini_vllm.core.kv_cache_manager:KVCacheManager", usable + 1, 4, 64, True, hash_root=b"root"
    )
    pool = manager.block_pool

    def request(name: str, prompt: list[int]) -> Any:
        made = p.new("mini_vllm.request:Request", name, prompt)
        made.set_block_hasher(manager.block_hasher)
        return made

    def see() -> None:
        p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
        p.see_each(pool.blocks, "ref_cnt")
        p.see_each(pool.blocks, "block_hash")
        p.see(p.call("builtins:list", manager.req_to_blocks))
        p.see(manager.get_block_ids("ana"))
        p.see(manager.get_block_ids("ben"))
        p.see(manager.num_cached_blocks)

    prompt = list(range(4 * min(held, usable)))
    ana = request("ana", prompt)
    manager.allocate_slots(ana, len(prompt))
    if shared:
        manager.free(ana)
    ben = request("ben", prompt + list(range(100, 130)))
    hits = manager.get_computed_blocks(ben)
    see()
    if wanted == 0:
        refused(p, "ValueError", manager.allocate_slots, ben, 0, hits[1], hits[0])
        p.see(None)
    else:
        answer = manager.allocate_slots(ben, wanted, hits[1], hits[0], lookahead, gate)
        p.see(p.call("operator:is_", answer, None))
    see()
    seen, right = subject.run(p), reference.run(p)
    assert seen == right
    if right[7] is not False:
        assert seen[:7] == seen[8:]
