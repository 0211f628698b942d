"""GPTQ: round one column after another, and let those not yet rounded make up for the error.

    column     0      1      2      3          the error of column 0, seen through the inputs'
    rounded    q0                              correlations, is subtracted from columns 1, 2, 3;
               error ->->->->->->              then column 1, which has moved, is rounded

Which column can make up for which is in the Hessian, the sum of x^T x over calibration tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.quantization.packing import choose_qparams, num_groups, quantize


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """The upper triangle U with U^T U = (H + damping * mean of H's diagonal * I)^-1, `[K, K]`.

    Row i, from column i on, says how an error in column i spreads to those that follow. Raises
    ValueError if H is singular even so: too few calibration tokens for so many inputs.
    """
    damped = hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian))
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        return torch.linalg.cholesky(inverse, upper=True)
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            f"the Hessian of {len(hessian)} inputs is singular; give longer calibration texts, or "
            f"raise damping, which is {damping}"
        ) from error


def gptq_quantize(
    weight: Tensor,
    hessian: Tensor,
    bits: int,
    group_size: int,
    symmetric: bool,
    act_order: bool = False,
    damping: float = 0.01,
    scale_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Round `weight` `[N, K]` so that its output on the calibration inputs changes least.

    Computes in float32, whatever the dtypes of `weight` and `hessian`, which stay as they are.

    Columns are done from the left, or with `act_order` from the largest entry of H's diagonal to
    the smallest; ties stay in order. A column that no input ever reached (0 on the diagonal)
    counts as 1 there and its weights as 0. A group's scale and zero are chosen when its first
    column is reached, from the weights as they are then; the scale is rounded to `scale_dtype`
    before it is used, for so the file will hold it. With Q(w) what a column's rounded numbers
    mean, and U from `inverse_factor`:

        error = (w_i - Q(w_i)) / U[i, i]            w_j -= error * U[i, j]   for all j > i

    Returns:
        stored `[N, K]` int32, scale `[N, G]` float32 and zero `[N, G]` int32, columns where they
        were, and the group of each column, `[K]` int32.

    Source: https://arxiv.org/abs/2210.17323, algorithm 1, without its blocks.
    """
    weight, hessian = weight.float().clone(), hessian.float().clone()
    columns = weight.shape[1]
    dead = hessian.diagonal() == 0
    hessian[dead, dead] = 1
    weight[:, dead] = 0
    order = torch.arange(columns)
    if act_order:
        order = hessian.diagonal().argsort(descending=True, stable=True)
    weight, hessian = weight[:, order], hessian[order][:, order]
    factor = inverse_factor(hessian, damping)
    size = columns // num_groups(columns, group_size)
    stored, scales, zeros = torch.empty_like(weight, dtype=torch.int32), [], []
    for i in range(columns):
        if i % size == 0:
            scale, zero = choose_qparams(weight[:, i : i + size], bits, size, symmetric)
            scale = scale.to(scale_dtype).float()
            scales.append(scale)
            zeros.append(zero)
        column = weight[:, i : i + 1]
        stored[:, i : i + 1] = number = quantize(column, scale, zero, bits)
        error = (column - (number - zero) * scale) / factor[i, i]
        weight[:, i + 1 :] -= error * factor[i, i + 1 :]
    back = order.argsort()
    group = (torch.arange(columns, dtype=torch.int32) // size)[back]
    return stored[:, back], torch.cat(scales, 1), torch.cat(zeros, 1), group
