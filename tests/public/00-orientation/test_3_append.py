"""Task 00.3: take in what the model has sampled."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.block_hash import BlockHasher


def test_00_3_one_token_reaches_both_lists(tea: Any) -> None:
    """A single sampled token joins output_token_ids and all_token_ids."""
    request = tea()
    request.append_output_token_ids(21)
    expect(request.output_token_ids, [21], at="output_token_ids after append(21)")
    expect(request.all_token_ids, [11, 12, 13, 14, 15, 21], at="all_token_ids after append(21)")


def test_00_3_several_tokens_keep_their_order(tea: Any) -> None:
    """A list of tokens joins both lists flat and in order: a step may accept several drafts."""
    request = tea(output=[21])
    request.append_output_token_ids([22, 23])
    at = "after append([22, 23])"
    expect(request.output_token_ids, [21, 22, 23], at=f"output_token_ids {at}")
    expect(request.all_token_ids, [11, 12, 13, 14, 15, 21, 22, 23], at=f"all_token_ids {at}")


def test_00_3_token_zero_is_a_token(tea: Any) -> None:
    """Token id 0 is as good as any other."""
    request = tea()
    request.append_output_token_ids(0)
    expect(request.output_token_ids, [0], at="output_token_ids after append(0)")


def test_00_3_the_same_token_may_come_again(tea: Any) -> None:
    """A model may repeat itself: nothing is filtered."""
    request = tea(output=[21])
    request.append_output_token_ids(21)
    request.append_output_token_ids([21, 21])
    expect(request.output_token_ids, [21] * 4, at="output_token_ids after four times token 21")


def test_00_3_the_prompt_stays_as_it_is(tea: Any) -> None:
    """The prompt never grows: it is what the client has sent."""
    request = tea()
    request.append_output_token_ids([21, 22])
    request.append_output_token_ids(23)
    expect(request.prompt_token_ids, [11, 12, 13, 14, 15], at="prompt_token_ids after 3 tokens")


def test_00_3_the_callers_list_is_left_alone(tea: Any) -> None:
    """The list that is handed over belongs to the caller."""
    request, sampled = tea(), [21, 22]
    request.append_output_token_ids(sampled)
    request.append_output_token_ids(23)
    expect(sampled, [21, 22], at="the list that was handed over, after one more token")


def test_00_3_an_empty_list_changes_nothing(tea: Any) -> None:
    """No token sampled, nothing to append."""
    request = tea(output=[21])
    request.append_output_token_ids([])
    expect(request.output_token_ids, [21], at="output_token_ids after append([])")
    expect(len(request.all_token_ids), 6, at="length of all_token_ids after append([])")


def test_00_3_a_block_that_becomes_full_gets_its_hash(tea: Any) -> None:
    """Blocks of 4 tokens: the eighth token fills the second block, so it gets a hash."""
    request = tea(output=[21, 22])
    request.set_block_hasher(BlockHasher(4, root=b"root"))
    at = "number of block hashes with 7 tokens, blocks of 4"
    expect(len(request.block_hashes), 1, at=at)
    request.append_output_token_ids(23)
    at = "number of block hashes after the 8th token, blocks of 4"
    expect(len(request.block_hashes), 2, at=at, tokens=request.all_token_ids)


def test_00_3_several_tokens_may_fill_several_blocks(tea: Any) -> None:
    """The hashes are brought up to date after a list of tokens, too."""
    request = tea()
    request.set_block_hasher(BlockHasher(4, root=b"root"))
    request.append_output_token_ids([21, 22, 23, 24, 25, 26, 27])
    at = "number of block hashes after 5 + 7 tokens, blocks of 4"
    expect(len(request.block_hashes), 3, at=at, tokens=request.all_token_ids)
