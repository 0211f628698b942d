"""Task 09.7: quantize keys and values to int8."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.attention.quantized import FORMATS, dequantize_kv, quantize_kv

INT8, FP8 = FORMATS["int8_per_token_head"], FORMATS["fp8"]


def test_09_7_the_scale_lies_behind_its_head(lab: Any) -> None:
    """Eight numbers, then four bytes that are a float32."""
    x = torch.tensor([[[127.0, -127.0, 3.0, 0.0, 1.0, 2.0, 4.0, 5.0]]])
    data = quantize_kv(x, INT8)
    expect((list(data.shape), data.dtype), ([1, 1, 12], torch.int8), at="D = 8, 4 bytes more")
    expect(data[0, 0, :8].tolist(), [127, -127, 3, 0, 1, 2, 4, 5], at="the numbers")
    expect(data[0, 0, 8:].view(torch.float32).item(), 1.0, at="the scale")


def test_09_7_int8_is_rounded(lab: Any) -> None:
    """2.6 steps are 3: upstream at the pin cuts them to 2."""
    data = quantize_kv(torch.tensor([[[127.0, 2.6, -2.6, 0.5]]]), INT8)
    expect(data[0, 0, :4].tolist(), [127, 3, -3, 0], at="scale 1")


def test_09_7_every_head_of_every_token_for_itself(lab: Any) -> None:
    """A loud head beside a quiet one."""
    x = torch.tensor([[[127.0, 1.0], [1.27, 1.0]], [[12.7, 0.0], [0.0, 0.0]]])
    scales = quantize_kv(x, INT8)[..., 2:].contiguous().view(torch.float32)[..., 0]
    expect(lab.listed(scales, 6), [[1.0, 0.01], [0.1, 1e-06]], at="two tokens of two heads")


def test_09_7_what_was_stored_comes_back(lab: Any) -> None:
    """Within half a step for int8, a sixteenth for fp8."""
    x = lab.random(5, 2, 8)
    for name, form, limit in (("int8", INT8, 0.5 / 127), ("fp8", FP8, 1 / 16)):
        back = dequantize_kv(quantize_kv(x, form, 0.5), form, torch.float32, 0.5)
        worst = float(((back - x).abs() / x.abs().amax(-1, keepdim=True)).max())
        at = f"{name}: the largest error, beside the largest number of its head"
        expect(worst <= limit * 1.001, True, at=at, worst=worst)
    data = quantize_kv(torch.tensor([[[1.27, 0.99, 0.0, 0.0]]]), INT8)
    back = dequantize_kv(data, INT8, torch.bfloat16)
    expect(back[0, 0, 1].item(), 0.98828125, at="0.99 read as bfloat16: the product is rounded")


def test_09_7_one_scale_for_a_layer(lab: Any) -> None:
    """fp8: divided by the given scale when stored, multiplied when read."""
    data = quantize_kv(torch.tensor([[[8.0, 1.0]]]), FP8, 0.5)
    expect(lab.listed(data.view(torch.float8_e4m3fn).float()), [[[16.0, 2.0]]], at="scale 0.5")
    back = dequantize_kv(data, FP8, torch.float32, 0.5)
    expect(lab.listed(back), [[[8.0, 1.0]]], at="read back")


def test_09_7_nothing_in_a_page_is_infinite(lab: Any) -> None:
    """Beyond 448, infinite, not a number: finite when it is read."""
    x = torch.tensor([[[1000.0, float("inf"), float("nan"), -1000.0]]])
    back = dequantize_kv(quantize_kv(x, FP8), FP8, torch.float32)
    expect(lab.listed(back), [[[448.0, 448.0, 0.0, -448.0]]], at="fp8, scale 1", x=x.tolist())
    back = dequantize_kv(quantize_kv(x, INT8), INT8, torch.float32)
    expect(bool(back.isfinite().all()), True, at="int8, one scale a head", back=back.tolist())


def test_09_7_what_was_given_stays(lab: Any) -> None:
    """Keys and values go on to attention; only the bytes are cleaned."""
    x = torch.tensor([[[float("inf"), 1.0]]])
    quantize_kv(x, FP8)
    expect(lab.listed(x), [[[float("inf"), 1.0]]], at="x afterwards")
