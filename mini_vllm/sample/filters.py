"""Filters that a sampling parameter of one number a request switches on, each declared in a line.

They run after penalties and before the temperature, keep the largest logit, and see only
the logits and their own parameter: a new one is a function here, and a field of
:class:`~mini_vllm.sampling_params.SamplingParams` with its name. ``docs/add-a-parameter.md`` tells
how; min-p, top-k and top-p, which phase 06 builds, stand in ``logits_processors.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from mini_vllm.sample.logits_processors import NEG_INF


def top_n_sigma(logits: Tensor, num_sigmas: Tensor) -> Tensor:
    """Keep the tokens whose logit is at most ``num_sigmas`` standard deviations below the largest.

        logits   10  8  7  0  -inf      mean 6.25, deviation 3.77
        1.0      10  8  7               at least 10 - 3.77; what is ruled out does not count

    A temperature scales logits and deviation alike, so the same tokens stay.

    Args:
        logits: ``[B, V]``.
        num_sigmas: ``[B]``; 0 is off.

    Source: llama.cpp, src/llama-sampler.cpp (llama_sampler_top_n_sigma_apply), after Tang et al.
    2024, "Top-nσ: Not All Logits Are You Need".
    """
    in_play = logits.isfinite()
    count = in_play.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = logits.where(in_play, 0.0).sum(dim=-1, keepdim=True) / count
    off_mean = (logits - mean).where(in_play, 0.0)
    deviation = (off_mean.square().sum(dim=-1, keepdim=True) / count).sqrt()
    num_sigmas = num_sigmas.unsqueeze(1)
    threshold = logits.amax(dim=-1, keepdim=True) - num_sigmas * deviation
    return logits.where((num_sigmas == 0) | (logits >= threshold), NEG_INF)


FILTERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"top_n_sigma": top_n_sigma}
"""By the name of their parameter: ``[B, V]`` float32 logits and ``[B]`` float32 values to logits
of the same shape. They run in this order. A row whose value is the field's default stays as it
is."""


def apply_filters(logits: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    """Run the filters that some row uses.

    Args:
        logits: ``[B, V]``; not changed.
        values: ``[B]`` of each filter in use, by name.
    """
    for name, apply in FILTERS.items():
        if name in values:
            logits = apply(logits, values[name])
    return logits
