"""Numbers, words and layouts: random shapes against loops in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25)
PACKING = "mini_vllm.quantization.packing:"
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
seeds = st.integers(0, 2**32 - 1)


def tensor(p: Program, values: Any, dtype: str = "float32") -> Any:
    return p.call("torch:tensor", np.asarray(values).tolist(), dtype=p.name(f"torch:{dtype}"))


def words_of(stored: np.ndarray, bits: int, order: list[int] | None = None) -> np.ndarray:
    """Packed along the last dimension, word by word."""
    per_word = 32 // bits
    padded = np.pad(stored, [(0, 0), (0, -stored.shape[1] % per_word)]).astype(np.uint32)
    words = np.zeros((len(padded), padded.shape[1] // per_word), np.uint32)
    for place in range(per_word):
        column = order[place] if order else place
        words |= padded[:, column::per_word] << np.uint32(bits * place)
    return words.view(np.int32)


def draw_weight(seed: int, rows: int, groups: int, size: int) -> np.ndarray:
    """Eighths, of very different size from group to group; some groups are all zeros."""
    rng = np.random.default_rng(seed)
    loud = rng.choice([0, 2.0**-100, 2.0**-40, 1, 64, 4096], (rows, groups, 1))
    return (rng.integers(-40, 41, (rows, groups, size)) / 8 * loud).reshape(rows, -1)


def qparams(
    groups: np.ndarray, bits: int, symmetric: bool, kind: type = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """`[N, G, g]` -> scale and zero, as the statement says, in float32 or finer."""
    groups = groups.astype(kind)
    if symmetric:
        scale = np.abs(groups).max(-1) / kind(2 ** (bits - 1) - 1)
        zero = np.full(scale.shape, 2 ** (bits - 1))
    else:
        low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
        scale = (high - low) / kind(2**bits - 1)
        zero = np.rint(-low / np.where(scale > 0, scale, 1))
    return np.where(scale > 0, scale, 1), zero


@many
@given(
    seed=seeds,
    rows=st.integers(1, 5),
    groups=st.integers(1, 4),
    size=st.sampled_from([1, 2, 8]),
    bits=st.sampled_from([2, 3, 4, 8]),
    symmetric=st.booleans(),
)
def test_09_1_scales_of_all_groups(
    subject: Any, seed: int, rows: int, groups: int, size: int, bits: int, symmetric: bool
) -> None:
    """Any shape and width, groups of zeros, groups of one sign."""
    weight = draw_weight(seed, rows, groups, size)
    if seed % 3 == 0:
        weight = np.abs(weight)
    p = Program()
    group_size = size if groups > 1 else -1
    kind = "bfloat16" if seed % 2 else "float32"  # the weights are exact in both
    args = (tensor(p, weight, kind), bits, group_size, symmetric)
    result = p.call(f"{PACKING}choose_qparams", *args)
    p.see(p.call("operator:getitem", result, 0))
    p.see(p.call("operator:getitem", result, 1))
    scale, zero = subject.run(p)
    groups_of = weight.reshape(rows, groups, size)
    wanted, finer = (qparams(groups_of, bits, symmetric, kind) for kind in (np.float32, np.float64))
    assert (
        np.allclose(scale, wanted[0], rtol=1e-5, atol=0) and np.asarray(scale).dtype == np.float32
    )
    is_right = (zero == wanted[1]) | (zero == finer[1])  # half way they may go either way
    assert is_right.all() and np.asarray(zero).dtype == np.int32


@pytest.mark.parametrize("kind", ["float16", "float64"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_09_1_of_other_dtypes(subject: Any, kind: str, symmetric: bool) -> None:
    """Weights of 16 bits are widened first: 3 / 7 and 3.5 / 15 are no numbers of half precision.
    Scales of weights of 64 bits are float32, too."""
    weight = np.array([[3.0, 1.0, -0.5, 2.0], [0.3, -0.2, 0.1, 0.05]]).astype(kind)
    p = Program()
    result = p.call(f"{PACKING}choose_qparams", tensor(p, weight, kind), 4, -1, symmetric)
    p.see(p.call("operator:getitem", result, 0))
    p.see(p.call("operator:getitem", result, 1))
    scale, zero = map(np.asarray, subject.run(p))
    wanted = qparams(weight[:, None], 4, symmetric)
    assert scale.dtype == np.float32 and np.allclose(scale, wanted[0], rtol=1e-6, atol=0)
    assert np.array_equal(zero, wanted[1])


@pytest.mark.parametrize("symmetric", [True, False])
def test_09_1_the_weight_stays(subject: Any, symmetric: bool) -> None:
    """It is measured, and nothing else."""
    weight = draw_weight(4, 3, 2, 8)
    p = Program()
    given_weight = tensor(p, weight)
    p.call(f"{PACKING}choose_qparams", given_weight, 4, 8, symmetric)
    p.see(given_weight)
    assert np.array_equal(subject.run(p)[0], weight.astype(np.float32))


@many
@given(
    seed=seeds, rows=st.integers(1, 4), groups=st.integers(1, 4), bits=st.sampled_from([3, 4, 8])
)
def test_09_2_stored_numbers_and_what_they_mean(
    subject: Any, seed: int, rows: int, groups: int, bits: int
) -> None:
    """Half steps, numbers beyond the range, another zero in each group."""
    rng = np.random.default_rng(seed)
    scale = 2.0 ** rng.integers(-3, 4, (rows, groups))
    zero = rng.integers(0, 2**bits, (rows, groups))
    steps = rng.integers(-(2 ** (bits + 1)), 2 ** (bits + 1), (rows, groups, 4)) / 2
    weight = (steps * scale[..., None]).reshape(rows, -1)
    stored = np.clip(np.rint(steps) + zero[..., None], 0, 2**bits - 1)
    meant = ((stored - zero[..., None]) * scale[..., None]).reshape(rows, -1)
    p = Program()
    s, z = tensor(p, scale), tensor(p, zero, "int32")
    yours = p.call(f"{PACKING}quantize", tensor(p, weight), s, z, bits)
    p.see(yours)
    right = tensor(p, stored.reshape(rows, -1), "int32")
    p.see(p.call(f"{PACKING}dequantize", right, s, z))
    p.see(p.call(f"{PACKING}dequantize", right, s.half(), z).dtype.itemsize)
    found, back, size = subject.run(p)
    assert np.array_equal(found, stored.reshape(rows, -1))
    assert np.asarray(found).dtype == np.int32
    assert np.array_equal(back, meant)
    assert size == 2, "with a scale in half precision the weights are, too"


@many
@given(seed=seeds, bits=st.sampled_from([4, 8]))
def test_09_2_a_little_beside_half_a_step(subject: Any, seed: int, bits: int) -> None:
    """To round a weight or a quotient to half precision first goes the other way."""
    rng = np.random.default_rng(seed)
    half = 2 ** (bits - 1)
    steps = rng.integers(-half, half - 1, (3, 16)) + 0.5 + rng.choice([-1, 1], (3, 16)) / 1024
    scale, zero = 2.0 ** rng.integers(-3, 4, (3, 1)), np.full((3, 1), half)
    p = Program()
    args = tensor(p, steps * scale), tensor(p, scale), tensor(p, zero, "int32"), bits
    p.see(p.call(f"{PACKING}quantize", *args))
    assert np.array_equal(subject.run(p)[0], np.clip(np.rint(steps) + half, 0, 2 * half - 1))


@many
@given(
    seed=seeds, kinds=st.sampled_from([("float32", "float32"), ("bfloat16", "float32"),
    ("float32", "float16"), ("float16", "float16"), ("float64", "float32"), ("float64", "float64")])
)  # fmt: skip
@example(seed=1, kinds=("float16", "float16"))
@example(seed=1, kinds=("float64", "float32"))
@example(seed=1, kinds=("float64", "float64"))
def test_09_2_half_a_step_of_any_scale(subject: Any, seed: int, kinds: tuple[str, str]) -> None:
    """The quotient in float32 decides, whatever the dtypes: a product with 1 / scale lies beside
    it, and so does a quotient of more bits or fewer. What is far beyond the range is clamped."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.01, 3, (3, 1)).astype(np.float32)
    if kinds[1] == "float16":
        scale = scale.astype(np.float16).astype(np.float32)
    weight = ((rng.integers(-8, 7, (3, 400)) + 0.5) * scale).astype(np.float32)
    if kinds[0] == "bfloat16":
        weight = (weight.view(np.int32) & -65536).view(np.float32)
    far = 2.0**17
    if kinds[0] == "float16":
        weight, far = weight.astype(np.float16).astype(np.float32), 2.0**15
    weight[:, :2] = far, -far
    p = Program()
    args = tensor(p, weight, kinds[0]), tensor(p, scale, kinds[1]), tensor(p, [[8]] * 3, "int32")
    p.see(p.call(f"{PACKING}quantize", *args, 4))
    assert np.array_equal(subject.run(p)[0], np.clip(np.rint(weight / scale) + 8, 0, 15))


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_09_2_zero_is_subtracted_first(subject: Any, kind: str) -> None:
    """(stored - zero) * scale has one rounding; stored * scale - zero * scale has three."""
    rng = np.random.default_rng(8)
    stored, zero = rng.integers(0, 16, (4, 60)), rng.integers(0, 16, (4, 3))
    scale = rng.uniform(0.01, 3, (4, 3)).astype(kind)
    p = Program()
    held = tensor(p, stored, "int32"), tensor(p, scale, kind), tensor(p, zero, "int32")
    p.see(p.call(f"{PACKING}dequantize", *held).float())
    exact = (stored - zero.repeat(20, 1)) * scale.repeat(20, 1).astype(np.float64)
    assert np.array_equal(subject.run(p)[0], exact.astype(kind))


def test_09_2_what_was_given_stays(subject: Any) -> None:
    """Weights are rounded, and numbers read, more than once."""
    given_values = [[1.5, -3.0, 0.5, 40.0]], [[3, 0, 9, 15]], [[2.0, 4.0]], [[8, 3]]
    p = Program()
    kinds = ("float32", "int32", "float32", "int32")
    held = [tensor(p, x, kind) for x, kind in zip(given_values, kinds, strict=True)]
    weight, stored, scale, zero = held
    p.call(f"{PACKING}quantize", weight, scale, zero, 4)
    p.call(f"{PACKING}dequantize", stored, scale, zero)
    for each in held:
        p.see(each.tolist())
    assert subject.run(p) == list(given_values)


@many
@given(
    seed=seeds,
    rows=st.integers(1, 9),
    columns=st.integers(1, 19),
    bits=st.sampled_from([2, 4, 8]),
    dim=st.sampled_from([0, 1]),
)
def test_09_3_words_of_any_length(
    subject: Any, seed: int, rows: int, columns: int, bits: int, dim: int
) -> None:
    """Along both dimensions, with last words that are not full."""
    stored = np.random.default_rng(seed).integers(0, 2**bits, (rows, columns))
    p = Program()
    p.see(p.call(f"{PACKING}pack_int32", tensor(p, stored, "int32"), bits, dim))
    words = words_of(stored.T, bits).T if dim == 0 else words_of(stored, bits)
    size = stored.shape[dim]
    p.see(p.call(f"{PACKING}unpack_int32", tensor(p, words, "int32"), bits, dim, size))
    packed, unpacked = subject.run(p)
    assert np.array_equal(packed, words) and np.asarray(packed).dtype == np.int32
    assert np.array_equal(unpacked, stored) and np.asarray(unpacked).dtype == np.int32


@pytest.mark.parametrize("dim", [0, 1])
def test_09_3_what_was_given_stays(subject: Any, dim: int) -> None:
    """Numbers are packed, and words unpacked, more than once."""
    stored = np.random.default_rng(5).integers(0, 16, (8, 16))
    words = words_of(stored.T, 4).T if dim == 0 else words_of(stored, 4)
    p = Program()
    held = tensor(p, stored, "int32"), tensor(p, words, "int32")
    p.call(f"{PACKING}pack_int32", held[0], 4, dim)
    p.call(f"{PACKING}unpack_int32", held[1], 4, dim, stored.shape[dim])
    for each in held:
        p.see(each)
    for found, given_numbers in zip(subject.run(p), (stored, words), strict=True):
        assert np.array_equal(found, given_numbers)


@many
@given(seed=seeds, rows=st.integers(1, 4), words=st.integers(1, 3))
def test_09_4_awq_and_gptq(subject: Any, seed: int, rows: int, words: int) -> None:
    """Layouts as their own tools write them."""
    stored = np.random.default_rng(seed).integers(0, 16, (rows, 8 * words))
    p = Program()
    p.see(p.call(f"{PACKING}unpack_awq", tensor(p, words_of(stored, 4, AWQ), "int32")))
    for is_v2 in (False, True):
        held = words_of(stored if is_v2 else (stored - 1) % 16, 4)
        p.see(p.call(f"{PACKING}unpack_gptq_zeros", tensor(p, held, "int32"), 4, is_v2))
    for found in subject.run(p):
        assert np.array_equal(found, stored) and np.asarray(found).dtype == np.int32


@pytest.mark.parametrize("bits", [2, 8])
@many
@given(seed=seeds)
def test_09_4_gptq_of_other_widths(subject: Any, bits: int, seed: int) -> None:
    """Four or sixteen zeros a word; the largest number and 1 are 0."""
    stored = np.random.default_rng(seed).integers(0, 2**bits, (2, 32))
    stored[0, :3] = 0, 1, 2**bits - 1
    p = Program()
    for is_v2 in (False, True):
        held = words_of(stored if is_v2 else (stored - 1) % 2**bits, bits)
        p.see(p.call(f"{PACKING}unpack_gptq_zeros", tensor(p, held, "int32"), bits, is_v2))
    for found in subject.run(p):
        assert np.array_equal(found, stored)


def test_09_4_words_are_only_read(subject: Any) -> None:
    """A checkpoint's words say the same afterwards."""
    words = words_of(np.random.default_rng(6).integers(0, 16, (3, 16)), 4)
    p = Program()
    held = tensor(p, words, "int32")
    p.call(f"{PACKING}unpack_awq", held)
    for is_v2 in (False, True):
        p.call(f"{PACKING}unpack_gptq_zeros", held, 4, is_v2)
    p.see(held)
    assert np.array_equal(subject.run(p)[0], words)
