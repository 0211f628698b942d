"""Task 15.5: how many tokens the host can bring."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def ask(lab: Any, stored: str, blocks: int = 4, local: int = 0, spare: int = 1) -> Any:
    connector = lab.host(lab.tier(8, stored))
    return connector.get_num_new_matched_tokens(lab.hashed(blocks, spare), local * lab.SIZE)


def test_15_5_blocks_that_follow_one_another(lab: Any) -> None:
    """From the first block on, until one is missing; loaded beside other steps."""
    expect(ask(lab, "ab"), (8, True), at="the host has a, b of a, b, c, d")
    expect(ask(lab, "acd"), (4, True), at="the host has a, c, d")
    expect(ask(lab, "bcd"), (0, False), at="the host has b, c, d: not the beginning")


def test_15_5_it_begins_behind_what_the_device_has(lab: Any) -> None:
    """Blocks that the device has are not offered, whether the host has them or not."""
    expect(ask(lab, "abcd", local=2), (8, True), at="the device has a, b; the host all four")
    expect(ask(lab, "cd", local=2), (8, True), at="the device has a, b; the host c, d")


def test_15_5_all_of_a_prompt_may_come(lab: Any) -> None:
    """A prompt of whole blocks is offered whole; the scheduler keeps a token back."""
    expect(ask(lab, "abcd", spare=0), (16, True), at="16 tokens, all there")


def test_15_5_later_is_not_never(lab: Any) -> None:
    """A block that is still being written delays the answer."""
    tier = lab.tier(8, "a")
    tier.policy.insert(lab.key("b"), type(tier.policy.get(lab.key("a")))(7))
    answer = lab.host(tier).get_num_new_matched_tokens(lab.hashed(4), 0)
    expect(answer, (None, False), at="a is ready, b is being written")


def test_15_5_no_block_is_loaded_twice(lab: Any) -> None:
    """What another request is loading now will be on the device soon: ask again then."""
    connector = lab.host(lab.tier(8, "ab"))
    lab.is_loading(connector, "ben", "b")
    answer = connector.get_num_new_matched_tokens(lab.hashed(4), 0)
    expect(answer, (None, False), at="ben is loading b")
    lab.is_loading(connector, "ben", "z")
    answer = connector.get_num_new_matched_tokens(lab.hashed(4), 0)
    expect(answer, (8, True), at="ben is loading another block")
    lab.is_loading(connector, "ben", "d")
    answer = connector.get_num_new_matched_tokens(lab.hashed(4), 0)
    expect(answer, (8, True), at="ben is loading d, and the host offers a and b")


def test_15_5_what_was_found_is_young(lab: Any) -> None:
    """The blocks found are touched."""
    tier = lab.tier(8, "abx")
    lab.host(tier).get_num_new_matched_tokens(lab.hashed(2), 0)
    expect(lab.names(tier.policy.blocks), "xba", at="oldest first, after a and b were found")


def test_15_5_a_lookup_that_must_wait_touches_nothing(lab: Any) -> None:
    """a is found, and ben is loading it: no offer, so a stays as old as it is."""
    tier = lab.tier(8, "ax")
    connector = lab.host(tier)
    lab.is_loading(connector, "ben", "a")
    answer = connector.get_num_new_matched_tokens(lab.hashed(2), 0)
    expect(answer, (None, False), at="ben is loading a")
    expect(lab.names(tier.policy.blocks), "ax", at="oldest first, after the answer")
