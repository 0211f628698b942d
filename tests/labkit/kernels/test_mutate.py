"""Changes of kernels by rule: each is one that Python can read, in one place, and has a name."""

from __future__ import annotations

import ast
import difflib

import pytest

from labkit.kernels.proof.corpus import changes
from labkit.kernels.proof.mutate import mutations

KERNEL = '''"""A file."""


@triton.jit
def kernel(x_ptr, y_ptr, x_stride, SIZE: tl.constexpr, SIZE_TILE: tl.constexpr):
    """Its docstring is no code: a < b."""
    row = tl.program_id(0).to(tl.int64)  # ünïcode before a node counts in bytes
    column = tl.arange(0, SIZE_TILE)
    inside = column < SIZE
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    biggest = tl.max(x, axis=0)
    if SIZE > 1:
        x = x - biggest
    total = tl.sum(tl.exp(x), axis=0)
    tl.store(y_ptr + row * SIZE + column, x / (total + 1.0), mask=inside)
'''


def texts(rule: str) -> list[str]:
    """What each change of one rule puts in, line for line."""
    found = []
    for mutation in mutations(KERNEL):
        if mutation.rule == rule:
            pairs = zip(KERNEL.splitlines(), mutation.text.splitlines(), strict=True)
            found += [new.strip() for old, new in pairs if old != new]
    return found


def test_a_number_of_another_dtype_goes_by_way_of_float16() -> None:
    kernel = "@triton.jit\ndef kernel(x, y):\n    y = x.to(y.dtype)\n"
    [found] = [mutation.text for mutation in mutations(kernel) if mutation.rule == "narrow range"]
    by_half = "(x).to(tl.float16 if y.dtype == tl.bfloat16 else y.dtype).to(y.dtype)"
    assert found == kernel.replace("x.to(y.dtype)", by_half)


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("no mask", "x = tl.load(x_ptr + row * x_stride + column)"),
        ("no mask", "tl.store(y_ptr + row * SIZE + column, x / (total + 1.0))"),
        ("no other", "x = tl.load(x_ptr + row * x_stride + column, mask=inside)"),
        ("bound", "inside = column <= SIZE"),
        ("wrong name", "inside = column < SIZE_TILE"),
        ("wrong name", "x = tl.load(x_ptr + row * SIZE + column, mask=inside, other=0.0)"),
        ("constant", "x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=1.0)"),
        ("no cast", "row = (tl.program_id(0))  # ünïcode before a node counts in bytes"),
        ("grid", "row = (tl.program_id(0) * 0).to(tl.int64)"
                 "  # ünïcode before a node counts in bytes"),
        ("other function", "biggest = tl.min(x, axis=0)"),
        ("other function", "total = tl.sum(tl.exp2(x), axis=0)"),
        ("half sum", "total = tl.sum(tl.exp(x), axis=0).to(tl.float16).to(tl.float32)"),
        ("no update", "pass"),
        ("no store", "pass"),
        ("always", "if True:"),
        ("left out", "x = x"),
        ("operator", "tl.store(y_ptr + row * SIZE + column, (x * (total + 1.0)), mask=inside)"),
        ("shifted", "column = (tl.arange(0, SIZE_TILE) + 1)"),
        ("narrow offset",
         "x = tl.load(x_ptr + (row).to(tl.uint32) * x_stride + column, mask=inside, other=0.0)"),
        ("limited", "SIZE = SIZE if SIZE < 16384 else 16384; row = tl.program_id(0).to(tl.int64)"
                    "  # ünïcode before a node counts in bytes"),
    ],
)  # fmt: skip
def test_a_rule(rule: str, line: str) -> None:
    assert line in texts(rule)


def test_changes_are_python_differ_and_have_different_names() -> None:
    found = list(mutations(KERNEL))
    assert len({mutation.name for mutation in found}) == len(found) > 50
    assert len({mutation.text for mutation in found}) == len(found)
    for mutation in found:
        ast.parse(mutation.text)
        assert mutation.text != KERNEL and "docstring is no code: a < b" in mutation.text
        changed = difflib.ndiff(KERNEL.splitlines(), mutation.text.splitlines())
        assert sum(line.startswith("- ") for line in changed) == 1, mutation.name


def test_a_name_does_not_depend_on_the_line_number() -> None:
    lower = KERNEL.replace("@triton.jit", "\n\n@triton.jit")
    assert [m.name for m in mutations(lower)] == [m.name for m in mutations(KERNEL)]


def test_each_kernel_of_the_engine_is_changed_in_many_ways() -> None:
    known = changes()
    kernels = {mutation.kernel for mutation, _ in known.values()}
    assert kernels == {
        "store_kv_kernel", "online_softmax", "paged_decode_kernel", "reduce_splits_kernel",
        "paged_prefill_kernel", "rms_norm_kernel", "rope_kernel", "silu_mul_kernel",
        "lora_shrink_kernel", "lora_expand_kernel", "apply_token_bitmask_kernel",
        "rejection_random_sample_kernel", "per_token_quant_int8_kernel", "w8a8_gemm_kernel",
        "w4a16_gemm_kernel", "store_kv_int8_kernel", "paged_decode_int8_kernel",
        "bytes_of_scale", "finite", "load_scales", "grouped_gemm_kernel", "gemm_kernel",
    }  # fmt: skip
    assert len(known) > 900 and len({mutation.rule for mutation, _ in known.values()}) >= 24
    for mutation, specs in known.values():
        ast.parse(mutation.text)
        assert specs
