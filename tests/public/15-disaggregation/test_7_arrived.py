"""Task 15.7: take in what has arrived."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.kv_transfer.remote_kv import TransferState, take_arrived


def arrive(lab: Any, num_tokens: int, computed: int) -> tuple[Any, Any, TransferState]:
    manager, request = lab.loaded(num_tokens, computed)
    state = TransferState({"ada", "ben"}, {"ada"}, {"ada"})
    take_arrived(state, manager, request)
    return manager, request, state


def test_15_7_what_has_arrived_can_be_found(lab: Any) -> None:
    """All full blocks of its computed tokens are findable, and no others."""
    manager, request, _ = arrive(lab, 15, 10)
    found = [manager.block_pool.get_cached_block(h) is not None for h in request.block_hashes]
    expect(found, [True, True, False], at="10 of 15 tokens, blocks of 4")
    expect(request.num_computed_tokens, 10, at="afterwards")


def test_15_7_a_token_is_left_to_compute(lab: Any) -> None:
    """With all tokens there, the last is computed again, in its place."""
    manager, request, _ = arrive(lab, 8, 8)
    expect(request.num_computed_tokens, 7, at="8 of 8 tokens")
    found = [manager.block_pool.get_cached_block(h) is not None for h in request.block_hashes]
    expect(found, [True, True], at="both blocks are full")
    expect(len(manager.get_block_ids("ada")), 2, at="and no other is needed")


def test_15_7_nothing_came(lab: Any) -> None:
    """A load that failed whole lets go of its blocks."""
    manager, _, _ = arrive(lab, 15, 0)
    expect(manager.get_block_ids("ada"), [], at="0 of 15 tokens")
    expect(manager.num_free_blocks, 31, at="all but the null block")


def test_15_7_it_is_on_its_way_no_longer(lab: Any) -> None:
    """It leaves all three sets; others stay."""
    for computed in (0, 8):
        state = arrive(lab, 15, computed)[2]
        expect(state, TransferState({"ben"}), at=f"{computed} tokens came")


def test_15_7_what_has_not_failed_is_not_among_the_failed(lab: Any) -> None:
    """A load that went well is in two of the sets; it leaves those, and nothing is raised."""
    manager, request = lab.loaded(15, 8)
    state = TransferState({"ada"}, {"ada"})
    take_arrived(state, manager, request)
    expect(state, TransferState(), at="ada loads and has arrived")
