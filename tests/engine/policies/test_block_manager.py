"""Forks that copy on write, and blocks that move: the block manager alone, no scheduler.

Beam search lives here: beams fork and end at every token, and their contents must never mix.
"""

from __future__ import annotations

import random

import pytest

from mini_vllm.config import CacheConfig
from mini_vllm.policies.block_manager import AllocStatus, BlockManager
from mini_vllm.request import Request
from tests.engine.core.build import make_request

Copies = list[tuple[int, int]]


def make_manager(blocks: int = 9, cpu_blocks: int = 6, watermark: float = 0.0) -> BlockManager:
    cache = CacheConfig(4, blocks + 1, num_cpu_blocks=cpu_blocks)
    return BlockManager(cache, max_model_len=64, hash_root=b"root", watermark=watermark)


def start(manager: BlockManager, name: str, num_tokens: int) -> Request:
    """A request whose tokens are all computed."""
    request = make_request(name, num_tokens)
    request.set_block_hasher(manager.block_hasher)
    assert manager.allocate_slots(request, num_tokens) is not None
    request.num_computed_tokens = num_tokens
    manager.publish(request)
    return request


def fork(manager: BlockManager, parent: Request, name: str) -> Request:
    child = make_request(name, parent.all_token_ids)
    child.set_block_hasher(manager.block_hasher)
    manager.fork(parent, child, parent.num_computed_tokens)
    return child


def grow(manager: BlockManager, request: Request, token: int) -> Copies:
    """The request computes one more token."""
    request.append_output_token_ids(token)
    _, copies = manager.append(request, request.num_tokens)
    request.num_computed_tokens += 1
    manager.publish(request)
    return copies


def table(manager: BlockManager, request: Request) -> list[int]:
    return manager.get_block_ids(request.request_id)


# ------------------------------------------------------------------ fork and copy on write


def test_a_fork_shares_everything_and_takes_no_block() -> None:
    manager = make_manager()
    parent = start(manager, "p", 6)
    free = manager.num_free_blocks
    child = fork(manager, parent, "c")
    assert table(manager, child) == table(manager, parent) == [1, 2]
    assert manager.num_free_blocks == free and child.num_computed_tokens == 6
    manager.check_integrity([parent, child])


def test_the_first_writer_copies_and_the_last_holder_does_not() -> None:
    manager = make_manager()
    parent = start(manager, "p", 6)
    children = [fork(manager, parent, name) for name in "cd"]
    assert manager.num_blocks_to_append(parent, 7) == 1
    assert grow(manager, parent, 1) == [(2, 3)]
    assert grow(manager, children[0], 2) == [(2, 4)]
    assert manager.num_blocks_to_append(children[1], 7) == 0
    assert grow(manager, children[1], 3) == []
    assert [table(manager, r) for r in (parent, *children)] == [[1, 3], [1, 4], [1, 2]]
    manager.check_integrity([parent, *children])


def test_a_full_last_block_is_shared_for_good() -> None:
    manager = make_manager()
    parent = start(manager, "p", 8)
    child = fork(manager, parent, "c")
    assert grow(manager, parent, 1) == [] and grow(manager, child, 2) == []
    assert table(manager, parent) == [1, 2, 3] and table(manager, child) == [1, 2, 4]


def test_a_fork_can_begin_within_the_parents_tokens() -> None:
    """Sharing 5 of 11 tokens takes two blocks; the third is the parent's alone."""
    manager = make_manager()
    parent = start(manager, "p", 11)
    child = make_request("c", parent.all_token_ids[:6])
    manager.fork(parent, child, 5)
    assert table(manager, child) == [1, 2] and table(manager, parent) == [1, 2, 3]
    _, copies = manager.append(child, 6)
    assert copies == [(2, 4)] and table(manager, child) == [1, 4]


def test_appending_says_before_how_many_blocks_it_takes() -> None:
    manager = make_manager(blocks=4)
    parent = start(manager, "p", 6)
    child = fork(manager, parent, "c")
    assert manager.num_blocks_to_append(child, 9) == 2, "a copy, and a third block"
    free = manager.num_free_blocks
    new, copies = manager.append(child, 9)
    assert free - manager.num_free_blocks == 2 == len(new.blocks) + len(copies)
    assert manager.num_blocks_to_append(parent, 9) == 1
    with pytest.raises(ValueError, match="1 blocks are wanted but 0 are free"):
        manager.append(parent, 9)
    assert table(manager, parent) == [1, 2], "nothing has changed"


def test_a_copy_without_the_blocks_behind_it_is_not_made() -> None:
    manager = make_manager(blocks=3)
    parent = start(manager, "p", 6)
    child = fork(manager, parent, "c")
    with pytest.raises(ValueError, match="2 blocks are wanted but 1 are free"):
        manager.append(child, 9)
    assert table(manager, child) == table(manager, parent) == [1, 2]
    manager.check_integrity([parent, child])


def test_ending_a_fork_leaves_the_shared_blocks_to_the_others() -> None:
    manager = make_manager()
    parent = start(manager, "p", 6)
    child = fork(manager, parent, "c")
    manager.free(parent)
    assert manager.num_free_blocks == 7 and table(manager, child) == [1, 2]
    assert grow(manager, child, 1) == []
    manager.free(child)
    assert manager.num_free_blocks == 9


class Beams:
    """Beam search on blocks: the slots' contents are the tokens themselves."""

    def __init__(self, manager: BlockManager, prompt: int) -> None:
        self.manager = manager
        self.slots: dict[int, int] = {}
        self.beams = [start(manager, "b", prompt)]
        self.count = 0
        for position in range(prompt):
            self.write(self.beams[0], position)

    def slot(self, beam: Request, position: int) -> int:
        return table(self.manager, beam)[position // 4] * 4 + position % 4

    def write(self, beam: Request, position: int) -> None:
        self.slots[self.slot(beam, position)] = beam.all_token_ids[position]

    def step(self, draw: random.Random, width: int) -> int:
        """Every beam forks, the best ``width`` stay and grow; the number of copies."""
        for parent in list(self.beams):
            self.count += 1
            self.beams.append(fork(self.manager, parent, f"b{self.count}"))
        draw.shuffle(self.beams)
        for beam in self.beams[width:]:
            self.manager.free(beam)
        self.beams = self.beams[:width]
        num_copies = 0
        for beam in self.beams:
            copies = grow(self.manager, beam, draw.randrange(1000, 2000))
            for source, target in copies:
                for offset in range(4):
                    value = self.slots.get(source * 4 + offset, -1)
                    self.slots[target * 4 + offset] = value
            num_copies += len(copies)
            self.write(beam, beam.num_computed_tokens - 1)
        return num_copies

    def check(self) -> None:
        for beam in self.beams:
            read = [self.slots[self.slot(beam, i)] for i in range(beam.num_computed_tokens)]
            assert read == beam.all_token_ids, f"{beam} reads another beam's tokens"
        self.manager.check_integrity(self.beams)


@pytest.mark.parametrize("prompt", [1, 4, 6, 7])
def test_beams_never_read_each_others_tokens(prompt: int) -> None:
    """40 tokens of four beams, in a pool that four separate requests would overflow."""
    manager = make_manager(blocks=40)
    search = Beams(manager, prompt)
    draw = random.Random(prompt)
    copies = 0
    for _ in range(40):
        copies += search.step(draw, width=4)
        search.check()
    assert copies >= 20
    for beam in search.beams:
        manager.free(beam)
    assert manager.num_free_blocks == 40


# ------------------------------------------------------------------ swapping


def test_a_shared_block_moves_once_and_is_shared_again() -> None:
    manager = make_manager()
    parent = start(manager, "p", 6)
    child = fork(manager, parent, "c")
    grow(manager, child, 1)
    assert manager.can_swap_out([parent, child])
    assert manager.swap_out([parent, child]) == [(1, 0), (2, 1), (3, 2)]
    assert manager.host_tables == {"p": [0, 1], "c": [0, 2]}
    assert manager.num_free_blocks == 9 and len(manager.free_host_blocks) == 3
    manager.check_integrity()
    pairs = manager.swap_in([parent, child])
    assert [host for host, _ in pairs] == [0, 1, 2]
    device = dict(pairs)
    assert table(manager, parent) == [device[0], device[1]]
    assert table(manager, child) == [device[0], device[2]]
    manager.check_integrity([parent, child])
    assert sorted(manager.free_host_blocks) == list(range(6))


def test_only_computed_blocks_move() -> None:
    manager = make_manager()
    request = make_request("r", 20)
    request.set_block_hasher(manager.block_hasher)
    manager.allocate_slots(request, 6, num_lookahead_tokens=14)
    request.num_computed_tokens = 6
    assert len(table(manager, request)) == 5
    assert len(manager.swap_out([request])) == 2


def test_swapped_in_blocks_can_be_found_again() -> None:
    """Their hashes stayed with the old blocks, which others may have overwritten."""
    manager = make_manager()
    one = start(manager, "p", 9)
    two = fork(manager, one, "q")
    manager.swap_out([one, two])
    manager.reset_prefix_cache()
    manager.swap_in([one, two])
    finder = make_request("f", one.prompt_token_ids)
    finder.set_block_hasher(manager.block_hasher)
    assert manager.get_computed_blocks(finder)[1] == 0
    manager.publish(one)
    manager.publish(two)
    blocks, num_tokens = manager.get_computed_blocks(finder)
    assert num_tokens == 8 and blocks.get_block_ids() == table(manager, one)[:2]
    manager.check_integrity([one, two])


def test_the_host_may_be_too_small() -> None:
    manager = make_manager(cpu_blocks=2)
    request = start(manager, "r", 9)
    assert not manager.can_swap_out([request])
    other = start(manager, "s", 8)
    assert manager.can_swap_out([other])
    manager.swap_out([other])
    assert not manager.can_swap_out([start(manager, "t", 1)])
    manager.free(other)
    assert sorted(manager.free_host_blocks) == [0, 1]


def test_freeing_one_of_two_swapped_requests_keeps_what_they_share() -> None:
    manager = make_manager()
    parent = start(manager, "p", 6)
    child = fork(manager, parent, "c")
    grow(manager, child, 1)
    manager.swap_out([parent, child])
    manager.free(parent)
    assert manager.host_tables == {"c": [0, 2]}
    manager.check_integrity()
    assert [host for host, _ in manager.swap_in([child])] == [0, 2]


@pytest.mark.parametrize(
    ("held", "num_tokens", "status"),
    [
        (0, 36, AllocStatus.OK),
        (0, 37, AllocStatus.NEVER),
        (8, 28, AllocStatus.LATER),
        (8, 24, AllocStatus.LATER),
        (8, 20, AllocStatus.OK),
    ],
)
def test_allocation_leaves_the_watermark_to_running_requests(
    held: int, num_tokens: int, status: AllocStatus
) -> None:
    """9 blocks of 4, 2 of them kept free while a request holds one."""
    manager = make_manager(watermark=0.25)
    if held:
        start(manager, "h", held)
    assert manager.can_allocate(make_request("r", num_tokens)) is status
