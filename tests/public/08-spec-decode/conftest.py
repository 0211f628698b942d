"""Builders for the tests of phase 08. The story: steps of a few requests, a toy of a draft model
that says 3 t + 1 after token t, and distributions over three tokens that fit on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.sample.metadata import SamplingMetadata


def request(name: str, tokens: Sequence[int], **counts: Any) -> dict[str, Any]:
    """A request at the end of a step. By default it had one token left, computed it, got one."""
    defaults = {"computed": len(tokens) - 2, "scheduled": 1, "drafts": 0, "sampled": 1}
    return {"id": name, "tokens": list(tokens)} | defaults | counts


def listed(value: Any) -> Any:
    """A tensor or array as nested lists, floats rounded; anything else as it is."""
    if not hasattr(value, "tolist"):
        return value
    return _rounded(value.tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) + 0.0 if isinstance(value, float) else value


def metadata_of(vocab_size: int, *rows: dict[str, Any]) -> SamplingMetadata:
    """Of requests given as dicts: `output`, and sampling parameters; greedy by default."""
    from mini_vllm.sample.metadata import make_sampling_metadata

    made = []
    for row in rows:
        params = SamplingParams(
            **{"temperature": 0.0} | {k: v for k, v in row.items() if k != "output"}
        )
        made.append((params, [1], list(row.get("output", [])), ()))
    return make_sampling_metadata(made, vocab_size)


@pytest.fixture
def lab() -> SimpleNamespace:
    """All builders of this file, and what drafts."""
    from labkit.inside.drafting import ToyModel, draft, look_ahead, look_up, make_step, successor

    builders = (request, listed, metadata_of, make_step, draft, look_up, look_ahead, successor)
    return SimpleNamespace(**{b.__name__: b for b in builders}, ToyModel=ToyModel)
