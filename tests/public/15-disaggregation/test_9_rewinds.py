"""Task 15.9: rewind requests whose KV did not arrive."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.kv_transfer.remote_kv import find_rewinds


def find(lab: Any, invalid: set[int], scheduled: dict[str, int], **requests: Any) -> dict[str, int]:
    """`requests`: by id the computed tokens, this step's included, and the blocks."""
    made = [lab.request(name, 64, computed) for name, (computed, _) in requests.items()]
    tables = {name: blocks for name, (_, blocks) in requests.items()}
    return find_rewinds(made, invalid, tables, scheduled, lab.SIZE)


def test_15_9_back_to_the_first_hole(lab: Any) -> None:
    """Sound is what lies before the first invalid block."""
    yours = find(lab, {3, 5}, {}, ada=(16, [1, 2, 3, 4]))
    expect(yours, {"ada": 8}, at="16 tokens in blocks 1, 2, 3, 4; 3 and 5 did not come")
    yours = find(lab, {2, 4}, {}, ada=(16, [1, 2, 3, 4]))
    expect(yours, {"ada": 4}, at="2 and 4 did not come")


def test_15_9_requests_without_an_invalid_block_go_on(lab: Any) -> None:
    """Requests without an invalid block are not named."""
    yours = find(lab, {3}, {}, ada=(8, [1, 2]), ben=(8, [3, 4]))
    expect(yours, {"ben": 0}, at="only ben has block 3")


def test_15_9_this_steps_tokens_were_never_to_be_loaded(lab: Any) -> None:
    """Blocks that this step was to fill do not count."""
    yours = find(lab, {3}, {"ada": 4}, ada=(12, [1, 2, 3]))
    expect(yours, {}, at="12 tokens, 4 of them in this step; block 3 holds those")
    yours = find(lab, {3}, {"ada": 2}, ada=(12, [1, 2, 3]))
    expect(yours, {"ada": 8}, at="12 tokens, 2 of them in this step; block 3 was begun before")


def test_15_9_every_holder_goes_back(lab: Any) -> None:
    """Also the second one: the first may be aborted before it has computed the block again."""
    yours = find(lab, {2}, {}, ada=(12, [1, 2, 3]), ben=(16, [1, 2, 7, 8]))
    expect(yours, {"ada": 4, "ben": 4}, at="both hold block 2")
