"""Task 12.11: -inf where the bit is 0, and not a byte more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from labkit.kernels.direct import solve
from labkit.testing import expect
from mini_vllm.kernels.masking import APPLY_TOKEN_BITMASK

pytest.importorskip("triton", reason="Triton exists on Linux only")
OUT = "out"


def words(*rows: list[int], width: int = 1) -> Tensor:
    """A row of words for each list of allowed tokens."""
    table = torch.zeros(len(rows), width, dtype=torch.int64)
    for row, tokens in enumerate(rows):
        for token in tokens:
            table[row, token // 32] |= 1 << (token % 32)
    return torch.where(table >= 2**31, table - 2**32, table).int()


def run(logits: Tensor, bitmask: Tensor, indices: list[int]) -> list[list[object]]:
    """The logits afterwards, with "out" for -inf."""
    rows = torch.tensor(indices, dtype=torch.int32)
    solve(APPLY_TOKEN_BITMASK, dict(logits=logits, bitmask=bitmask, indices=rows))
    return [[OUT if x == -torch.inf else x for x in row] for row in logits.tolist()]


def test_12_11_a_row_by_hand() -> None:
    """Five tokens, of which 1 and 4 are allowed."""
    found = run(torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]]), words([1, 4]), [0])
    expect(found, [[OUT, 1.0, OUT, OUT, 4.0]], at="tokens 1 and 4 of 5 are allowed")


def test_12_11_bit_31_is_a_token_like_any_other() -> None:
    """The word is negative then, and shifting keeps its sign: & 1 after the shift."""
    found = run(torch.zeros(1, 34), words([31, 33], width=2), [0])
    kept = [token for token, x in enumerate(found[0]) if x != OUT]
    expect(kept, [31, 33], at="tokens 31 and 33 of 34 are allowed")


def test_12_11_rows_of_the_batch_by_their_index() -> None:
    """Mask 0 is for row 2, mask 1 for row 0; row 1 has no mask and stays."""
    found = run(torch.zeros(3, 3), words([0], [1, 2]), [2, 0])
    expect(found, [[OUT, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, OUT, OUT]], at="indices 2, 0")


def test_12_11_what_is_allowed_is_not_touched() -> None:
    """NaN, inf and -0.0 come out as they went in."""
    logits = torch.tensor([[float("nan"), float("inf"), -0.0, 1.0]])
    run(logits, words([0, 1, 2]), [0])
    expect(str(logits.tolist()), "[[nan, inf, -0.0, -inf]]", at="tokens 0, 1, 2 are allowed")


def test_12_11_a_vocabulary_of_several_tiles() -> None:
    """2,100 tokens: several programs a row, and a tail."""
    allowed = list(range(0, 2100, 7))
    found = run(torch.zeros(1, 2100), words(allowed, width=66), [0])
    expect([t for t, x in enumerate(found[0]) if x != OUT], allowed, at="every 7th of 2,100")


def test_12_11_tokens_without_a_word_are_forbidden() -> None:
    """40 logits, one word: tokens 32 to 39 have no bit, so they are not allowed."""
    found = run(torch.zeros(1, 40), words(list(range(32))), [0])
    expect(
        [t for t, x in enumerate(found[0]) if x == OUT], list(range(32, 40)), at="one word of ones"
    )


def test_12_11_a_row_in_a_wider_matrix() -> None:
    """The stride of the logits is free: what lies between the rows stays as it is."""
    wide = torch.zeros(2, 8)
    run(wide[:, 2:5], words([0], [0]), [0, 1])
    expect(wide[:, :2].abs().sum().item() + wide[:, 5:].abs().sum().item(), 0.0,
           at="columns beside the slice")  # fmt: skip
    expect(wide[:, 2:5].tolist(), [[0.0, -torch.inf, -torch.inf]] * 2, at="the slice")


def test_12_11_half_precision() -> None:
    """-inf exists in bfloat16 and float16 too."""
    for dtype in (torch.float16, torch.bfloat16):
        found = run(torch.ones(1, 3, dtype=dtype), words([2]), [0])
        expect(found, [[OUT, OUT, 1.0]], at=str(dtype))
