"""Sharing things out evenly. Plain arithmetic, no torch.

Source: vllm/distributed/utils.py#L53-L140 (ensure_divisibility, divide, get_pp_indices) @ v0.22.1
"""

from __future__ import annotations


def divide(numerator: int, denominator: int) -> int:
    """``numerator / denominator``, which must come out even.

    Raises:
        ValueError: if it does not.

    Source: vllm/distributed/utils.py#L60-L64 (divide) @ v0.22.1
    """
    if numerator % denominator:
        raise ValueError(f"{numerator} cannot be shared out evenly among {denominator}")
    return numerator // denominator


def get_pp_indices(num_hidden_layers: int, pp_rank: int, pp_size: int) -> tuple[int, int]:
    """The layers ``start .. end`` (``end`` is behind the last) of one pipeline stage.

    Every stage gets ``num_hidden_layers // pp_size``. What is left over goes one each to the
    second-last stage, the one before it, and so on backwards: the last stage also has the norm
    and the head to compute.

    ::

        61 layers, 8 stages:  7 7 8 8 8 8 8 7

    Args:
        num_hidden_layers: at least ``pp_size``.
        pp_rank: of the stage, from 0.

    Source: vllm/distributed/utils.py#L95-L140 (get_pp_indices) @ v0.22.1
    """
    # TODO 10.8
    raise NotImplementedError(
        "TODO 10.8: write get_pp_indices in labs/10-distributed/utils.py"
        " (phase 10, 02-mini-build.md#task-8)"
    )
