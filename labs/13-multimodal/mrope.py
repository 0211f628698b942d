"""Positions in three dimensions: time, height and width (M-RoPE).

A picture takes one KV slot for each of its tokens, but moves the text behind it by its longer side
only. For a picture of 2 x 3 tokens between two and two words::

    token      a  b  #  #  #  #  #  #  c  d
    slot       0  1  2  3  4  5  6  7  8  9         where keys and values lie
    time       0  1  2  2  2  2  2  2  5  6
    height     0  1  2  2  2  3  3  3  5  6         2 + row
    width      0  1  2  3  4  2  3  4  5  6         2 + column; the text goes on at 2 + max(2, 3)

Position and slot differ by the same number for all that follows: the *delta*, here -3.

Source: vllm/model_executor/models/qwen3_vl.py#L2515-L2588
(Qwen3VLForConditionalGeneration._get_mrope_input_positions) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mini_vllm.mm_features import MultiModalFeatureSpec


def get_mrope_input_positions(
    num_tokens: int, features: Sequence[MultiModalFeatureSpec], merge_size: int
) -> tuple[NDArray[np.int64], int]:
    """Time, height and width of each token of a prompt.

    Args:
        num_tokens: of the prompt, placeholders included.
        features: its pictures, in order. ``data["image_grid_thw"]`` counts *patches*; a token is
            ``merge_size`` of them in height and in width.
        merge_size: see above.

    Returns:
        ``[3, num_tokens]`` int64, and the delta: what has to be added to the slot of every token
        behind the prompt.

    Source: vllm/model_executor/models/qwen3_vl.py#L2515-L2588
    (Qwen3VLForConditionalGeneration._get_mrope_input_positions) @ v0.22.1
    """
    # TODO 13.8
    raise NotImplementedError(
        "TODO 13.8: write get_mrope_input_positions in labs/13-multimodal/mrope.py"
        " (phase 13, 02-mini-build.md#task-8)"
    )


def positions_of_range(
    prompt: NDArray[np.int64], delta: int, start: int, end: int
) -> NDArray[np.int64]:
    """Positions ``[3, end - start]`` of the tokens in slots ``start .. end`` of a request.

    Those of the prompt were computed once, for a chunk does not show what lies before it. Behind
    the prompt is text: its slot and the delta.

    Source: vllm/v1/worker/gpu_model_runner.py#L2617-L2664
    (GPUModelRunner._calc_mrope_positions) @ v0.22.1
    """
    known = prompt[:, start:end]
    behind = np.arange(max(start, prompt.shape[1]), end) + delta
    return np.concatenate([known, np.broadcast_to(behind, (3, len(behind)))], axis=1)
