"""Queue, pool and manager: random stories that both sides play and whose ends must be equal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=40)
POOL = "mini_vllm.core.block_pool:"
MANAGER = "mini_vllm.core.kv_cache_manager:KVCacheManager"


def refused(p: Program, error: str, function: Any, *args: Any) -> None:
    """A call that must raise; what it leaves behind can be looked at afterwards."""
    p.refuse(error, function, *args)


def see_pool(p: Program, pool: Any) -> None:
    """The free queue, and each block's holders."""
    p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
    p.see(pool.free_block_queue.num_free_blocks)
    p.see_each(pool.blocks, "ref_cnt")
    pool.check_integrity()


@many
@given(moves=st.lists(st.integers(0, 5), max_size=30))
def test_02_2_any_order_of_leaving_and_coming(subject: Any, moves: list[int]) -> None:
    """A model in a list says what the queue must be: 5 pops, the rest leaves or comes back. A block
    outside has no neighbours."""
    p = Program()
    blocks = [p.new(f"{POOL}KVCacheBlock", i) for i in range(5)]
    queue = p.new(f"{POOL}FreeKVCacheBlockQueue", blocks)
    model = list(range(5))
    expected: list[Any] = []
    for move in moves:
        if move == 5 and model:
            p.see(queue.popleft().block_id)
            expected.append(model.pop(0))
        elif move in model:
            queue.remove(blocks[move])
            model.remove(move)
        elif move < 5:
            queue.append(blocks[move])
            model.append(move)
        p.see_each(p.call("builtins:list", queue), "block_id")
        p.see(queue.num_free_blocks)
        outside = [block for number, block in enumerate(blocks) if number not in model]
        for link in ("prev_free", "next_free"):
            p.see_each(outside, link)
        expected += [list(model), len(model), *[[None] * len(outside)] * 2]
    assert subject.run(p) == expected


@pytest.mark.parametrize("number", [0, 1, 2])
def test_02_2_a_refused_block_moves_nothing(subject: Any, number: int) -> None:
    """A block is appended a second time, and refused. Then it leaves as if nothing had been."""
    p = Program()
    blocks = [p.new(f"{POOL}KVCacheBlock", i) for i in range(3)]
    queue = p.new(f"{POOL}FreeKVCacheBlockQueue", blocks)
    refused(p, "ValueError", queue.append, blocks[number])
    queue.remove(blocks[number])
    p.see_each(p.call("builtins:list", queue), "block_id")
    queue.append(blocks[number])
    p.see_each(p.call("builtins:list", queue), "block_id")
    p.see(queue.num_free_blocks)
    rest = [i for i in range(3) if i != number]
    assert subject.run(p) == [rest, [*rest, number], 3]


@many
@given(data=st.data())
def test_02_3_random_sharing(subject: Any, reference: Any, data: st.DataObject) -> None:
    """Groups of blocks are taken, shared, filed and let go, in any order."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 8)
    groups: list[tuple[Any, int, int]] = []  # blocks, how many, holders
    free = 7
    for _ in range(data.draw(st.integers(1, 15))):
        move = data.draw(st.sampled_from(["take", "take", "share", "go", "go"]))
        if move == "take" and free:
            number = data.draw(st.integers(1, free))
            blocks = pool.get_new_blocks(number)
            hashes = [bytes([data.draw(st.integers(0, 3)), i]) for i in range(number)]
            if data.draw(st.booleans()):
                pool.cache_full_blocks(blocks, hashes)
            groups.append((blocks, number, 1))
            free -= number
        elif groups:
            index = data.draw(st.integers(0, len(groups) - 1))
            blocks, number, holders = groups.pop(index)
            if move == "share":
                pool.touch(blocks)
                groups.append((blocks, number, holders + 1))
            else:
                pool.free_blocks(p.call("builtins:reversed", blocks))
                free += number if holders == 1 else 0
                if holders > 1:
                    groups.append((blocks, number, holders - 1))
        see_pool(p, pool)
        for first in range(4):
            p.see(p.call("builtins:str", pool.get_cached_block(bytes([first, 0]))))
    assert subject.run(p) == reference.run(p)


@pytest.mark.parametrize(("total", "held"), [(4, 0), (4, 1), (4, 4), (300, 9), (700, 60)])
def test_02_3_all_or_nothing_at_the_limit(
    subject: Any, reference: Any, total: int, held: int
) -> None:
    """Of a few blocks or hundreds some are held. One more than is free is an error that takes
    none; exactly what is free may be taken, and given back."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", total + 1)
    pool.get_new_blocks(held)
    refused(p, "ValueError", pool.get_new_blocks, total + 1 - held)
    see_pool(p, pool)
    blocks = pool.get_new_blocks(total - held)
    see_pool(p, pool)
    pool.free_blocks(blocks)
    see_pool(p, pool)
    right = reference.run(p)
    assert right[4:6] == [0, [0, *[1] * total]]
    assert subject.run(p) == right


def test_02_3_bug_nano_vllm_9fa256a_a_hit_on_a_free_block_keeps_its_name(
    subject: Any, reference: Any
) -> None:
    """The hit was treated like a new block: its entry was gone, and the next request missed it.
    Blocks 1 and 2 are free with their names; 2 is found, let go and found once more."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 5)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [b"first", b"second"])
    pool.free_blocks(p.call("builtins:reversed", blocks))
    for _ in range(2):
        hit = pool.get_cached_block(b"second")
        pool.touch([hit])
        p.see(hit.block_hash)
        see_pool(p, pool)
        pool.free_blocks([hit])
    right = reference.run(p)
    assert right[0] == b"second" and right[4] == b"second"
    assert subject.run(p) == right


def test_02_4_the_oldest_twin_is_found_even_if_it_is_free(subject: Any) -> None:
    """Twins 1 and 2; the holder of 1 has gone, the holder of 2 has not."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 5)
    for _ in range(2):
        blocks = pool.get_new_blocks(1)
        pool.cache_full_blocks(blocks, [b"same"])
    pool.free_blocks([pool.blocks[1]])
    p.see(pool.get_cached_block(b"same").block_id)
    assert subject.run(p) == [1]


@many
@given(
    names=st.lists(st.binary(min_size=1, max_size=40), min_size=3, max_size=3, unique=True),
    moves=st.lists(
        st.tuples(st.sampled_from(["file", "file", "forget"]), st.integers(0, 7)), max_size=20
    ),
    number=st.integers(0, 2**31),
)
def test_02_4_any_names_and_twins(
    subject: Any, names: list[bytes], moves: list[tuple[str, int]], number: int
) -> None:
    """Blocks are filed by one of three names, one or several at a time, and forgotten again. A
    model in a list says which is found: the one that has had the name longest."""
    p = Program()
    pool = p.new(f"{POOL}BlockPool", 9)
    blocks = pool.get_new_blocks(8)
    filed: list[tuple[int, bytes]] = []
    expected: list[int | None] = []
    for move, first in moves:
        known = [index for index, _ in filed]
        if move == "forget":
            pool.evict(blocks[first])
            filed = [entry for entry in filed if entry[0] != first]
        else:
            group = [index for index in range(first, min(first + 3, 8)) if index not in known]
            hashes = [names[(number + 5 * index + len(filed)) % 3] for index in group]
            pool.cache_full_blocks([blocks[index] for index in group], hashes)
            filed += zip(group, hashes, strict=True)
        for name in names:
            p.see(p.call("builtins:getattr", pool.get_cached_block(name), "block_id", None))
            expected.append(next((index + 1 for index, n in filed if n == name), None))
    assert subject.run(p) == expected


def play(
    reference: Any, data: st.DataObject, blocks: int, model_len: int, caching: bool
) -> Program:
    """A random story of one manager. The reference tells which allocations were granted, so that
    both sides are only asked what a scheduler would ask."""
    p = Program()
    size = data.draw(st.sampled_from([1, 2, 3, 4]))
    manager = p.new(MANAGER, blocks + 1, size, model_len, caching, hash_root=b"root")
    computed: dict[int, int] = {}
    requests: dict[int, tuple[Any, int]] = {}
    for number in range(data.draw(st.integers(1, 14))):
        move = data.draw(st.sampled_from(["new", "new", "grow", "grow", "go", "fail"]))
        if move == "new":
            shared = data.draw(st.integers(0, 12))
            own = data.draw(st.integers(1, 8))
            prompt = list(range(shared)) + [100 * number + i for i in range(50, 50 + own)]
            length = min(len(prompt), model_len)
            request = p.new("mini_vllm.request:Request", f"r{number}", prompt[:length])
            if caching:
                request.set_block_hasher(manager.block_hasher)
            hits = manager.get_computed_blocks(request)
            p.see(hits[1])
            found = reference.run(p)[-1]
            new = data.draw(st.integers(1, length - found))
            lookahead, fit = data.draw(st.integers(0, 3)), data.draw(st.booleans())
            answer = manager.allocate_slots(request, new, hits[1], hits[0], lookahead, fit)
            p.see(answer)
            if reference.run(p)[-1] is not None:
                p.see(answer.get_block_ids())
                requests[number], computed[number] = (request, length), found + new
                p.set(request, "num_computed_tokens", found + new)
        elif requests:
            chosen = data.draw(st.sampled_from(sorted(requests)))
            request, length = requests[chosen]
            if move == "go":
                manager.free(request)
                del requests[chosen]
            elif move == "fail":
                computed[chosen] = data.draw(st.integers(0, computed[chosen]))
                manager.uncache_blocks(request, computed[chosen])
                manager.free(request)
                del requests[chosen]
            elif computed[chosen] < length:
                new = data.draw(st.integers(1, length - computed[chosen]))
                answer = manager.allocate_slots(request, new)
                p.see(answer)
                if reference.run(p)[-1] is not None:
                    computed[chosen] += new
                    p.set(request, "num_computed_tokens", computed[chosen])
            elif length < model_len:
                request.append_output_token_ids(7)
                requests[chosen] = (request, length + 1)
        for other in requests:
            p.see(manager.get_block_ids(f"r{other}"))
        p.see(manager.num_cached_blocks)
        see_pool(p, manager.block_pool)
        manager.check_integrity()
    return p


@settings(max_examples=40)
@given(data=st.data())
def test_02_6_random_stories(subject: Any, reference: Any, data: st.DataObject) -> None:
    """Admissions with hits, lookahead and the whole-sequence gate; growth, ends and failures."""
    blocks = data.draw(st.integers(2, 10))
    p = play(reference, data, blocks, data.draw(st.sampled_from([12, 64])), True)
    assert subject.run(p) == reference.run(p)


@settings(max_examples=15)
@given(data=st.data())
def test_02_6_random_stories_without_caching(
    subject: Any, reference: Any, data: st.DataObject
) -> None:
    """The same with caching off: nothing is ever found."""
    p = play(reference, data, data.draw(st.integers(2, 8)), 64, False)
    assert subject.run(p) == reference.run(p)


def admit(p: Program, manager: Any, name: str, prompt: list[int], new: int, **how: Any) -> Any:
    request = p.new("mini_vllm.request:Request", name, prompt)
    request.set_block_hasher(manager.block_hasher)
    hits = manager.get_computed_blocks(request)
    answer = manager.allocate_slots(request, new, hits[1], hits[0], **how)
    p.see(answer)
    p.see(manager.get_block_ids(name))
    p.see(manager.num_free_blocks)
    return request


def test_02_6_the_gate_knows_the_hits(subject: Any, reference: Any) -> None:
    """7 blocks, ana holds 2 and ben shares them: a sequence of 7 blocks in all fits exactly."""
    p = Program()
    manager = p.new(MANAGER, 8, 4, 64, hash_root=b"root")
    admit(p, manager, "ana", list(range(8)), 8)
    ben = list(range(28))
    admit(p, manager, "ben", ben, 1, full_sequence_must_fit=True)
    right = reference.run(p)
    assert right[3] is not None
    assert subject.run(p) == right


def test_02_6_the_gate_ends_at_the_models_length(subject: Any, reference: Any) -> None:
    """A request of 40 tokens in a model of 12 needs 3 blocks at most."""
    p = Program()
    manager = p.new(MANAGER, 4, 4, 12, hash_root=b"root")
    admit(p, manager, "ana", list(range(40)), 4, full_sequence_must_fit=True)
    right = reference.run(p)
    assert right[0] is not None
    assert subject.run(p) == right


def test_02_6_the_gate_asks_for_lookahead_too(subject: Any, reference: Any) -> None:
    """3 blocks hold all 8 tokens, but not their slots and 5 more."""
    p = Program()
    manager = p.new(MANAGER, 4, 4, 64, hash_root=b"root")
    for lookahead in (5, 4):
        how = {"num_lookahead_tokens": lookahead, "full_sequence_must_fit": True}
        admit(p, manager, f"ana{lookahead}", list(range(8)), 8, **how)
    right = reference.run(p)
    assert right[0] is None and right[3] is not None
    assert subject.run(p) == right


def test_02_6_bug_vllm_11562_a_refusal_leaks_nothing(subject: Any, reference: Any) -> None:
    """Hits were held before the refusal, so their blocks never became free again."""
    p = Program()
    manager = p.new(MANAGER, 8, 4, 64, hash_root=b"root")
    ana = admit(p, manager, "ana", list(range(8)), 8)
    admit(p, manager, "big", list(range(100, 116)), 16)
    manager.free(ana)
    for _ in range(3):
        admit(p, manager, "ben", list(range(16)), 8)
        see_pool(p, manager.block_pool)
    assert subject.run(p) == reference.run(p)


def test_02_7_an_aborted_twin_leaves_the_other_findable(subject: Any, reference: Any) -> None:
    """Ana and ben filled equal blocks. Ana's computation fails; ben's block is still right."""
    p = Program()
    manager = p.new(MANAGER, 8, 4, 64, hash_root=b"root")
    ana = admit(p, manager, "ana", list(range(4)), 4)
    admit(p, manager, "ben", list(range(4)), 4)
    manager.uncache_blocks(ana, 0)
    manager.free(ana)
    admit(p, manager, "cleo", list(range(5)), 1)
    see_pool(p, manager.block_pool)
    assert subject.run(p) == reference.run(p)
