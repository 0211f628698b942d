"""The cases that a kernel is judged by: small problems, each hard in one way.

    draw.py        what a case is, and its random numbers
    mixed.py       small cases in which any two things meet
    pages.py       paged caches, and what makes attention over them hard
    storing.py     for `store_kv`, and
    decode.py      for the decode kernels, and
    prefill.py     for the prefill kernel, all of `attention/triton_paged.py`; also for that of
                   `attention/tiled_prefill.py`
    pointwise.py   for the kernels of `kernels/fused.py`
    qkv.py         for the kernel of `kernels/qk_norm_rope_store.py`
    replay.py      for the kernel of `kernels/decode_inputs.py`
    masking.py     for the kernel of `kernels/bitmask.py`
    judging.py     for the kernel of `kernels/rejection.py`
    sampling.py    for the kernels of `kernels/sampling_kernels.py`
    lora.py        for the kernels of `lora/triton_ops.py`
    experts.py     for the kernel of `kernels/grouped_gemm.py`
    products.py    for the kernels of `kernels/dense_gemm.py` and `kernels/gemv.py`
    mixers.py      for the kernels of `kernels/gdn_decode.py` and `kernels/mla_decode.py`
    quantized.py   for the kernels of `kernels/quantized_kernels.py`
    rules.py       what the tensors of a case obey
    large.py       problems of the size that an engine meets, for timing on a GPU

A case is drawn from a seed, in the child that runs it and again in the parent that judges it, so
only its name and its seed travel. What must be hit exactly (one, a block, a block and one) is
fixed; what a kernel could learn by heart (contents, order of blocks, some lengths) is drawn.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from labkit.kernels.cases.decode import CASES as DECODE_CASES
from labkit.kernels.cases.draw import Case, Draw, Setup
from labkit.kernels.cases.experts import CASES as EXPERT_CASES
from labkit.kernels.cases.judging import CASES as JUDGING_CASES
from labkit.kernels.cases.lora import CASES as LORA_CASES
from labkit.kernels.cases.masking import CASES as MASKING_CASES
from labkit.kernels.cases.mixers import CASES as MIXER_CASES
from labkit.kernels.cases.pointwise import CASES as POINTWISE_CASES
from labkit.kernels.cases.prefill import CASES as PREFILL_CASES
from labkit.kernels.cases.products import CASES as PRODUCT_CASES
from labkit.kernels.cases.qkv import CASES as QKV_CASES
from labkit.kernels.cases.quantized import CASES as QUANTIZED_CASES
from labkit.kernels.cases.replay import CASES as REPLAY_CASES
from labkit.kernels.cases.sampling import CASES as SAMPLING_CASES
from labkit.kernels.cases.storing import CASES as STORING_CASES
from mini_vllm.kernels.attention import SPECS as ATTENTION_SPECS
from mini_vllm.kernels.experts import SPECS as EXPERT_SPECS
from mini_vllm.kernels.judging import SPECS as JUDGING_SPECS
from mini_vllm.kernels.launch import KernelSpec
from mini_vllm.kernels.lora import SPECS as LORA_SPECS
from mini_vllm.kernels.masking import SPECS as MASKING_SPECS
from mini_vllm.kernels.mixers import SPECS as MIXER_SPECS
from mini_vllm.kernels.pointwise import SPECS as POINTWISE_SPECS
from mini_vllm.kernels.products import SPECS as PRODUCT_SPECS
from mini_vllm.kernels.qkv import SPECS as QKV_SPECS
from mini_vllm.kernels.quantization import SPECS as QUANTIZED_SPECS
from mini_vllm.kernels.replay import SPECS as REPLAY_SPECS
from mini_vllm.kernels.sampling import SPECS as SAMPLING_SPECS
from mini_vllm.kernels.tiled import SPECS as TILED_SPECS

SPECS: dict[str, KernelSpec] = {
    spec.name: spec
    for specs in (
        ATTENTION_SPECS,
        TILED_SPECS,
        POINTWISE_SPECS,
        QKV_SPECS,
        REPLAY_SPECS,
        PRODUCT_SPECS,
        QUANTIZED_SPECS,
        LORA_SPECS,
        MASKING_SPECS,
        JUDGING_SPECS,
        SAMPLING_SPECS,
        EXPERT_SPECS,
        MIXER_SPECS,
    )
    for spec in specs
}
CASES = {
    **STORING_CASES,
    **DECODE_CASES,
    **PREFILL_CASES,
    **POINTWISE_CASES,
    **QKV_CASES,
    **REPLAY_CASES,
    **PRODUCT_CASES,
    **QUANTIZED_CASES,
    **LORA_CASES,
    **MASKING_CASES,
    **JUDGING_CASES,
    **SAMPLING_CASES,
    **EXPERT_CASES,
    **MIXER_CASES,
}


def cases_of(spec: str, optional: Collection[str] | None = None) -> tuple[Case, ...]:
    """All cases of a spec, the simplest first; with `optional` those only whose kernel need not
    have other parameters with a default than these.

    Raises:
        ValueError: there is no such spec; the message lists those that exist.
    """
    if spec not in CASES:
        raise ValueError(f"there is no kernel {spec!r}; the kernels are: {', '.join(SPECS)}")
    cases = CASES[spec]
    if optional is None:
        return cases
    return tuple(case for case in cases if not case.optional or case.optional in optional)


def find_case(spec: str, name: str) -> Case:
    """One case by its name.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    for case in cases_of(spec):
        if case.name == name:
            return case
    names = ", ".join(case.name for case in cases_of(spec))
    raise ValueError(f"{spec} has no case {name!r}; its cases are: {names}")


def build(spec: str, case: str, seed: int) -> Setup:
    """Draw the problem of a case, with the rules that its tensors obey."""
    chosen = find_case(spec, case)
    return chosen.make(Draw(seed, spec, case), getattr(torch, chosen.dtype))
