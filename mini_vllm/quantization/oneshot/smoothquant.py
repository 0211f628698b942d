"""SmoothQuant: move outliers from activations, where int8 cannot hold them, into weights.

    y = x @ w^T = (x / s) @ (w * s)^T      s: one number for each of the K inputs

Dividing x costs nothing: the norm in front has a weight for each channel, which takes 1 / s.
"""

from __future__ import annotations

from torch import Tensor

MIN_MAGNITUDE = 1e-5


def smooth_scales(x_absmax: Tensor, w_absmax: Tensor, alpha: float = 0.5) -> Tensor:
    """What each input is divided by: x_absmax ** alpha / w_absmax ** (1 - alpha).

    Args:
        x_absmax: `[K]`, the largest magnitude of each input on the calibration texts.
        w_absmax: `[K]`, the largest magnitude of each column of the weights that read it.
        alpha: how much of the difficulty moves into the weights. 1: all inputs become equally
            large; 0: all columns of the weights do; 0.5: both meet in the middle.

    Magnitudes and results are at least MIN_MAGNITUDE; what is given stays as it is. Returns `[K]`.

    Source: https://arxiv.org/abs/2211.10438, equation 4.
    """
    x, w = x_absmax.clamp(min=MIN_MAGNITUDE), w_absmax.clamp(min=MIN_MAGNITUDE)
    return (x**alpha / w ** (1 - alpha)).clamp(min=MIN_MAGNITUDE)


def fold_into_norm(norm_weight: Tensor, weight: Tensor, scales: Tensor) -> None:
    """Divide the norm in front by `scales` `[K]` and multiply the columns of `weight` `[N, K]`.

    In place; `scales` stay as they are. `weight` holds all that reads the norm: it must be folded
    once, not once a reader.
    """
    norm_weight.div_(scales)
    weight.mul_(scales)
