"""Task 04.3: attention over pages in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.kernels.direct import expect_close
from labkit.testing import expect
from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.reference import attend, causal_mask, gather_kv, paged_attention


def bits(query_len: int, seq_len: int, window: int | None) -> list[str]:
    """The mask as rows of 0 and 1."""
    mask = causal_mask(query_len, seq_len, window)
    return ["".join("1" if bool(seen) else "0" for seen in row) for row in mask]


def slots_cache() -> torch.Tensor:
    """3 blocks of 4 slots, one head of one feature: the key in slot s is s, its value 100 + s."""
    keys = torch.arange(12.0)
    return torch.stack((keys, 100 + keys)).view(2, 3, 4, 1, 1)


def test_04_3_gather_follows_the_block_table() -> None:
    """Pages come in the table's order, not in the cache's."""
    keys, values = gather_kv(slots_cache(), torch.tensor([2, 0], dtype=torch.int32), 6)
    at = "block table [2, 0], 6 tokens, block size 4"
    expect(keys.flatten()[:6].tolist(), [8.0, 9.0, 10.0, 11.0, 0.0, 1.0], at=f"{at}: keys")
    values_expected = [108.0, 109.0, 110.0, 111.0, 100.0, 101.0]
    expect(values.flatten()[:6].tolist(), values_expected, at=f"{at}: values")


def test_04_3_gather_cuts_the_last_page() -> None:
    """What lies behind the last token in its page is not part of the context."""
    keys, values = gather_kv(slots_cache(), torch.tensor([2, 0], dtype=torch.int32), 6)
    at = "two pages of 4 tokens, 6 tokens in all"
    expect(list(keys.shape), [6, 1, 1], at=f"{at}: shape of the keys [seq_len, Hkv, D]")
    expect(list(values.shape), [6, 1, 1], at=f"{at}: shape of the values")


def test_04_3_gather_leaves_unused_entries_alone() -> None:
    """Entries past the last block are garbage: never look them up."""
    table = torch.tensor([1, 999999, 999999], dtype=torch.int32)
    keys, _ = gather_kv(slots_cache(), table, 4)
    at = "4 tokens fill one block exactly; the other entries are garbage"
    expect(keys.flatten().tolist(), [4.0, 5.0, 6.0, 7.0], at=at)


def test_04_3_new_tokens_are_the_last_of_the_context() -> None:
    """Row i stands at seq_len - query_len + i and sees itself and what lies before it."""
    expect(bits(2, 5, None), ["11110", "11111"], at="2 new tokens, 5 in all")
    expect(bits(1, 4, None), ["1111"], at="a decode at position 3")


def test_04_3_a_prompt_is_a_triangle() -> None:
    """Nothing was computed before: token i sees tokens 0 to i, itself included."""
    expect(bits(3, 3, None), ["100", "110", "111"], at="a whole prompt of 3 tokens")


def test_04_3_a_window_counts_the_token_itself() -> None:
    """A window of W: a token sees itself and the W - 1 before it."""
    expect(bits(2, 5, 3), ["01110", "00111"], at="2 new tokens, 5 in all, window 3")
    expect(bits(2, 3, 1), ["010", "001"], at="2 new tokens, 3 in all, window 1")


def test_04_3_one_visible_key_gives_its_value() -> None:
    """The softmax of one score is 1, whatever the score is."""
    query, keys = torch.randn(1, 1, 4), torch.randn(3, 1, 4)
    values = torch.arange(12.0).view(3, 1, 4)
    output = attend(query, keys, values, torch.tensor([[True, False, False]]), 0.5)
    expect(output.flatten().tolist(), [0.0, 1.0, 2.0, 3.0], at="only the first key is visible")


def test_04_3_scores_are_scaled() -> None:
    """Scores are multiplied by `scale` before the softmax."""
    query, keys = torch.ones(1, 1, 1), torch.tensor([[[2.0]], [[0.0]]])
    values, mask = torch.tensor([[[1.0]], [[0.0]]]), torch.ones(1, 2, dtype=torch.bool)
    output = attend(query, keys, values, mask, 0.5)
    expected = torch.tensor([[[torch.tensor(1.0).sigmoid()]]])
    at = "scores 2 and 0, scale 0.5, values 1 and 0: e / (e + 1)"
    expect_close(output, expected, axes=("token", "head", "dim"), at=at)


def test_04_3_heads_share_keys_in_groups() -> None:
    """4 query heads, 2 key/value heads: heads 0 and 1 read the first, 2 and 3 the second."""
    query = torch.ones(1, 4, 1)
    keys = torch.tensor([[[0.0], [50.0]], [[50.0], [0.0]]])
    values = torch.tensor([[[1.0], [10.0]], [[3.0], [30.0]]])
    output = attend(query, keys, values, torch.ones(1, 2, dtype=torch.bool), 1.0)
    at = "keys of head 0 choose the second token (value 3), those of head 1 the first (value 10)"
    expect(output.flatten().tolist(), [3.0, 3.0, 10.0, 10.0], at=at)


def test_04_3_values_are_shared_as_keys_are() -> None:
    """Equal keys give equal weights; the values still are those of each head's own group."""
    query, keys = torch.ones(1, 4, 1), torch.ones(2, 2, 1)
    values = torch.tensor([[[1.0], [10.0]], [[3.0], [30.0]]])
    output = attend(query, keys, values, torch.ones(1, 2, dtype=torch.bool), 1.0)
    at = "values 1 and 3 in head 0, 10 and 30 in head 1; all keys are equal"
    expect(output.flatten().tolist(), [2.0, 2.0, 20.0, 20.0], at=at)


def test_04_3_half_precision_is_only_for_storing() -> None:
    """Inputs and output are float16; scores, softmax and sums are float32 in between."""
    torch.manual_seed(0)
    query, keys, values = (torch.randn(n, 1, 8).half() for n in (1, 400, 400))
    output = attend(query, keys, values, torch.ones(1, 400, dtype=torch.bool), 4.0)
    expect(output.dtype, torch.float16, at="the output has the query's type")
    scores = torch.einsum("qhd,lhd->hql", query.double(), keys.double()) * 4.0
    expected = torch.einsum("hql,lhd->qhd", scores.softmax(-1), values.double())
    expect_close(
        output.float(), expected.half().float(), axes=("token", "head", "dim"),
        at="400 keys in float16", tolerance=1.1e-3,
    )  # fmt: skip


def test_04_3_two_requests_may_share_their_pages() -> None:
    """ana and ben have the same pages and ask differently: equal contexts, two answers."""
    metadata = AttentionMetadata.from_lists([1, 1], [2, 2], [[1], [1]], 4)
    cache = torch.zeros(2, 3, 4, 1, 1)
    cache[0, 1, :2, 0, 0] = torch.tensor([50.0, -50.0])
    cache[1, 1, :2, 0, 0] = torch.tensor([1.0, 2.0])
    output = paged_attention(torch.tensor([[[1.0]], [[-1.0]]]), cache, metadata, 1.0)
    at = "keys 50 and -50, values 1 and 2 in one page of both; ana asks with 1, ben with -1"
    expect(output.flatten().tolist(), [1.0, 2.0], at=at)


@pytest.mark.parametrize("window", [None, 3])
def test_04_3_every_request_reads_its_own_pages(desk: Any, window: int | None) -> None:
    """ana decodes, ben continues a prompt, cleo starts one: each sees only its own context."""
    query, cache, metadata = desk.batch([(1, 6), (3, 5), (4, 0)])
    output = paged_attention(query, cache, metadata, 0.5, window)
    expected, start = torch.empty_like(query), 0
    for i, (new, total) in enumerate(((1, 7), (3, 8), (4, 4))):
        for row in range(new):
            position = total - new + row
            first = max(position - (window or total) + 1, 0)
            places = [(int(metadata.block_table[i, p // 4]), p % 4) for p in range(position + 1)]
            seen = torch.stack([cache[:, block, offset] for block, offset in places[first:]], 1)
            keys, values = seen[:, :, 0]
            weights = (query[start + row] @ keys.T * 0.5).softmax(-1)
            expected[start + row] = weights @ values
        start += new
    at = f"tokens: 0 is ana's, 1 to 3 ben's, 4 to 7 cleo's; window {window}"
    expect_close(output, expected, axes=("token", "head", "dim"), at=at)
