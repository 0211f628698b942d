"""Task 10.6: load a rank's slice of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.model.layout import ParamSpec, Part
from mini_vllm.model.sharded_loader import Target, copy_slice, projection_targets

FILE = Path("model.safetensors")


def part(rows: tuple[int, int], columns: tuple[int, int] = (0, 4)) -> Part:
    return Part(slice(*rows), slice(*columns))


def targets_of(shape: list[int], spec: ParamSpec | None, parts: Any, whole: Any) -> list[Target]:
    parameter = torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
    if spec is not None:
        parameter.spec = spec  # type: ignore[attr-defined]
    module = SimpleNamespace(parts=parts, whole_parts=whole)
    found = list(projection_targets(module, parameter))  # type: ignore[arg-type]
    for number, target in enumerate(found, 1):
        target.view.fill_(number)
    found.append(parameter.data)  # type: ignore[arg-type]
    return found


QKV = [part((4, 8)), part((2, 4)), part((2, 4))]
WHOLE = [part((0, 8)), part((0, 4)), part((0, 4))]


class OneFile:
    """A file that writes down what was read of it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.read: list[Any] = []

    def get_slice(self, name: str) -> OneFile:
        return self

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> Tensor:
        self.read.append(index)
        return self.tensor[index]


def test_10_6_one_behind_the_other() -> None:
    """Rank 1 of 2: 4 rows of q, 2 of k, 2 of v, in one parameter of 8."""
    *_, parameter = targets_of([8, 4], ParamSpec(), QKV, WHOLE)
    expect(parameter[:, 0].tolist(), [1.0] * 4 + [2.0] * 2 + [3.0] * 2, at="who fills which row")


def test_10_6_which_rows_of_the_file() -> None:
    """Cuts and shapes are those of the tensors in the file."""
    q, k, v, _ = targets_of([8, 4], ParamSpec(), QKV, WHOLE)
    expect([t.cuts for t in (q, k, v)], [{0: slice(4, 8)}] + [{0: slice(2, 4)}] * 2, at="q, k, v")
    expect([t.shape for t in (q, k, v)], [[8, 4], [4, 4], [4, 4]], at="whole shapes")


def test_10_6_columns_are_cut_too() -> None:
    """A row-parallel layer with a dimension for both."""
    spec = ParamSpec(out_dim=0, in_dim=1)
    only, parameter = targets_of([6, 2], spec, [part((0, 6), (2, 4))], [part((0, 6))])
    expect(only.cuts, {0: slice(0, 6), 1: slice(2, 4)}, at="all rows, columns 2 and 3")
    expect((only.shape, list(parameter.shape)), ([6, 4], [6, 2]), at="in the file, and here")


def test_10_6_packed_rows() -> None:
    """Two rows of the matrix in one entry: rows 4 to 8 are entries 2 and 3."""
    spec = ParamSpec(out_dim=0, out_pack=2)
    q, k, _, parameter = targets_of([4, 4], spec, QKV, WHOLE)
    expect((q.cuts, k.cuts), ({0: slice(2, 4)}, {0: slice(1, 2)}), at="entries of q and k")
    expect(q.shape, [4, 4], at="8 rows of q are 4 entries")
    expect(parameter[:, 0].tolist(), [1.0, 1.0, 2.0, 3.0], at="who fills which entry")


def test_10_6_a_dimension_that_comes_second() -> None:
    """Some formats store a matrix the other way round: [in, out]."""
    spec = ParamSpec(out_dim=1, in_dim=0)
    q, _, _, parameter = targets_of([4, 8], spec, QKV, WHOLE)
    expect(q.cuts, {1: slice(4, 8), 0: slice(0, 4)}, at="q")
    expect(parameter[0].tolist(), [1.0] * 4 + [2.0] * 2 + [3.0] * 2, at="who fills which column")


def test_10_6_one_tensor_each() -> None:
    """A scale for each projection: three tensors of their own, nothing to cut."""
    spec = ParamSpec(out_dim=None, per_part=True, optional=True)
    q, _, v, parameter = targets_of([3], spec, QKV, WHOLE)
    expect(parameter.tolist(), [1.0, 2.0, 3.0], at="who fills which scale")
    expect((q.cuts, v.shape, v.optional), ({}, [], True), at="cuts, shape, optional")


def test_10_6_a_norm_is_whole() -> None:
    """A parameter without a spec is not cut, wherever it is."""
    only, _ = targets_of([4], None, [], [])
    expect((only.cuts, only.shape, only.optional), ({}, [4], False), at="a norm of 4 numbers")


def test_10_6_read_only_what_is_here() -> None:
    """Rows 2 and 3 of four, and no others."""
    tensor, view = torch.arange(12.0).view(4, 3), torch.zeros(2, 3)
    file = OneFile(tensor)
    copy_slice(Target(view, {0: slice(2, 4)}, [4, 3]), file, "w", FILE)
    expect(view.tolist(), tensor[2:].tolist(), at="rows 2 and 3")
    counted = sum(tensor[index].numel() for index in file.read)
    expect(counted, 6, at="numbers read from the file", read=file.read)


def test_10_6_columns_of_the_file() -> None:
    """A cut of the second dimension."""
    tensor, view = torch.arange(12.0).view(3, 4), torch.zeros(3, 2)
    copy_slice(Target(view, {1: slice(2, 4)}, [3, 4]), OneFile(tensor), "w", FILE)
    expect(view.tolist(), tensor[:, 2:].tolist(), at="columns 2 and 3")


@pytest.mark.parametrize(("start", "end", "there"), [(0, 4, 4), (4, 8, 1), (8, 12, 0)])
def test_10_6_behind_the_end(start: int, end: int, there: int) -> None:
    """A vocabulary of 5, padded to 12, over 3 ranks: what is not in the file is zero."""
    tensor, view = torch.ones(5, 2), torch.full((4, 2), 99.0)
    file = OneFile(tensor)
    copy_slice(Target(view, {0: slice(start, end)}, [5, 2]), file, "w", FILE)
    expect(view[:, 0].tolist(), [1.0] * there + [0.0] * (4 - there), at=f"rows {start} to {end}")
    behind = [cut for index in file.read for cut in index[:1] if cut.stop and cut.stop > 5]
    expect(behind, [], at=f"rows {start} to {end}: asked of a file of 5 rows, behind its end")


def test_10_6_dtypes_are_converted() -> None:
    """What is float16 in the file is float32 here."""
    view = torch.zeros(1, 2)
    tensor = torch.tensor([[1.5, 2.5], [3.5, 4.5]], dtype=torch.float16)
    copy_slice(Target(view, {0: slice(1, 2)}, [2, 2]), OneFile(tensor), "w", FILE)
    expect(view.tolist(), [[3.5, 4.5]], at="row 1")
