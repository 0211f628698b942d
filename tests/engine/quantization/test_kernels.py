"""The kernels against plain torch, interpreted, and the products that a CPU has of its own."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from mini_vllm.kernels import native, unpacked
from mini_vllm.model.build import default_dtype
from mini_vllm.model.gguf.tensors import BITS, split_blocks
from mini_vllm.model.layers import Linear
from mini_vllm.quantization import cpu_products
from mini_vllm.quantization.int8 import (
    hold_int8,
    int8_linear,
    quantize_per_token,
    scaled_product,
)

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


needs_compiler = pytest.mark.skipif(native.library() is None, reason="there is no compiler")
TOKENS = (0, 1, 2, 3, 4, 5, 11, 12, 13, 17, 40)
"""Every number that registers are filled with, what is left over, and tiles of 16 and of 32."""


def group_weight(
    numbers: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None, middle: int
) -> torch.Tensor:
    """(number - middle) * scale + shift `[N, K]`, in float64."""
    groups = (numbers.double() - middle).unflatten(1, (scale.shape[1], -1))
    groups = groups * scale.double()[..., None]
    return (groups if shift is None else groups + shift.double()[..., None]).flatten(1)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(32, 8, 8), (64, 576, 32), (96, 384, 128), (32, 512, 256)]
)
def test_a_product_of_groups_is_that_of_the_numbers(
    rows: int, columns: int, group: int, bits: int, dtype: torch.dtype
) -> None:
    """x is rounded to 16 bits a group, or to bfloat16 where many tokens go through tiles; there
    very many meet a weight in bfloat16."""
    torch.manual_seed(1)
    numbers = torch.randint(0, 16, (rows, columns)).int()
    if bits == 8:
        numbers = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    scale, shift = (torch.rand(rows, columns // group).half() for _ in range(2))
    blocks = native.pack_int4(numbers) if bits == 4 else native.pack(numbers)
    if bits == 4:
        assert torch.equal(native.unpack_int4(blocks), numbers)
    for middle, own in ((8, None), (0, shift), (8, shift)):
        kept = [None if part is None else part.t().contiguous() for part in (scale, own)]
        matrix = native.Matrix.of_groups(blocks, kept[0], kept[1], middle)
        weight = group_weight(numbers, scale, own, middle)
        for num_tokens in TOKENS:
            x = torch.randn(num_tokens, columns).to(dtype)
            in_tiles = num_tokens > 12 and native.has_tiles()
            y = native.multiply(x, matrix)
            wanted = (x.bfloat16() if in_tiles else x).double() @ weight.T
            error = (y.double() - wanted).abs() / (x.double().abs() @ weight.T.abs())
            assert y.dtype == dtype
            is_rounded = dtype != torch.float32 or (in_tiles and num_tokens > 32)
            assert (error < (2**-7 if is_rounded else 2e-4)).all()


@needs_compiler
@pytest.mark.parametrize(("name", "num_bytes"), [("Q4_0", 18), ("Q4_1", 20), ("Q8_0", 34)])
def test_blocks_of_a_file_are_packed_in_their_own_memory(name: str, num_bytes: int) -> None:
    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (96, 5, num_bytes), dtype=torch.uint8)
    q, *floats = split_blocks(blocks, name)
    floats = floats if name == "Q4_1" else floats[:1]
    bits, place = BITS[name], blocks.data_ptr()
    words, kept = native.pack_blocks(blocks, bits)
    assert torch.equal(words, native.pack_int4(q) if bits == 4 else native.pack(q))
    wanted = torch.stack(floats).transpose(1, 2)
    assert torch.equal(kept.view(torch.int16), wanted.contiguous().view(torch.int16))
    assert words.data_ptr() == place and kept.data_ptr() == place + words.nbytes


@needs_compiler
def test_a_token_that_is_not_finite_harms_no_other() -> None:
    numbers = torch.randint(-127, 128, (32, 64), dtype=torch.int8)
    scale, ones = torch.ones(2, 32).half(), torch.ones(32)
    matrices = (
        native.Matrix.of_groups(packed := native.pack(numbers), scale),
        native.Matrix.of_int8(blocks := native.pack_int8(numbers), ones, 64),
    )
    assert len(packed) == len(blocks)  # kept alive: a matrix has their addresses
    for matrix, bad in itertools.product(matrices, (float("nan"), float("inf"))):
        x = torch.randn(3, 64)
        x[1, 40] = bad
        y = native.multiply(x, matrix)
        assert not y[1].isfinite().any() and y[[0, 2]].isfinite().all()
        assert (native.multiply(torch.zeros(2, 64), matrix) == 0).all()


@needs_compiler
@pytest.mark.parametrize("bits", [4, 8])
def test_a_layer_in_groups_is_unpacked_where_our_product_cannot_run(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    numbers = torch.randint(0, 16, (64, 64))
    numbers = numbers.int() if bits == 4 else numbers.to(torch.int8)
    layer, x = Linear(64, 64, bias=True), torch.randn(3, 64)
    layer.bias.data = torch.randn(64)
    assert cpu_products.hold_groups(layer, numbers, torch.rand(64, 2), torch.rand(64, 2), 8)
    ours = cpu_products.groups_linear(layer, x, layer.bias)
    monkeypatch.setattr(native, "can_run", lambda x: False)
    unpacked = cpu_products.groups_linear(layer, x, layer.bias)
    torch.testing.assert_close(ours, unpacked, rtol=1e-3, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("bits", [4, 8])
def test_many_tokens_have_one_result_by_either_product(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is faster is measured, see `kernels/unpacked.py`. Unpacked are 512 rows at a time."""
    torch.manual_seed(5)
    numbers = torch.randint(0, 16, (544, 64))
    numbers = numbers.int() if bits == 4 else numbers.to(torch.int8)
    layer, x = Linear(64, 544, bias=True), torch.randn(130, 64)
    layer.bias.data = torch.randn(544)
    for shift in (None, torch.rand(544, 2)):
        assert cpu_products.hold_groups(layer, numbers, torch.rand(544, 2), shift, 8)
        results = []
        for wish in ("never", "131", "130"):
            monkeypatch.setenv(unpacked.VARIABLE, wish)
            results.append(cpu_products.groups_linear(layer, x, layer.bias))
        assert torch.equal(*results[:2]) and not torch.equal(*results[1:])
        torch.testing.assert_close(
            results[2], F.linear(x, cpu_products.groups_weight(layer), layer.bias)
        )
        half_step = float(x.abs().max()) * (2**-8 if native.has_tiles() else 0.5 / 32767)
        most = half_step * 64 * 15  # of x's 64 numbers, each times 15 at most
        torch.testing.assert_close(*results[1:], rtol=1e-4, atol=most)


@needs_compiler
def test_scales_that_float16_cannot_hold_keep_their_layer_as_it_is() -> None:
    layer, numbers = Linear(64, 64, bias=False), torch.zeros(64, 64, dtype=torch.int32)
    for scale in (torch.full((64, 2), 1e-7), torch.full((64, 2), 1e6)):
        assert not cpu_products.hold_groups(layer, numbers, scale, None, 8)
        assert layer.matrix is None


@needs_compiler
@pytest.mark.parametrize(("rows", "columns"), [(32, 2), (64, 200), (96, 130)])
def test_our_int8_product_is_that_of_the_numbers(rows: int, columns: int) -> None:
    """x is rounded as `quantize_per_token` does; sums are exact, also of the largest numbers."""
    torch.manual_seed(2)
    weight = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    weight[0], weight[1] = -128, 127
    blocks, scale, bias = native.pack_int8(weight), torch.rand(rows), torch.randn(rows)
    assert torch.equal(native.unpack_int8(blocks, columns), weight)
    for num_tokens, x_scale in itertools.product(TOKENS, (0, 0.01)):
        x = torch.randn(num_tokens, columns)
        rounded, x_scales = quantize_per_token(x)
        if x_scale:
            rounded, x_scales = (x / x_scale).round().clamp(-128, 127), torch.tensor(x_scale)
        wanted = (rounded.double() @ weight.double().T).float() * scale * x_scales + bias
        matrix = native.Matrix.of_int8(blocks, scale, columns, x_scale)
        torch.testing.assert_close(native.multiply(x, matrix, bias), wanted, rtol=2e-6, atol=2e-5)


@needs_compiler
def test_no_sum_of_our_int8_product_leaves_32_bits() -> None:
    columns = native.MOST_INT8_COLUMNS
    weight, ones = torch.full((32, columns), -128, dtype=torch.int8), torch.ones(32)
    assert native.can_multiply_int8(weight)
    matrix = native.Matrix.of_int8(blocks := native.pack_int8(weight), ones, columns, 1.0)
    y = native.multiply(torch.full((17, columns), -128.0), matrix)
    assert len(blocks) == 1 and (y == 128 * 128 * columns).all()
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
