"""Change request 2: bent scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.attention import reference


def weights(scores: list[float], mask: list[bool]) -> list[float]:
    """The weights of one query over keys with these scores."""
    keys = torch.tensor(scores).view(-1, 1, 1)
    values = torch.eye(len(scores)).view(len(scores), 1, len(scores))
    query = torch.ones(1, 1, 1)
    out = reference.attend(query, keys, values, torch.tensor([mask]), 1.0)
    return [round(x, 3) for x in out[0, 0].tolist()]


def test_change_2_scores_are_bent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores 3 and 0 with a cap of 2."""
    monkeypatch.setattr(reference, "SOFTCAP", 2.0)
    bent = torch.tensor([2 * torch.tanh(torch.tensor(1.5)), 0.0]).softmax(0)
    expect(weights([3.0, 0.0], [True, True]), [round(x, 3) for x in bent.tolist()], at="cap 2.0")


def test_change_2_the_mask_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A masked key has weight 0, bent or not."""
    monkeypatch.setattr(reference, "SOFTCAP", 2.0)
    expect(weights([3.0, 9.0], [True, False]), [1.0, 0.0], at="the second key is masked")


def test_change_2_none_is_off() -> None:
    """SOFTCAP is None at first."""
    found: Any = getattr(reference, "SOFTCAP", "there is no SOFTCAP")
    expect(found, None, at="mini_vllm.attention.reference.SOFTCAP")
