"""A builder for the tests of phase 00. The story: a small chat service, asked for a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

RECIPE = (11, 12, 13, 14, 15)
"""The prompt, five tokens: "How do I make tea?" """


def new_request(output: Sequence[int] = (), drafts: Sequence[int] = ()) -> Request:
    """The recipe's request, in the state in which `output` has been sampled already."""
    request = Request("tea", RECIPE, SamplingParams(temperature=0.0, max_tokens=8))
    request.output_token_ids.extend(output)
    request.all_token_ids.extend(output)
    request.spec_token_ids = list(drafts)
    return request


@pytest.fixture
def tea() -> Callable[..., Request]:
    """`tea(output=[21], drafts=[])` makes the request."""
    return new_request
