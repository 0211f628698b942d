"""Change request 2, over random problems."""

from __future__ import annotations

import pytest
import torch

from mini_vllm.attention import reference


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("cap", [None, 0.5, 5.0, 50.0])
def test_change_2_against_plain_torch(
    seed: int, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "SOFTCAP", cap)
    torch.manual_seed(seed)
    query, keys = torch.randn(3, 4, 8), torch.randn(5, 2, 8) * 4
    values, mask = torch.randn(5, 2, 8), torch.rand(3, 5) < 0.7
    mask[:, 0] = True
    out = reference.attend(query, keys, values, mask, 0.7)
    for head in range(4):
        scores = query[:, head] @ keys[:, head // 2].T * 0.7
        if cap is not None:
            scores = cap * (scores / cap).tanh()
        right = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values[:, head // 2]
        torch.testing.assert_close(out[:, head], right, rtol=1e-4, atol=1e-5)
