"""Linear's three strategies know nothing of each other: toy ones of each kind, in all mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.model.layers import PLAIN, Build, Linear, LinearMethod
from mini_vllm.model.layout import WHOLE, Layout, ParamSpec, Part

IN, OUTS = 24, [16, 8, 8]
WORLD = 2


class PairMethod:
    """Two whole numbers from 0 to 9 in one: tens and ones. A packed format in two lines."""

    def create_weights(self, layer: Linear) -> None:
        shape = (sum(layer.output_sizes), layer.input_size // 2)
        layer.pairs = nn.Parameter(torch.zeros(shape, dtype=torch.int32), requires_grad=False)
        layer.pairs.spec = ParamSpec(out_dim=0, in_dim=1, in_pack=2)

    def process_weights_after_loading(self, layer: Linear) -> None:
        layer.processed = True

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        weight = torch.stack((layer.pairs // 10, layer.pairs % 10), -1).flatten(1)
        return F.linear(x, weight.to(x.dtype), bias)


class PairConfig:
    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        return None if prefix == "plain" else PairMethod()


class Column:
    """Every projection's rows, divided."""

    adds_bias = True

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def part(self, size: int) -> slice:
        each = size // WORLD
        return slice(self.rank * each, (self.rank + 1) * each)

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        return [Part(self.part(size), slice(0, input_size)) for size in output_sizes]

    def finish(self, y: Tensor) -> Tensor:
        return y


class Row(Column):
    """Columns, divided. The sum over ranks is the test's: it stands in for the group."""

    @property
    def adds_bias(self) -> bool:  # type: ignore[override]
        return self.rank == 0

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        return [Part(slice(0, size), self.part(input_size)) for size in output_sizes]


class LowRank:
    """y += B (A x), for the rows and columns that are here."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return y.add_(F.linear(F.linear(x, self.a), self.b))


def rows_of(parts: Sequence[Part]) -> Tensor:
    """The rows of the stacked matrix that are here."""
    starts = [sum(OUTS[:i]) for i in range(len(OUTS))]
    return torch.cat(
        [
            torch.arange(start + p.out.start, start + p.out.stop)
            for start, p in zip(starts, parts, strict=True)
        ]
    )


def fill(linear: Linear, weight: Tensor, bias: Tensor | None) -> None:
    """This part of `weight` and `bias`, by the specs of the parameters."""
    rows, columns = rows_of(linear.parts), linear.parts[0].in_
    here = weight[rows][:, columns]
    if linear.quant_method.__class__ is PairMethod:
        linear.pairs.data.copy_(here[:, 0::2] * 10 + here[:, 1::2])
    else:
        linear.weight.data.copy_(here)
    if bias is not None:
        linear.bias.data.copy_(bias[rows])
    linear.process_weights_after_loading()


MIXTURES = list(
    product(["plain", "packed"], ["whole", "column", "row"], [False, True], [False, True])
)


@pytest.mark.parametrize(("held", "cut", "adapted", "bias"), MIXTURES)
@torch.inference_mode()
def test_every_mixture_gives_the_same(held: str, cut: str, adapted: bool, bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (5, IN)).float()
    weight = torch.randint(0, 10, (sum(OUTS), IN))
    b = torch.randint(-5, 5, (sum(OUTS),)).float() if bias else None
    lora_a, lora_b = (torch.randint(-2, 3, shape).float() for shape in ((4, IN), (sum(OUTS), 4)))
    expected = F.linear(x, weight.float(), b)
    if adapted:
        expected += x @ lora_a.T @ lora_b.T
    layouts: list[Layout] = {
        "whole": [WHOLE],
        "column": [Column(r) for r in range(WORLD)],
        "row": [Row(r) for r in range(WORLD)],
    }[cut]
    total, seen = torch.zeros_like(expected), []
    for layout in layouts:
        linear = Linear(IN, OUTS, bias, Build(quant=PairConfig()), layout, prefix=held)
        fill(linear, weight, b)
        rows, columns = rows_of(linear.parts), linear.parts[0].in_
        assert (linear.input_size, sum(linear.output_sizes)) == (
            columns.stop - columns.start,
            len(rows),
        )
        if adapted:
            linear.adapters = LowRank(lora_a[:, columns], lora_b[rows])
        total[:, rows] += linear(x[:, columns])
        seen.append(linear)
    assert torch.equal(total, expected), "whole numbers: not a bit may differ"
    assert all(hasattr(linear, "processed") == (held == "packed") for linear in seen)


@torch.inference_mode()
def test_the_adapter_speaks_before_the_parts_meet() -> None:
    """Added after the sum of all ranks, its partial product would be missing what others hold."""
    order = []

    class Watched(Row):
        def finish(self, y: Tensor) -> Tensor:
            order.append("finish")
            return y

    linear = Linear(IN, OUTS, False, PLAIN, Watched(0))
    linear.adapters = lambda x, y: order.append("adapter") or y
    linear(torch.zeros(1, IN // WORLD))
    assert order == ["adapter", "finish"]


def test_entries_are_counted_as_the_parameter_counts() -> None:
    part = Part(slice(64, 128), slice(32, 96))
    assert ParamSpec(0, 1).entries(part) == {0: slice(64, 128), 1: slice(32, 96)}
    assert ParamSpec(out_dim=1, in_dim=0, out_pack=8).entries(part) == {
        1: slice(8, 16),
        0: slice(32, 96),
    }
    assert ParamSpec(out_dim=None).entries(part) == {}
    assert ParamSpec(0, out_pack=64).entries(Part(slice(64, 100), slice(0, 1))) == {0: slice(1, 2)}
    with pytest.raises(ValueError, match="begins at 32, inside a group of 64"):
        ParamSpec(0, 1, in_pack=64).entries(part)
