"""Task 10.7: divide the vocabulary among ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.distributed.simulated import run_ranks
from mini_vllm.distributed.vocab import VocabParallelEmbedding, VocabParallelHead, vocab_range


def ranges(vocab_size: int, p: int) -> list[list[int]]:
    return [[r.start, r.stop] for r in (vocab_range(vocab_size, rank, p) for rank in range(p))]


def part_of(table: Tensor, rows: slice) -> Tensor:
    """A rank's rows of a table, zeros behind its end."""
    part = torch.zeros(rows.stop - rows.start, table.shape[1])
    part[: len(table[rows])] = table[rows]
    return part


def test_10_7_padded_and_shared() -> None:
    """131 tokens: 192 rows, 96 for each of two."""
    expect(ranges(131, 2), [[0, 96], [96, 192]], at="131 tokens, 2 ranks")
    expect(ranges(128, 2), [[0, 64], [64, 128]], at="128 tokens, 2 ranks: no padding")
    expect(ranges(1, 1), [[0, 64]], at="1 token, 1 rank")


def test_10_7_sizes_that_64_does_not_know() -> None:
    """Three ranks: the padding must come out even for them, too."""
    expect(ranges(509, 3), [[0, 192], [192, 384], [384, 576]], at="509 tokens, 3 ranks")


def test_10_7_a_rank_may_have_only_padding() -> None:
    """The last of four has only padding."""
    expect(ranges(131, 4)[3], [144, 192], at="131 tokens, rank 3 of 4")


@pytest.mark.parametrize(("vocab", "p"), [(131, 2), (131, 4), (509, 3), (64, 1), (7, 2)])
def test_10_7_every_token_has_its_vector(vocab: int, p: int) -> None:
    """On every rank, to the bit."""
    table = torch.randn(vocab, 6, generator=torch.Generator().manual_seed(1))
    border = min(vocab_range(vocab, p - 1, p).start, vocab - 1)
    ids = torch.tensor([0, vocab - 1, vocab // 2, 3, 3, border])

    def work(group: Any) -> Tensor:
        embedding = VocabParallelEmbedding(group, vocab)
        return embedding.lookup(ids, part_of(table, embedding.rows))

    for rank, vectors in enumerate(run_ranks(p, work)):
        same = torch.equal(vectors, table[ids])
        expect(same, True, at=f"{vocab} tokens, rank {rank} of {p}, ids {ids.tolist()}")


def test_10_7_what_is_elsewhere_is_zero_here(lab: Any) -> None:
    """Before the sum another rank's token is a vector of zeros, whatever row was looked up.

    What is sent has the table's dtype."""
    alone = lab.deaf(1, 2)
    alone.all_reduce = lambda x: x
    embedding = VocabParallelEmbedding(alone, 131)
    weight = torch.ones(96, 2)
    yours = embedding.lookup(torch.tensor([0, 95, 96, 130]), weight)[:, 0].tolist()
    expect(yours, [0.0, 0.0, 1.0, 1.0], at="rank 1 has tokens 96 to 130; ids 0, 95, 96, 130")
    sent: list[str] = []
    alone.all_reduce = lambda x: (sent.append(str(x.dtype)), x)[1]
    embedding.lookup(torch.tensor([0, 96]), weight.bfloat16())
    expect(sent, ["torch.bfloat16"], at="the dtype of each sum that is asked for, of such a table")


@pytest.mark.parametrize(("vocab", "p"), [(131, 2), (131, 4), (509, 3), (7, 2)])
def test_10_7_all_logits_in_order(vocab: int, p: int) -> None:
    """Every rank has every token's logit, in its place, and none of the padding's."""
    hidden = torch.ones(3, 1)
    table = torch.arange(vocab).float()[:, None] + 1

    def work(group: Any) -> Tensor:
        head = VocabParallelHead(group, vocab)
        return head.finish(hidden @ part_of(table, head.rows).T)

    right = [float(token + 1) for token in range(vocab)]
    for rank, logits in enumerate(run_ranks(p, work)):
        expect(list(logits.shape), [3, vocab], at=f"shape, rank {rank} of {p}")
        for row in range(3):
            expect(logits[row].tolist(), right, at=f"row {row}, rank {rank} of {p}")


def test_10_7_padding_never_wins() -> None:
    """All logits are negative; the padding's would be 0."""

    def work(group: Any) -> Tensor:
        head = VocabParallelHead(group, 131)
        return head.finish(part_of(-torch.ones(131, 1), head.rows).T)

    best = int(run_ranks(2, work)[0].argmax())
    expect(best < 131, True, at="the best of 131 tokens with logit -1", best=best)
