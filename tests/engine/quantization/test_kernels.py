"""The kernels against plain torch, interpreted, and the products that a CPU has of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from mini_vllm.kernels import native
from mini_vllm.model.build import default_dtype
from mini_vllm.model.layers import Linear
from mini_vllm.quantization import cpu_products
from mini_vllm.quantization.int8 import (
    hold_int8,
    int8_linear,
    quantize_per_token,
    scaled_product,
)
from mini_vllm.quantization.packing import dequantize

CHECK = """
import torch
torch.set_num_threads(1)  # the interpreter's small tensors: more threads would wait for each other
from mini_vllm.attention.quantized import FORMATS, QuantizedKV, quantize_kv
from mini_vllm.kernels.quantization import per_token_quant, w4a16_product, w8a8_product
from mini_vllm.quantization.int8 import quantize_per_token, scaled_product
from mini_vllm.quantization.packing import dequantize, pack_int32

torch.manual_seed(0)
for tokens, rows, columns, groups in ((1, 5, 24, 1), (17, 70, 96, 3), (3, 64, 37 * 2, 2)):
    x = torch.randn(tokens, columns)
    if tokens == 3:
        x[1] = 0
    wide = torch.randn(tokens, 2 * columns)
    wide[:, :columns] = x
    q, scale = per_token_quant(wide[:, :columns])
    mine, mine_scale = quantize_per_token(x)
    assert torch.equal(q, mine) and torch.equal(scale, mine_scale)
    weight = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    row_scale = torch.rand(rows, 1)
    torch.testing.assert_close(
        w8a8_product(q, scale, weight, row_scale), scaled_product(q, scale, weight, row_scale)
    )
    stored = torch.randint(0, 16, (rows, columns))
    scales, zeros = torch.rand(rows, groups), torch.randint(0, 16, (rows, groups))
    words = pack_int32(stored, 4, 1)
    y = w4a16_product(x, words, scales, zeros.to(torch.uint8))
    torch.testing.assert_close(y, x @ dequantize(stored, scales, zeros).T, rtol=1e-4, atol=1e-3)
form = FORMATS["int8_per_token_head"]
cache = torch.full((2, 3, 4, 2, 12), 5, dtype=torch.int8)
key, value = torch.randn(2, 3, 2, 8)
QuantizedKV(None, form).store(key, value, cache, torch.tensor([4, -1, 11]))
for half, x in zip(cache, (key, value)):
    slots = half.flatten(0, 1)
    assert torch.equal(slots[[4, 11]], quantize_kv(x, form)[[0, 2]])
    rest = torch.ones(12, dtype=torch.bool)
    rest[[4, 11]] = False
    assert (slots[rest] == 5).all()
print("right")
"""


def test_kernels_give_what_torch_gives() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={"TRITON_INTERPRET": "1", "PATH": "", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.stdout.strip() == "right", run.stderr[-2000:]


def test_cpu_products_are_right_or_not_used() -> None:
    torch.manual_seed(0)
    trust = cpu_products.can_multiply_int8()
    with default_dtype(torch.bfloat16):  # as while a model is built
        assert cpu_products.can_multiply_int8.__wrapped__() == trust
    if cpu_products.can_multiply_int8():
        weight = torch.randint(-127, 128, (48, 200), dtype=torch.int8)
        x = torch.randint(0, 256, (5, 200), dtype=torch.uint8)
        scale = torch.rand(48)
        y = cpu_products.int8_product(x, cpu_products.pack_int8(weight, "onednn"), scale)
        torch.testing.assert_close(y, ((x.float() - 128) @ weight.float().T) * scale)
    if cpu_products.can_multiply_int4():
        stored = torch.randint(0, 16, (128, 256)).int()
        scale, zero = torch.rand(128, 4), torch.randint(0, 16, (128, 4))
        scales = cpu_products.int4_scales(scale, zero, 2)
        packed, x = cpu_products.pack_int4(stored, "torch"), torch.randn(3, 256).bfloat16()
        wanted = x.float() @ dequantize(stored, scale, zero).T
        y = cpu_products.int4_product(x, packed, 32, scales).float()
        assert (y - wanted).std() / wanted.std() < 0.02
        rows = cpu_products.int4_block_rows()
        if rows:
            weight = cpu_products.unpack_int4(packed, 32, scales, rows).float()
            assert (x.float() @ weight.T - wanted).std() / wanted.std() < 0.02


@pytest.mark.skipif(native.library() is None, reason="there is no compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_rows", native.INT4_BLOCKS)
def test_our_int4_product_knows_both_orders(block_rows: int, dtype: torch.dtype) -> None:
    """That of processors with AVX512, and that of the others; packed by hand."""
    torch.manual_seed(1)
    rows, columns, group = 192, 256, 128
    stored = torch.randint(0, 16, (rows, columns)).int()
    scale, zero = torch.rand(rows, 2), torch.randint(0, 16, (rows, 2))
    scales = cpu_products.int4_scales(scale, zero, 1)
    blocks = stored.view(-1, block_rows, columns).transpose(1, 2)
    low, high = blocks.split(block_rows // 2, -1)
    packed = (low | high << 4).to(torch.uint8).reshape(rows, columns // 2).contiguous()
    weight = cpu_products.unpack_int4(packed, group, scales, block_rows).float()
    for num_tokens in range(1, 14):
        x = torch.randn(num_tokens, columns).to(dtype)
        y = native.multiply_int4(x, packed, group, scales, block_rows)
        wanted = x.float() @ weight.T
        assert y.dtype == dtype
        assert (y.float() - wanted).std() / wanted.std() < 0.005


@pytest.mark.skipif(
    cpu_products.int4_block_rows() not in native.INT4_BLOCKS or native.library() is None,
    reason="our int4 product knows another order of the packed numbers, or there is no compiler",
)
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(64, 64, 32), (192, 384, 128), (128, 256, 256)]
)
def test_our_int4_product_is_that_of_the_numbers(rows: int, columns: int, group: int) -> None:
    """Every number of tokens that registers are filled with, and what is left over."""
    torch.manual_seed(1)
    block_rows, groups = cpu_products.int4_block_rows(), columns // group
    stored = torch.randint(0, 16, (rows, columns)).int()
    scale, zero = torch.rand(rows, groups), torch.randint(0, 16, (rows, groups))
    scales = cpu_products.int4_scales(scale, zero, 1)
    rounded, shift = (part.T.float() for part in scales.unbind(-1))  # as bfloat16 holds them
    weight = dequantize(stored, rounded, torch.full_like(zero, 8)) + shift.repeat_interleave(
        group, 1
    )
    packed = cpu_products.pack_int4(stored, "torch")
    for num_tokens in (1, 2, 3, 4, 5, 6, 7, 12, 17):
        x = torch.randn(num_tokens, columns)
        y = native.multiply_int4(x, packed, group, scales, block_rows)
        torch.testing.assert_close(y, x @ weight.T, rtol=1e-4, atol=1e-4)
        small = x.bfloat16()
        y = cpu_products.int4_linear(small, packed, "torch", group, scales)
        assert y.dtype == torch.bfloat16
        assert (y.float() - small.float() @ weight.T).std() / y.float().std() < 0.01


@pytest.mark.skipif(native.library() is None, reason="there is no compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(32, 8, 8), (64, 64, 32), (96, 384, 128), (32, 1024, 256)]
)
def test_our_int4_product_of_pairs_is_that_of_the_numbers(
    rows: int, columns: int, group: int, dtype: torch.dtype
) -> None:
    """Every number of tokens that registers are filled with; and the same while compiling."""
    torch.manual_seed(1)
    stored = torch.randint(0, 16, (rows, columns)).int()
    stored[0], stored[1] = 0, 15
    scale, zero = (
        torch.rand(rows, columns // group),
        torch.randint(0, 16, (rows, columns // group)),
    )
    scales = cpu_products.int4_scales(scale, zero, 1)
    packed = native.pack_int4_pairs(stored)
    assert torch.equal(native.unpack_int4_pairs(packed), stored)
    rounded, shift = (part.T.double()[..., None] for part in scales.unbind(-1))
    weight = ((stored.unflatten(1, (-1, group)) - 8) * rounded + shift).flatten(1)
    for num_tokens in (0, 1, 2, 3, 4, 5, 11, 12, 13, 30, 300):
        x = torch.randn(num_tokens, columns).to(dtype)
        y = native.multiply_int4_pairs(x, packed, group, scales)
        wanted = x.bfloat16().double() @ weight.T
        assert y.dtype == dtype
        error = (y.double() - wanted).abs() / (x.double().abs() @ weight.T.abs())
        assert (error < (2e-6 if dtype == torch.float32 else 4e-3)).all()


@pytest.mark.skipif(native.library() is None, reason="there is no compiler")
def test_int4_in_pairs_is_unpacked_where_our_product_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, x = torch.randint(0, 16, (64, 64)).int(), torch.randn(3, 64).bfloat16()
    scales = cpu_products.int4_scales(torch.rand(64, 2), torch.randint(0, 16, (64, 2)), 1)
    packed = cpu_products.pack_int4(stored, "pairs")
    ours = cpu_products.int4_linear(x, packed, "pairs", 32, scales)
    monkeypatch.setattr(native, "can_run", lambda x: False)
    unpacked = cpu_products.int4_linear(x, packed, "pairs", 32, scales)  # rounds the weight, too
    assert (unpacked - ours).float().std() / ours.float().std() < 0.01


needs_compiler = pytest.mark.skipif(native.library() is None, reason="there is no compiler")


@needs_compiler
@pytest.mark.parametrize(("rows", "columns"), [(32, 2), (64, 200), (96, 130)])
def test_our_int8_product_is_that_of_the_numbers(rows: int, columns: int) -> None:
    """Every number of tokens that registers are filled with; also of the largest numbers."""
    torch.manual_seed(2)
    weight = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    weight[0], weight[1] = -128, 127
    packed, scale = native.pack_pairs(weight), torch.rand(rows)
    assert torch.equal(native.unpack_pairs(packed), weight)
    for num_tokens in (0, 1, 2, 3, 4, 5, 7, 12, 13, 17):
        x = torch.randint(-128, 128, (num_tokens, columns), dtype=torch.int8)
        x[:1] = -128
        wanted = (x.double() @ weight.double().T).float() * scale
        assert torch.equal(native.multiply_int8(x, packed, scale), wanted)


@needs_compiler
def test_no_sum_of_our_int8_product_leaves_32_bits() -> None:
    columns = native.MOST_INT8_COLUMNS
    weight = torch.full((32, columns), -128, dtype=torch.int8)
    assert native.can_multiply_int8(weight)
    y = native.multiply_int8(weight[:1], native.pack_pairs(weight), torch.ones(32))
    assert (y == 128 * 128 * columns).all()
    for shape in ((32, columns + 2), (32, 3), (33, 2)):
        assert not native.can_multiply_int8(torch.empty(shape, dtype=torch.int8))


@needs_compiler
@pytest.mark.parametrize("form", ["onednn", "native", "plain"])
def test_a_layer_multiplies_in_the_form_that_its_weight_has(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "onednn" and not cpu_products.can_multiply_int8():
        pytest.skip("oneDNN's product is not exact here")
    torch.manual_seed(3)
    weight, x = torch.randn(64, 48), torch.randn(5, 48)
    rounded, scale = quantize_per_token(weight)
    wanted = scaled_product(*quantize_per_token(x), rounded, scale)
    monkeypatch.setattr(cpu_products, "can_multiply_int8", lambda: form == "onednn")
    monkeypatch.setattr(native, "can_multiply_int8", lambda weight: form == "native")
    layer = Linear(48, 64, bias=False)
    layer.input_scale = None
    hold_int8(layer, rounded, scale)
    assert layer.form == form
    torch.testing.assert_close(int8_linear(layer, x, None), wanted)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(int8_linear(layer, x, None), wanted)


def test_int4_takes_the_product_that_is_made_for_so_many_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by torch, a batch by ours, a prompt with the weight unpacked; torch's without ours."""
    if cpu_products.int4_block_rows() not in native.INT4_BLOCKS:
        pytest.skip("torch packs int4 weights otherwise here")
    stored = torch.zeros(64, 64).int()
    scales = cpu_products.int4_scales(torch.ones(64, 1), torch.full((64, 1), 8), 1)
    packed, called = cpu_products.pack_int4(stored, "torch"), []

    def noted(name: str) -> None:
        product = getattr(native if name == "multiply_int4" else cpu_products, name)
        where = native if name == "multiply_int4" else cpu_products
        monkeypatch.setattr(where, name, lambda *args: called.append(name) or product(*args))

    for name in ("int4_product", "multiply_int4", "unpack_int4"):
        noted(name)
    monkeypatch.setitem(cpu_products.MIN_NATIVE_TOKENS, cpu_products.int4_block_rows(), 8)
    sizes = (1, 8, cpu_products.MIN_UNPACKED_TOKENS)
    for size in sizes:
        cpu_products.int4_linear(torch.ones(size, 64), packed, "torch", 64, scales)
    ours = "multiply_int4" if native.library() else "int4_product"
    assert called == ["int4_product", ours, "unpack_int4"]
    monkeypatch.setattr(native, "can_run", lambda x: False)
    cpu_products.int4_linear(torch.ones(sizes[1], 64), packed, "torch", 64, scales)
    assert called[-1] == "int4_product"
