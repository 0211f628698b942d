"""AWQ: a few inputs matter more than all others; give their weights finer steps.

Scaling up a column before rounding makes its error smaller by the same factor, as long as the
group's largest number stays. How far to scale is searched, by the error of the layer's output.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

RATIOS = [step / 20 for step in range(20)]


def search_scale(
    x: Tensor, weight: Tensor, round_trip: Callable[[Tensor], Tensor]
) -> tuple[Tensor, float]:
    """The factors `[K]` for the columns of `weight` `[N, K]` that give the smallest output error.

    Candidates are s = mean(|x|) ** ratio for each of RATIOS, each divided by sqrt(max(s) * min(s)),
    so that its factors lie around 1; means are over the tokens, and at least 1e-4. A candidate s
    costs the mean square of

        (x / s) @ round_trip(weight * s)^T  -  x @ weight^T

    The first of equal ones wins, so without any gain the factors are all 1. `x` and `weight` stay
    as they are, to the bit: others read them.

    Args:
        x: `[T, K]`, inputs of the layer on calibration texts.
        weight: of all layers that read them.
        round_trip: quantises and dequantises a weight.

    Returns:
        the factors, and their cost.

    Source: https://arxiv.org/abs/2306.00978, section 3.2.
    """
    # TODO 09.10
    raise NotImplementedError(
        "TODO 09.10: write search_scale in labs/09-quantization/awq.py"
        " (phase 09, 02-mini-build.md#task-10)"
    )
