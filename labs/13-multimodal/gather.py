"""From the encoder's output to the embeddings of a step.

::

    encoder output of one image      rows    0 1 2 3 4 5 6
    this step computes ...                       2 3 4          a chunk of it
    flat batch     d  d | x  x  #  #  #          tokens of three requests
    mask           .  . | .  .  1  1  1          where the three rows go

Source: vllm/v1/worker/gpu_model_runner.py#L3071-L3158 (GPUModelRunner._gather_mm_embeddings)
@ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mini_vllm.mm_features import MultiModalFeatureSpec


def gather_mm_embeddings(
    features: Sequence[Sequence[MultiModalFeatureSpec]],
    num_computed: Sequence[int],
    num_scheduled: Sequence[int],
    encoder_cache: Mapping[str, Tensor],
) -> tuple[list[Tensor], Tensor]:
    """The rows that the tokens of a step take from the encoder, and where they go.

    Args:
        features: images of each of the R requests, in the order of the flat batch.
        num_computed: tokens of each that were computed before this step.
        num_scheduled: tokens of each in this step.
        encoder_cache: ``[rows, width]`` of each image, by its hash.

    Returns:
        Slices of encoder output, in the order of the flat batch; together ``[N, width]``. And a
        mask ``[T]`` that is True at the N tokens that take them.

    Raises:
        KeyError: if an image that is needed is not in the cache.

    Source: vllm/v1/worker/gpu_model_runner.py#L3071-L3158 (GPUModelRunner._gather_mm_embeddings)
    @ v0.22.1
    """
    # TODO 13.9
    raise NotImplementedError(
        "TODO 13.9: write gather_mm_embeddings in labs/13-multimodal/gather.py"
        " (phase 13, 02-mini-build.md#task-9)"
    )


def merge_multimodal_embeddings(
    inputs_embeds: Tensor, rows: Sequence[Tensor], mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Put the encoder's rows where the mask is True.

    A row holds the embedding and, side by side behind it, one part of the same width for each of
    DeepStack's levels. The level's part is zero at every other token, so that it can be added.

    Args:
        inputs_embeds: ``[T, H]``, embeddings of the placeholders' tokens at images. They stay as
            they are; both results are tensors of their own, in this dtype.
        rows: together ``[N, H * (1 + levels)]``; N may be 0.
        mask: ``[T]`` bool.

    Returns:
        ``[T, H]``, and ``[levels, T, H]``.

    Raises:
        ValueError: with both numbers, if there are not as many rows as places for them. Without
            this check one row would be written to every place, without an error.

    Source: vllm/model_executor/models/utils.py#L456-L492 (_merge_multimodal_embeddings) @ v0.22.1
    """
    # TODO 13.10
    raise NotImplementedError(
        "TODO 13.10: write merge_multimodal_embeddings in labs/13-multimodal/gather.py"
        " (phase 13, 02-mini-build.md#task-10)"
    )
