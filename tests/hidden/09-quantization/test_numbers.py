"""Activations, fp8, the KV cache, metrics and the three algorithms, on random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=20)
few = settings(max_examples=6)
INT8 = "mini_vllm.quantization.int8:"
FP8 = "mini_vllm.quantization.fp8:"
KV = "mini_vllm.attention.quantized:"
METRICS = "mini_vllm.quantization.metrics:"
SMOOTH = "mini_vllm.quantization.oneshot.smoothquant:"
AWQ = "mini_vllm.quantization.oneshot.awq:"
GPTQ = "mini_vllm.quantization.oneshot.gptq:"
seeds = st.integers(0, 2**32 - 1)
LAYER_SCALES = st.sampled_from([0.25, 1.0, 4.0, 0.3, 0.0117, 1.7, 23.0])


def tensor(p: Program, values: Any, dtype: str = "float32") -> Any:
    return p.call("torch:tensor", np.asarray(values).tolist(), dtype=p.name(f"torch:{dtype}"))


def item(p: Program, values: Any, index: Any) -> Any:
    return p.call("operator:getitem", values, index)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@many
@given(seed=seeds, tokens=st.integers(1, 6), columns=st.integers(1, 40))
def test_09_5_tokens_of_any_loudness(subject: Any, seed: int, tokens: int, columns: int) -> None:
    """Powers of two as scales, so that half steps are exact; some tokens are zeros. What was given
    stays as it was."""
    rng = np.random.default_rng(seed)
    scale = 2.0 ** rng.integers(-20, 20, (tokens, 1)).astype(np.float64)
    steps = rng.integers(-253, 254, (tokens, columns)) / 2
    steps[:, 0] = rng.choice([-127, 127], tokens)
    steps[rng.random(tokens) < 0.2] = 0
    p = Program()
    x = tensor(p, steps * scale)
    result = p.call(f"{INT8}quantize_per_token", x)
    p.see(item(p, result, 0))
    p.see(item(p, result, 1))
    p.see(x)
    numbers, scales, after = subject.run(p)
    assert np.array_equal(after, steps * scale)
    assert np.array_equal(numbers, np.rint(steps)) and np.asarray(numbers).dtype == np.int8
    loud = steps.any(1)
    assert np.allclose(np.asarray(scales)[loud], scale[loud], rtol=1e-6)
    assert np.allclose(np.asarray(scales)[~loud], 1e-10 / 127, atol=0)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@many
@given(seed=seeds)
def test_09_5_half_a_step_of_any_scale(subject: Any, kind: str, seed: int) -> None:
    """The quotient in float32 decides: a product with 1 / scale, or with 127 / absmax, lies beside
    it, and so does a quotient of more bits, whichever `x` has."""
    rng = np.random.default_rng(seed)
    largest = rng.uniform(0.1, 300, (3, 1)).astype(np.float32)
    scale = largest / np.float32(127)
    x = ((rng.integers(-126, 126, (3, 400)) + 0.5) * scale).astype(np.float32)
    x[:, :1] = largest
    p = Program()
    result = p.call(f"{INT8}quantize_per_token", tensor(p, x, kind))
    p.see(item(p, result, 0))
    p.see(item(p, result, 1))
    numbers, scales = subject.run(p)
    assert np.array_equal(numbers, np.rint(x / scale))
    assert np.asarray(scales).dtype == np.float32 and np.allclose(scales, scale, rtol=1e-6)


def test_09_5_a_silent_token(subject: Any) -> None:
    """Its numbers are 0, its scale is not, and its neighbour notices nothing."""
    p = Program()
    result = p.call(f"{INT8}quantize_per_token", tensor(p, [[0.0, 0.0], [127.0, -1.0]]))
    p.see(item(p, result, 0).tolist())
    p.see(item(p, result, 1))
    numbers, scales = subject.run(p)
    assert numbers == [[0, 0], [127, -1]]
    assert np.allclose(scales, [[1e-10 / 127], [1]], rtol=1e-6, atol=0)


@many
@given(seed=seeds, power=st.integers(-60, -33))
def test_09_5_tokens_that_are_almost_silent(subject: Any, seed: int, power: int) -> None:
    """No scale is below the least one, also if a token is not all zeros."""
    x = normal(seed, 3, 8) * np.float32(2.0**power)
    p = Program()
    result = p.call(f"{INT8}quantize_per_token", tensor(p, x))
    p.see(item(p, result, 0))
    p.see(item(p, result, 1))
    numbers, scales = map(np.asarray, subject.run(p))
    wanted = np.maximum(np.abs(x).max(1, keepdims=True) / 127, 1e-10 / 127)
    assert np.allclose(scales, wanted, rtol=1e-6, atol=0)
    assert (np.abs(numbers - x / wanted) <= 0.501).all()


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_09_5_tokens_in_half_precision(subject: Any, kind: str) -> None:
    """They are divided in float32: 100 of 101 would be rounded to another number before."""
    steps = np.array([[101.0, 100.0, 51.0, -77.0, 3.0], [127.0, 126.0, -125.0, 65.0, 0.0]])
    p = Program()
    result = p.call(f"{INT8}quantize_per_token", tensor(p, steps, kind))
    p.see(item(p, result, 0))
    p.see(item(p, result, 1))
    numbers, scales = subject.run(p)
    scale = np.abs(steps).max(1, keepdims=True).astype(np.float32) / np.float32(127)
    assert np.asarray(scales).dtype == np.float32 and np.allclose(scales, scale, rtol=1e-6)
    assert np.array_equal(numbers, np.rint(steps / scale))


@many
@example(seed=1, tokens=5, rows=5, columns=3000)
@example(seed=2, tokens=2, rows=2, columns=9000)
@given(seed=seeds, tokens=st.integers(1, 5), rows=st.integers(1, 5), columns=st.integers(1, 3000))
def test_09_5_the_scaled_product_is_exact(
    subject: Any, seed: int, tokens: int, rows: int, columns: int
) -> None:
    """Sums far beyond 16 bits, the longest beyond 24; scales of every token and row."""
    rng = np.random.default_rng(seed)
    x = rng.integers(100, 128, (tokens, columns)) * rng.choice([-1, 1], (tokens, 1))
    weight = rng.integers(-127, 128, (rows, columns))
    if columns > 2000:  # of one sign: 20 million and more, rounded once at the end
        weight = rng.integers(100, 128, (rows, columns))
    x_scale, w_scale = (
        2.0 ** rng.integers(-9, 9, (tokens, 1)),
        2.0 ** rng.integers(-9, 9, (rows, 1)),
    )
    p = Program()
    numbers = (
        tensor(p, x, "int8"),
        tensor(p, x_scale),
        tensor(p, weight, "int8"),
        tensor(p, w_scale),
    )
    p.see(p.call(f"{INT8}scaled_product", *numbers))
    exact = (x @ weight.T).astype(np.float32)
    [found] = subject.run(p)
    assert np.asarray(found).dtype == np.float32
    assert np.array_equal(found, exact * x_scale * w_scale.T)


def test_09_5_scales_of_any_size(subject: Any) -> None:
    """Neither powers of two nor numbers of half precision; each of both counts to its last bits."""
    rng = np.random.default_rng(5)
    x, weight = rng.integers(-127, 128, (4, 50)), rng.integers(-127, 128, (6, 50))
    x_scale, w_scale = rng.uniform(1e-9, 3, (4, 1)), rng.uniform(1e-9, 3, (6, 1)) * 1e5
    p = Program()
    held = tensor(p, x, "int8"), tensor(p, x_scale), tensor(p, weight, "int8"), tensor(p, w_scale)
    p.see(p.call(f"{INT8}scaled_product", *held))
    wanted = (x @ weight.T) * x_scale.astype(np.float32) * w_scale.T.astype(np.float32)
    assert np.allclose(subject.run(p)[0], wanted, rtol=1e-6, atol=0)


@many
@given(
    seed=seeds,
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    block=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_09_6_blocks_of_every_shape(
    subject: Any, seed: int, shape: tuple[int, int], block: tuple[int, int]
) -> None:
    """Also blocks larger than the matrix; each number keeps its sixteenth."""
    rng = np.random.default_rng(seed)
    weight = normal(seed, *shape) * 10.0 ** rng.integers(-3, 7, shape)
    p = Program()
    held = tensor(p, weight)
    result = p.call(f"{FP8}quantize_block", held, block)
    numbers, scale = item(p, result, 0), item(p, result, 1)
    p.see(p.call("builtins:str", numbers.dtype))
    p.see(numbers.float())
    p.see(scale)
    p.see(p.call(f"{FP8}dequantize_block", numbers, scale, block))
    p.see(held)
    kind, *seen = subject.run(p)
    stored, scales, back, after = map(np.asarray, seen)
    assert kind == "torch.float8_e4m3fn" and scales.dtype == back.dtype == np.float32
    assert np.array_equal(after, weight.astype(np.float32))
    for r in range(-(-shape[0] // block[0])):
        for c in range(-(-shape[1] // block[1])):
            at = np.s_[
                r * block[0] : (r + 1) * block[0],
                c * block[1] : (c + 1) * block[1],
            ]
            largest = np.abs(weight[at]).max()
            assert np.isclose(scales[r, c], max(largest / 448, 1e-12), rtol=1e-4, atol=0)
            assert np.abs(stored[at]).max() == 448
            step = np.maximum(np.abs(weight[at]) / 16, scales[r, c] * 2**-10)
            assert (np.abs(back[at] - weight[at]) <= step * 1.001).all()
            assert np.allclose(back[at], stored[at] * scales[r, c], rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_09_6_a_weight_of_16_bits(subject: Any, kind: str) -> None:
    """It is widened before anything is divided: 3 / 448 is no number of 16 bits."""
    p = Program()
    weight = tensor(p, [[3.0, 1.0, -0.5, 2.0]], kind)
    result = p.call(f"{FP8}quantize_block", weight, (1, 4))
    p.see(item(p, result, 1))
    assert np.allclose(subject.run(p)[0], [[3 / 448]], rtol=1e-6, atol=0)


def test_09_6_a_block_of_zeros(subject: Any) -> None:
    """It stays zeros, beside a block that is not, and one that almost is: no scale is smaller."""
    weight = [[0.0, 0.0, 448.0, -7.0, 8e-12, -4e-12]]
    p = Program()
    result = p.call(f"{FP8}quantize_block", tensor(p, weight), (1, 2))
    p.see(item(p, result, 0).float().tolist())
    p.see(item(p, result, 1))
    numbers, scales = subject.run(p)
    assert numbers == [[0, 0, 448, -7, 8, -4]]
    assert np.allclose(scales, [[1e-12, 1, 1e-12]], rtol=1e-6, atol=0)


HALF_WAY = [1.3203048706054688, 0.00313130347058177]
"""The second number is 1.0625 times the scale of the first in float32, and times its reciprocal a
little more."""


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_09_6_rounded_once(subject: Any, kind: str) -> None:
    """A little above the middle between two numbers, and a little below: less than a step of half
    precision beside it. Rounded to that first, it goes the other way."""
    little = 2.0**-13
    weight = [[448.0, 1.0625 + little, 1.1875 - little, -1.0625 - little, 62 - 32 * little]]
    p = Program()
    p.see(item(p, p.call(f"{FP8}quantize_block", tensor(p, weight), (1, 5)), 0).float())
    assert np.array_equal(subject.run(p)[0], [[448, 1.125, 1.125, -1.125, 60]])
    for pair, even in ((HALF_WAY, 1), ([4.017172813415527, 0.009527334943413734], 1)):
        p = Program()
        result = p.call(f"{FP8}quantize_block", tensor(p, [pair], kind), (1, 2))
        p.see(item(p, result, 0).float())
        p.see(item(p, result, 1))
        numbers, scales = subject.run(p)
        assert np.array_equal(numbers, [[448, even]]), "half way, and to the even one"
        assert np.asarray(scales).dtype == np.float32


@many
@given(seed=seeds, tokens=st.integers(1, 5), heads=st.integers(1, 3))
def test_09_7_bytes_of_int8_heads(subject: Any, seed: int, tokens: int, heads: int) -> None:
    """Every number rounded, every scale behind its own head; some heads are zeros."""
    rng = np.random.default_rng(seed)
    scale = 2.0 ** rng.integers(-8, 9, (tokens, heads, 1))
    steps = rng.integers(-253, 254, (tokens, heads, 8)) / 2
    steps[..., 3] = -127
    p = Program()
    form = item(p, p.name(f"{KV}FORMATS"), "int8_per_token_head")
    data = p.call(f"{KV}quantize_kv", tensor(p, steps * scale), form)
    p.see(data)
    p.see(p.call(f"{KV}dequantize_kv", data, form, p.name("torch:float32")))
    data, back = map(np.asarray, subject.run(p))
    assert data.dtype == np.int8 and data.shape == (tokens, heads, 12)
    assert np.array_equal(data[..., :8], np.rint(steps))
    assert np.allclose(data[..., 8:].copy().view(np.float32), scale, rtol=1e-6)
    assert np.allclose(back, np.rint(steps) * scale, rtol=1e-6)


@many
@given(seed=seeds, scale=LAYER_SCALES)
def test_09_7_a_layer_of_int8(subject: Any, seed: int, scale: float) -> None:
    """One scale for all, chosen for other numbers: what is too large becomes the largest."""
    steps = np.random.default_rng(seed).integers(-600, 601, (3, 2, 40)) / 2
    x = (steps * scale).astype(np.float32)
    p = Program()
    form = p.new(f"{KV}CacheFormat", p.name("torch:int8"), False)
    data = p.call(f"{KV}quantize_kv", tensor(p, x), form, scale)
    p.see(data)
    p.see(p.call(f"{KV}dequantize_kv", data, form, p.name("torch:float32"), scale))
    data, back = subject.run(p)
    wanted = np.clip(np.rint(x / np.float32(scale)), -127, 127)
    assert np.array_equal(data, wanted) and np.allclose(back, wanted * scale, rtol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@many
@given(seed=seeds)
def test_09_7_half_a_step_of_any_head(subject: Any, kind: str, seed: int) -> None:
    """The quotient in float32 decides, as for activations."""
    rng = np.random.default_rng(seed)
    largest = rng.uniform(0.1, 300, (2, 3, 1)).astype(np.float32)
    scale = largest / np.float32(127)
    x = ((rng.integers(-126, 126, (2, 3, 128)) + 0.5) * scale).astype(np.float32)
    x[..., :1] = largest
    p = Program()
    form = item(p, p.name(f"{KV}FORMATS"), "int8_per_token_head")
    p.see(p.call(f"{KV}quantize_kv", tensor(p, x, kind), form))
    data = np.asarray(subject.run(p)[0])
    assert data.shape[-1] == 132 and np.array_equal(data[..., :128], np.rint(x / scale))


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", ["fp8", "fp8_per_token_head"])
def test_09_7_half_way_between_two_of_fp8(subject: Any, name: str, kind: str) -> None:
    """The quotient in float32 lies half way and goes to the even number, 1; the product with
    1 / scale lies above it. So it is with the layer's scale, and with the head's own."""
    scale = float(np.float32(HALF_WAY[0]) / np.float32(448))
    p = Program()
    form = item(p, p.name(f"{KV}FORMATS"), name)
    data = p.call(f"{KV}quantize_kv", tensor(p, [[HALF_WAY]], kind), form, scale)
    first, second = item(p, data, (0, 0, 0)).item(), item(p, data, (0, 0, 1)).item()
    p.see([first, second])
    assert subject.run(p) == [[126, 56]], "448 and 1, as their bytes"


def test_09_7_fp8_is_rounded_once(subject: Any) -> None:
    """A little beside the middle of two numbers: half precision in between would go the other
    way."""
    little = 2.0**-13
    x = [[[1.0625 + little, 1.1875 - little, -1.0625 - little, 62 - 32 * little]]]
    p = Program()
    form = item(p, p.name(f"{KV}FORMATS"), "fp8")
    p.see(p.call(f"{KV}quantize_kv", tensor(p, x), form).tolist())
    assert subject.run(p) == [[[[57, 57, 57 - 128, 103]]]], "1.125 three times, and 60"


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_09_7_keys_in_half_precision(subject: Any, kind: str) -> None:
    """They are widened before anything else: divided in float32, and an infinity is LARGE."""
    x = np.array([[[101.0, 100.0, 51.0, -77.0], [127.0, 126.0, -125.0, 65.0]]])
    broken = [[[np.inf, -np.inf, 1.0, np.nan]]]
    p = Program()
    form = item(p, p.name(f"{KV}FORMATS"), "int8_per_token_head")
    for values in (x, broken):
        p.see(p.call(f"{KV}quantize_kv", tensor(p, values, kind), form))
    heads, large = map(np.asarray, subject.run(p))
    scale = np.abs(x).max(-1, keepdims=True).astype(np.float32) / np.float32(127)
    assert np.array_equal(heads[..., :4], np.rint(x / scale))
    assert large[0, 0, :4].tolist() == [127, -127, 0, 0]
    assert np.allclose(large[0, 0, 4:].copy().view(np.float32), 1e30 / 127, rtol=1e-5)


@many
@given(
    seed=seeds,
    name=st.sampled_from(["int8_per_token_head", "fp8_per_token_head"]),
    scale=LAYER_SCALES,
)
def test_09_7_each_head_has_its_own_scale(subject: Any, seed: int, name: str, scale: float) -> None:
    """Loud heads, heads below the least scale, and silent ones; the layer's scale is not theirs."""
    loud = np.random.default_rng(seed).choice([0, 1e-7, 1e-5, 1, 1e4], (3, 2, 1))
    x = normal(seed, 3, 2, 8) * loud.astype(np.float32)
    p = Program()
    form = item(p, p.name(f"{KV}FORMATS"), name)
    data = p.call(f"{KV}quantize_kv", tensor(p, x), form, scale)
    p.see(data)
    p.see(p.call(f"{KV}dequantize_kv", data, form, p.name("torch:float32"), scale))
    data, back = map(np.asarray, subject.run(p))
    largest = 127 if name.startswith("int8") else 448
    wanted = np.maximum(np.abs(x).max(-1, keepdims=True) / largest, 1e-6)
    assert np.allclose(data[..., 8:].copy().view(np.float32), wanted, rtol=1e-6, atol=0)
    step = wanted / 2 if largest == 127 else np.maximum(np.abs(x) / 16, wanted * 2**-10)
    assert (np.abs(back - x) <= step * 1.001).all()


@many
@given(seed=seeds, kind=st.sampled_from(["float16", "bfloat16"]))
def test_09_7_rounded_once_when_it_is_read(subject: Any, seed: int, kind: str) -> None:
    """In half precision there is the product, rounded, and not a product of rounded numbers."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-127, 128, (5, 2, 8)).astype(np.int8)
    scales = rng.uniform(0.01, 1, (5, 2, 1)).astype(np.float32)
    data = np.concatenate((numbers, scales.view(np.int8)), -1)
    layer = float(rng.uniform(0.1, 1))
    p = Program()
    for name, held in (("int8_per_token_head", data), ("fp8", numbers[:, :, :4] & 63)):
        form = item(p, p.name(f"{KV}FORMATS"), name)
        held = tensor(p, held, "int8")
        p.see(p.call(f"{KV}dequantize_kv", held, form, p.name(f"torch:{kind}"), layer).float())
        p.see(held.view(p.name("torch:float8_e4m3fn")).float())
    heads, _, of_layer, meant = map(np.asarray, subject.run(p))
    half_step = 2.0 ** (-11 if kind == "float16" else -8)
    exact = numbers * scales.astype(np.float64)
    assert (np.abs(heads - exact) <= np.abs(exact) * half_step * 1.001).all()
    exact = meant * layer
    assert (np.abs(of_layer - exact) <= np.maximum(np.abs(exact), 2**-14) * half_step * 1.001).all()


@many
@given(seed=seeds, scale=LAYER_SCALES)
def test_09_7_one_scale_for_a_layer(subject: Any, seed: int, scale: float) -> None:
    """fp8: divided when stored, multiplied when read, cut off at 448."""
    x = normal(seed, 4, 2, 8) * 10.0 ** np.random.default_rng(seed).integers(-2, 5, (4, 2, 8))
    p = Program()
    form = item(p, p.name(f"{KV}FORMATS"), "fp8")
    data = p.call(f"{KV}quantize_kv", tensor(p, x), form, scale)
    p.see(data)
    p.see(p.call(f"{KV}dequantize_kv", data, form, p.name("torch:float32"), scale))
    data, back = map(np.asarray, subject.run(p))
    wanted = np.clip(x, -448 * scale, 448 * scale)
    step = np.maximum(np.abs(wanted) / 16, scale * 2**-10)
    assert data.shape == x.shape and (np.abs(back - wanted) <= step * 1.001).all()


def test_09_7_what_a_broken_request_leaves(subject: Any) -> None:
    """NaN and infinities are finite when they are read, in every format."""
    x = [[[float("nan"), float("inf"), 1.0, -float("inf")], [0.0, 1.0, 2.0, 3.0]]]
    p = Program()
    names = ("fp8", "int8_per_token_head", "fp8_per_token_head")
    for name in names:
        form = item(p, p.name(f"{KV}FORMATS"), name)
        data = p.call(f"{KV}quantize_kv", tensor(p, x), form)
        p.see(p.call(f"{KV}dequantize_kv", data, form, p.name("torch:float32")))
    for name, back in zip(names, map(np.asarray, subject.run(p)), strict=True):
        assert np.isfinite(back).all() and back[0, 0, 0] == 0
        assert np.allclose(back[0, 1], [0, 1, 2, 3], rtol=1 / 16)
        if name == "fp8":  # one scale for all: what is infinite becomes the largest
            assert back[0, 0].tolist() == [0, 448, 1, -448]
        else:
            assert np.allclose(back[0, 0], [0, 1e30, 0, -1e30], rtol=1e-5)


def test_09_7_in_the_dtype_that_was_asked_for(subject: Any) -> None:
    """Pages of several requests, read in half precision; what was stored stays as it was."""
    x = normal(3, 2, 3, 2, 8)
    x[0, 0, 0, 0] = np.nan
    p = Program()
    for name in ("fp8", "int8_per_token_head"):
        form = item(p, p.name(f"{KV}FORMATS"), name)
        stored = tensor(p, x)
        data = [p.call(f"{KV}quantize_kv", item(p, stored, page), form) for page in (0, 1)]
        pages = p.call("torch:stack", data)
        p.see(stored)
        for kind in ("float16", "bfloat16", "float32"):
            back = p.call(f"{KV}dequantize_kv", pages, form, p.name(f"torch:{kind}"))
            p.see(p.call("builtins:str", back.dtype))
            p.see(back.float())
    seen = subject.run(p)
    for after, *told in (seen[: len(seen) // 2], seen[len(seen) // 2 :]):
        assert np.array_equal(after, x, equal_nan=True)
        assert told[::2] == ["torch.float16", "torch.bfloat16", "torch.float32"]
        for back in told[1::2]:
            assert np.allclose(np.asarray(back)[1], x[1], atol=0.15)


@many
@given(seed=seeds, positions=st.integers(1, 5), vocab=st.integers(2, 20))
def test_09_8_divergence_agreement_perplexity(
    subject: Any, seed: int, positions: int, vocab: int
) -> None:
    """Against sums in numpy; a third of the original's tokens are ruled out."""
    rng = np.random.default_rng(seed)
    first, second = normal(seed, positions, vocab) * 4, normal(seed + 1, positions, vocab) * 4
    first[:, 1:][rng.random((positions, vocab - 1)) < 0.3] = -np.inf
    targets = rng.integers(0, vocab, positions)
    p = Program()
    pair = tensor(p, first), tensor(p, second)
    p.see(p.call(f"{METRICS}kl_divergence", *pair))
    p.see(p.call(f"{METRICS}top1_agreement", *pair))
    p.see(p.call(f"{METRICS}perplexity", pair[1], tensor(p, targets, "int64")))
    divergence, agreement, found = subject.run(p)

    def softmax(logits: np.ndarray) -> np.ndarray:
        powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    a, b = softmax(first), softmax(second)
    terms = np.where(a > 0, a * np.log(np.where(a > 0, a, 1) / b), 0)
    assert np.allclose(divergence, terms.sum(-1), atol=1e-6)
    assert np.isclose(agreement, (a.argmax(-1) == b.argmax(-1)).mean())
    assert np.isclose(found, np.exp(-np.log(b[np.arange(positions), targets]).mean()), rtol=1e-5)


@many
@given(seed=seeds, power=st.integers(-5, -3))
def test_09_8_almost_the_same(subject: Any, seed: int, power: int) -> None:
    """The divergence of distributions that hardly differ is tiny, and needs float64."""
    first = np.random.default_rng(seed).normal(size=(3, 40))
    second = first + 10.0**power * np.random.default_rng(seed + 1).normal(size=(3, 40))
    p = Program()
    p.see(p.call(f"{METRICS}kl_divergence", *(tensor(p, x, "float64") for x in (first, second))))
    [found] = subject.run(p)
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (first, second))
    wanted = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    assert np.asarray(found).dtype == np.float64
    assert np.allclose(found, wanted, rtol=1e-3, atol=1e-15)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_09_8_logits_of_few_bits(subject: Any, kind: str) -> None:
    """Their distributions are those of float64, whatever the logits came in."""
    first, second = [[8.0, 7.5, -3.0, 0.25]], [[7.5, 8.0, -2.0, 0.5]]
    p = Program()
    p.see(p.call(f"{METRICS}kl_divergence", tensor(p, first, kind), tensor(p, second, kind)))
    [found] = subject.run(p)
    a, b = (np.exp(x) / np.exp(x).sum() for x in map(np.array, (first, second)))
    wanted = (a * np.log(a / b)).sum()
    assert np.asarray(found).dtype == np.float64 and np.allclose(found, [wanted], rtol=1e-12)


def test_09_8_what_is_almost_impossible(subject: Any) -> None:
    """Six hundred below the best is unlikely, not impossible; what only the other rules out is
    infinitely far. The next token is the best by however little. A constant in all logits changes
    nothing, and 40,000 positions are as surprising as one."""
    first = np.array([[0.0, -1.0, -3.0], [0.0, -1.0, -1.0], [0.0, -2000.0, 0.0]])
    second = np.array([[0.0, -600.0, -1.0], [0.0, -np.inf, 0.0], [0.0, 0.0, 1.0]])
    p = Program()
    pair = tensor(p, first), tensor(p, second)
    p.see(p.call(f"{METRICS}kl_divergence", *pair))
    p.see(p.call(f"{METRICS}kl_divergence", tensor(p, first + 1000), tensor(p, second - 1000)))
    nothing = p.call("torch:zeros", 40_000, dtype=p.name("torch:int64"))
    p.see(p.call(f"{METRICS}perplexity", p.call("torch:zeros", 40_000, 8), nothing))
    told = [[0.0, -600.0], *[[0.0, 1.0]] * 11]
    p.see(p.call(f"{METRICS}perplexity", tensor(p, told), tensor(p, [1] * 12, "int64")))
    close = (
        tensor(p, [[10, 10.001], [3, 3], [3, 3], [3, 4]]),
        tensor(p, [[10, 9], [3, 3], [3, 4], [3, 3]]),
    )
    p.see(p.call(f"{METRICS}top1_agreement", *close))
    both = tensor(p, [[0.0, -np.inf, 1.0]]), tensor(p, [[1.0, -np.inf, 0.0]])
    p.see(p.call(f"{METRICS}kl_divergence", *both))
    divergence, raised, of_many, found, agreement, banned = subject.run(p)
    assert np.allclose(banned, [np.tanh(0.5)]), "what both rule out adds nothing"
    assert np.allclose(raised, divergence, rtol=1e-4) and np.isclose(of_many, 8, rtol=1e-4)

    def logs(x: np.ndarray) -> np.ndarray:
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    log_p, log_q = logs(first), logs(second)
    wanted = (np.exp(log_p[:1]) * (log_p[:1] - log_q[:1])).sum()
    assert np.isclose(divergence[0], wanted, rtol=1e-6) and divergence[1] == np.inf
    assert np.isfinite(divergence[2])
    assert np.isclose(found, np.exp(-logs(np.array(told))[:, 1].mean()), rtol=1e-3)
    assert agreement == 0.25, "of equal ones the first is what it says"


@many
@given(seed=seeds, size=st.integers(1, 9), alpha=st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]))
@example(seed=1, size=3, alpha=0.5)
def test_09_9_scales_of_all_channels(subject: Any, seed: int, size: int, alpha: float) -> None:
    """Silent channels and silent columns among loud ones; folding keeps the product, of a square
    matrix too."""
    rng = np.random.default_rng(seed)
    x, w = np.abs(normal(seed, 2, size)) * 100
    x[rng.random(size) < 0.2], w[rng.random(size) < 0.2] = 0, 0
    w *= rng.choice([1, 2.0**17], size).astype(np.float32)  # the least scale, without much alpha
    norm, weight = normal(seed + 1, size), normal(seed + 2, 3, size)
    p = Program()
    largest = tensor(p, x), tensor(p, w)
    scales = p.call(f"{SMOOTH}smooth_scales", *largest, alpha)
    p.see(scales)
    held = tensor(p, norm), tensor(p, weight)
    p.call(f"{SMOOTH}fold_into_norm", *held, scales)
    p.see(held[0])
    p.see(held[1])
    for measured in (*largest, scales):
        p.see(measured)
    found, norm_now, weight_now, *kept, after = map(np.asarray, subject.run(p))
    assert np.array_equal(kept, [x, w]), "what was measured is measured once"
    assert np.array_equal(after, found), "the scales are folded into other matrices, too"
    x, w = np.maximum(x, 1e-5), np.maximum(w, 1e-5)
    assert np.allclose(found, np.maximum(x**alpha / w ** (1 - alpha), 1e-5), rtol=1e-3)
    assert np.allclose(norm_now, norm / found, rtol=1e-4)
    assert np.allclose(weight_now, weight * found, rtol=1e-4)


def test_09_9_magnitudes_about_the_least(subject: Any) -> None:
    """What is smaller than the least counts as the least, and what is a little larger as itself."""
    x, w = [0.0, 4e-6, 1.5e-5, 2e-5, 1.0], [2e-5, 1.5e-5, 4e-6, 1.0, 0.0]
    p = Program()
    p.see(p.call(f"{SMOOTH}smooth_scales", tensor(p, x), tensor(p, w), 0.25))
    least = np.maximum([x, w], 1e-5)
    assert np.allclose(subject.run(p)[0], least[0] ** 0.25 / least[1] ** 0.75, rtol=1e-3)


@few
@given(
    seed=seeds,
    loud=st.integers(0, 5),
    loudness=st.sampled_from([30, 3000]),
    quiet=st.sampled_from([0, 1e-3, 1]),
)
@example(seed=1, loud=2, loudness=3000, quiet=1)
@example(seed=2, loud=4, loudness=30, quiet=0)
@example(seed=3, loud=0, loudness=30, quiet=1e-3)
def test_09_10_the_best_of_twenty(
    subject: Any, seed: int, loud: int, loudness: float, quiet: float
) -> None:
    """The same factors as trying all of them in numpy."""
    x, weight = normal(seed, 40, 6), normal(seed + 1, 5, 6) * 3
    x[:, loud] *= loudness
    x[:, loud - 1] *= quiet
    mean = np.maximum(np.abs(x).mean(0), 1e-4)
    costs = []
    for ratio in range(20):
        scales = mean ** (ratio / 20)
        scales /= np.sqrt(scales.max() * scales.min())
        error = (x / scales) @ np.rint(weight * scales).T - x @ weight.T
        costs.append(((error**2).mean(), scales))
    p = Program()
    held = tensor(p, x), tensor(p, weight)
    result = p.call(f"{AWQ}search_scale", *held, p.name("torch:round"))
    p.see(item(p, result, 0))
    p.see(item(p, result, 1))
    for kept in held:
        p.see(kept)
    found, cost, x_after, weight_after = subject.run(p)
    assert np.array_equal(x_after, x) and np.array_equal(weight_after, weight), "to the bit"
    lowest = min(c for c, _ in costs)
    assert np.isclose(cost, lowest, rtol=0.02)
    near = [scales for c, scales in costs if c <= lowest * 1.02]
    assert any(np.allclose(found, scales, rtol=1e-3) for scales in near)


def test_09_10_without_any_gain(subject: Any) -> None:
    """Nothing of the weight is left, whatever it is multiplied by: the factors are 1."""
    x, weight = normal(1, 9, 4), normal(2, 3, 4)
    p = Program()
    nothing = p.name("torch:zeros_like")
    result = p.call(f"{AWQ}search_scale", tensor(p, x), tensor(p, weight), nothing)
    p.see(item(p, result, 0))
    p.see(item(p, result, 1))
    factors, cost = subject.run(p)
    assert np.allclose(factors, 1) and np.isclose(cost, ((x @ weight.T) ** 2).mean(), rtol=1e-4)


def meaning(found: Any) -> np.ndarray:
    stored, scale, zero, group = map(np.asarray, found)
    return (stored - zero[:, group]) * scale[:, group]


@few
@given(
    seed=seeds,
    size=st.sampled_from([4, 8, -1]),
    symmetric=st.booleans(),
    act_order=st.booleans(),
    bits=st.sampled_from([2, 3, 4, 8]),
)
@example(seed=1, size=4, symmetric=True, act_order=False, bits=8)
@example(seed=2, size=8, symmetric=False, act_order=True, bits=3)
def test_09_11_the_reference_rounds_no_better(
    subject: Any, reference: Any, seed: int, size: int, symmetric: bool, act_order: bool, bits: int
) -> None:
    """The error on the calibration inputs, dead columns among them."""
    mixing = np.eye(16) + normal(seed, 16, 16)
    x = normal(seed + 1, 300, 16) @ mixing * np.exp(normal(seed + 2, 16))
    x[:, seed % 16] = 0
    weight = normal(seed + 3, 6, 16)
    p = Program()
    args = tensor(p, weight), tensor(p, x.T @ x), bits, size, symmetric, act_order
    result = p.call(f"{GPTQ}gptq_quantize", *args)
    for index in range(4):
        p.see(item(p, result, index))
    found = subject.run(p)
    yours, expected = meaning(found), meaning(reference.run(p))
    assert np.min(found[0]) >= 0 and np.max(found[0]) < 2**bits
    assert yours.shape == weight.shape and (yours[:, seed % 16] == 0).all()
    errors = [np.linalg.norm(x @ (w - weight).T) for w in (yours, expected)]
    assert errors[0] <= errors[1] * 1.05


def test_09_11_hundreds_of_columns(subject: Any, reference: Any) -> None:
    """The last of 260 columns makes up for the first, with which it is almost equal. Weights and
    Hessian may have other dtypes than float32."""
    columns = 260
    p = Program()
    weight, hessian = p.call("torch:zeros", 60, columns), p.call("torch:eye", columns)
    for place in ((0, -1), (-1, 0)):
        p.call("operator:setitem", hessian, place, 0.95)
    by_column = {0: normal(1, 60) / 3, 1: np.ones(60), -2: np.ones(60), -1: normal(2, 60) / 3}
    for column, values in by_column.items():
        p.call("operator:setitem", weight.T, column, tensor(p, values))
    held = weight.to(p.name("torch:bfloat16")), hessian.to(p.name("torch:float64"))
    result = p.call(f"{GPTQ}gptq_quantize", *held, 4, 2, True)
    for index in range(4):
        p.see(item(p, result, index))
    for found, wanted in zip(subject.run(p), reference.run(p), strict=True):
        assert np.asarray(found).dtype == np.asarray(wanted).dtype
        assert np.allclose(found, wanted, rtol=1e-5)


def test_09_11_what_was_given_stays(subject: Any) -> None:
    """A column that no input reached counts as zeros; the weight that was given keeps its own."""
    p = Program()
    weight, hessian = tensor(p, normal(5, 3, 8)), tensor(p, np.diag([0, 1, 2, 3, 4, 5, 6, 0]))
    p.call(f"{GPTQ}gptq_quantize", weight, hessian, 4, 4, True)
    p.see(weight)
    p.see(hessian.diagonal().tolist())
    found, diagonal = subject.run(p)
    assert np.array_equal(found, normal(5, 3, 8)) and diagonal == [0, 1, 2, 3, 4, 5, 6, 0]


@few
@given(seed=seeds)
def test_09_11_unrelated_inputs_are_rounding(subject: Any, seed: int) -> None:
    """A diagonal Hessian spreads no error, whatever the order of the columns."""
    loud = np.random.default_rng(seed).permutation(np.arange(1, 9))
    weight = normal(seed, 3, 8)
    loudest_first, neighbours = np.where(loud > 4, 0, 1), np.arange(8) // 4
    p = Program()
    for act_order in (True, False):
        args = tensor(p, weight), tensor(p, np.diag(loud)), 4, 4, True, act_order
        result = p.call(f"{GPTQ}gptq_quantize", *args)
        for index in range(4):
            p.see(item(p, result, index))
    both = subject.run(p)
    for found, wanted_group in ((both[:4], loudest_first), (both[4:], neighbours)):
        stored, group = np.asarray(found[0]), np.asarray(found[3])
        assert np.array_equal(group, wanted_group), "by act_order the loudest four share group 0"
        assert stored.dtype == group.dtype == np.int32
        for each in (0, 1):
            part = weight[:, group == each]
            scale = np.abs(part).max(1, keepdims=True) / np.float32(7)
            wanted = np.clip(np.rint(part / scale), -8, 7) * scale
            assert np.allclose(meaning(found)[:, group == each], wanted, rtol=1e-5, atol=1e-6)


@few
@given(seed=seeds, symmetric=st.booleans())
def test_09_11_damped_until_nothing_spreads(subject: Any, seed: int, symmetric: bool) -> None:
    """With a damping of a million, related inputs count as unrelated: all is plain rounding."""
    mixing = np.ones((8, 8)) + normal(seed, 8, 8)
    hessian, weight = mixing.T @ mixing, normal(seed + 1, 3, 8)
    p = Program()
    args = tensor(p, weight), tensor(p, hessian), 4, 4, symmetric, False, 1e6
    result = p.call(f"{GPTQ}gptq_quantize", *args)
    for index in range(4):
        p.see(item(p, result, index))
    found = subject.run(p)
    scale = np.asarray(found[1])[:, np.asarray(found[3])]
    assert (np.abs(meaning(found) - weight) <= scale * 0.501).all()


def rounded_one_by_one(
    weight: np.ndarray, hessian: np.ndarray, bits: int, size: int, symmetric: bool, kind: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """The algorithm in float64: numbers, scales, and how far the closest was from half a step."""
    weight, columns, closest = weight.astype(np.float64), len(hessian), 1.0
    damped = hessian + 0.01 * hessian.diagonal().mean() * np.eye(columns)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    stored, scales = [], []
    for i in range(columns):
        if i % size == 0:
            group = weight[:, i : i + size]
            low, high = np.minimum(group.min(1), 0), np.maximum(group.max(1), 0)
            span = (high - low) / (2**bits - 1)
            largest = np.abs(group).max(1) / (2 ** (bits - 1) - 1)
            scale = largest if symmetric else span
            exact = np.full(len(weight), 2 ** (bits - 1)) if symmetric else -low / span
            zero, scale = np.rint(exact), scale.astype(kind).astype(np.float64)
            scales.append(scale)
            closest = min(closest, np.abs(exact % 1 - 0.5).min())
        steps = weight[:, i] / scale
        closest = min(closest, np.abs(steps % 1 - 0.5).min())
        stored.append(np.clip(np.rint(steps) + zero, 0, 2**bits - 1))
        error = (weight[:, i] - (stored[-1] - zero) * scale) / factor[i, i]
        weight[:, i + 1 :] -= np.outer(error, factor[i, i + 1 :])
    return np.stack(stored, 1), np.stack(scales, 1), closest


@many
@given(
    seed=seeds,
    size=st.sampled_from([2, 4]),
    symmetric=st.booleans(),
    kind=st.sampled_from(["float32", "float16"]),
)
def test_09_11_as_in_float64(
    subject: Any, seed: int, size: int, symmetric: bool, kind: str
) -> None:
    """A group's scale comes from the weights as they are when it is reached, and each error goes to
    all that follow. Where a number lies between two, nothing is asked."""
    x = normal(seed, 40, 8) @ (np.eye(8) + normal(seed + 1, 8, 8) / 2)
    weight, hessian = normal(seed + 2, 3, 8), (x.T @ x).astype(np.float32)
    stored, scales, closest = rounded_one_by_one(weight, hessian, 3, size, symmetric, kind)
    assume(closest > 1e-3)
    p = Program()
    args = tensor(p, weight), tensor(p, hessian), 3, size, symmetric
    result = p.call(f"{GPTQ}gptq_quantize", *args, scale_dtype=p.name(f"torch:{kind}"))
    p.see(item(p, result, 0))
    p.see(item(p, result, 1))
    found, its_scales = subject.run(p)
    assert np.array_equal(found, stored)
    assert np.allclose(its_scales, scales, rtol=2**-10 if kind == "float16" else 1e-4)
    assert np.array_equal(its_scales, np.asarray(its_scales).astype(kind)), "as the file holds them"


def test_09_11_the_place_of_a_dead_column(subject: Any) -> None:
    """By its place in the order a dead column counts as 1: before those that are quieter, however
    quiet, which are not dead."""
    weight = normal(9, 3, 8)
    p = Program()
    diagonal = np.diag([0.5, 0, 0.25, 3, 1e-6, 2, 4, 0.75])
    args = tensor(p, weight), tensor(p, diagonal), 4, 4, True, True
    result = p.call(f"{GPTQ}gptq_quantize", *args)
    for index in range(4):
        p.see(item(p, result, index))
    found = subject.run(p)
    assert np.asarray(found[3]).tolist() == [1, 0, 1, 0, 1, 0, 0, 1]
    assert [column.any() for column in meaning(found).T] == [place != 1 for place in range(8)]


def test_09_11_scales_as_they_will_be_kept(subject: Any) -> None:
    """Scales in bfloat16 are rounded first, and numbers are chosen for what they then mean. Equal
    columns keep their order."""
    weight = normal(7, 60, 8)
    p = Program()
    args = tensor(p, weight), tensor(p, np.eye(8)), 8, 4, True, True, 0.01
    result = p.call(f"{GPTQ}gptq_quantize", *args, scale_dtype=p.name("torch:bfloat16"))
    for index in range(4):
        p.see(item(p, result, index))
    p.see(item(p, result, 1).bfloat16().float())
    *found, rounded = subject.run(p)
    assert np.array_equal(found[1], rounded) and np.array_equal(found[3], np.arange(8) // 4)
    scale = np.asarray(rounded)[:, np.arange(8) // 4]
    wanted = np.clip(np.rint(weight / scale), -128, 127) * scale
    assert np.allclose(meaning(found), wanted, rtol=1e-5)
