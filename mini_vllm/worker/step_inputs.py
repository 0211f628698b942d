"""The tensors of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.attention import AttentionMetadata


@dataclass(slots=True)
class StepInputs:
    """The tensors of one forward pass over R requests with T tokens."""

    req_ids: list[str]
    input_ids: Tensor
    """``[T]`` int64."""
    positions: Tensor
    """``[T]`` int64."""
    metadata: AttentionMetadata
    sample_rows: NDArray[np.int64]
    """``[B]``, the batch rows of the requests that get a token in this step."""
    logits_indices: Tensor
    """``[B]`` int64, the last token of each of them among the T."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """What else the model is called with, by name; a step that has any is never replayed."""
