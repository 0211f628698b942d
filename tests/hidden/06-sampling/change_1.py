"""Change request 1, over random rows, narrow and wide."""

from __future__ import annotations

import pytest
import torch

from mini_vllm.sample.logits_processors import apply_top_p


@pytest.mark.parametrize("seed", range(30))
def test_change_1_every_row(seed: int) -> None:
    torch.manual_seed(seed)
    size = int(torch.randint(1, 300, (1,)))
    logits = torch.randn(4, size, dtype=torch.float64) * float(torch.rand(1) * 8)
    top_p = torch.tensor([0.05, 0.5, 0.9, 1.0], dtype=torch.float64)
    out = apply_top_p(logits, top_p)
    for row in range(4):
        shares = logits[row].softmax(-1).sort(descending=True).values
        wanted = int((shares.cumsum(0) < top_p[row] - 1e-12).sum()) + 1
        number = size if top_p[row] == 1 else min(max(wanted, 2), size)
        assert int(out[row].isfinite().sum()) == number
        limit = logits[row].sort(descending=True).values[number - 1]
        assert torch.equal(out[row].isfinite(), logits[row] >= limit)
