"""Experts in a checkpoint's files: several forms, which are read as one.

    one by one      experts.3.gate_proj.weight [I, H], up_proj, down_proj [H, I]
    Mixtral's       experts.3.w1 (gate), w3 (up), w2 (down)
    stacked         experts.gate_up_proj [E, 2I, H], experts.down_proj [E, H, I]
    transposed      experts.gate_up_proj [E, H, 2I], experts.down_proj [E, I, H]    Llama 4
    interleaved     the same, with features gate 0, up 0, gate 1, up 1, ...         gpt-oss
    mxfp4           gate_up_proj_blocks [E, 2I, H / 32, 16] uint8, _scales [E, 2I, H / 32] uint8

A loader always sees the first form: a stacked tensor appears as E tensors, each read from the file
when it is needed. So a rank with a few experts reads only these, and layers that keep each expert
separately are filled like other layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mini_vllm.model.checkpoint import TensorFile, TensorInfo
from mini_vllm.model.moe.args import MoEArgs
from mini_vllm.model.moe.expert_names import STACKED, common_name, expert_parts

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each four-bit code: a sign, two bits of exponent, one of mantissa (e2m1)."""
MXFP4 = ("_blocks", "_scales")
MXFP4_GROUP = 32
"""Numbers that share a scale, which is a power of two."""


def unpack_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Convert rows in mxfp4: `[..., G, 16]` and `[..., G]` uint8 -> `[..., G * 32]` bfloat16.

    Two numbers share a byte, of which the low half comes first; a scale s means 2^(s - 127). All
    are exact in bfloat16.
    """
    numbers = torch.tensor(FP4)[torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()]
    return torch.ldexp(numbers, scales[..., None].int() - 127).flatten(-2).bfloat16()


@dataclass(frozen=True)
class Piece:
    """One expert's part of a stacked tensor.

    Args:
        name: of the tensor in the file.
        expert: the index of the part.
        rows: of the part, after transposing; `slice(0, None, 2)` is every second row.
        is_transposed: the file has it as [in, out].
        scales: the name of the scales, if these are blocks in mxfp4.
        scales_file: where they are; None: in the same file.
    """

    name: str
    expert: int
    rows: slice
    is_transposed: bool = False
    scales: str | None = None
    scales_file: TensorFile | None = None

    def read(self, tensors: Any) -> Tensor:
        """Read the part from an open file."""
        part = tensors.get_slice(self.name)[self.expert]
        part = (part.T if self.is_transposed else part)[self.rows]
        if self.scales is None:
            return part
        with self.scales_file.open() if self.scales_file else nullcontext(tensors) as others:
            return unpack_mxfp4(part, others.get_slice(self.scales)[self.expert][self.rows])


class ExpertTensors:
    """An open file in which each part of stacked experts has its own name.

    Args:
        tensors: the open file, with the methods of an open safetensors file.
        names: the file's name of each tensor that is not stacked.
        pieces: the parts of stacked tensors.
    """

    def __init__(self, tensors: Any, names: Mapping[str, str], pieces: Mapping[str, Piece]) -> None:
        self.tensors, self.names, self.pieces = tensors, names, pieces

    def get_tensor(self, name: str) -> Tensor:
        if name in self.pieces:
            return self.pieces[name].read(self.tensors)
        return self.tensors.get_tensor(self.names[name])

    def get_slice(self, name: str) -> Any:
        """A slice of a tensor; a part of a stacked tensor is read as a whole, as by
        `get_tensor`."""
        if name in self.pieces:
            return self.get_tensor(name)
        return self.tensors.get_slice(self.names[name])


def one_by_one(files: Sequence[TensorFile], args: MoEArgs) -> list[TensorFile]:
    """The same files, with separate names for every expert.

    Raises ValueError for blocks without scales and scales without blocks.
    """
    home = {name: file for file in files for name in file.header}
    return [_one_by_one(file, home, args) for file in files]


def _one_by_one(file: TensorFile, home: Mapping[str, TensorFile], args: MoEArgs) -> TensorFile:
    names: dict[str, str] = {}
    pieces: dict[str, Piece] = {}
    header: dict[str, TensorInfo] = {}
    for name, info in file.header.items():
        match = STACKED.fullmatch(name)
        if match is None:
            names[common_name(name)], header[common_name(name)] = name, info
            continue
        for ours, piece, shape in _pieces(name, match, info.shape, home, args):
            pieces[ours] = piece
            header[ours] = replace(info, shape=shape, **({"dtype": "BF16"} if piece.scales else {}))

    @contextmanager
    def open_file() -> Iterator[ExpertTensors]:
        with file.open() as tensors:
            yield ExpertTensors(tensors, names, pieces)

    def opened() -> AbstractContextManager[Any]:
        return open_file()

    return TensorFile(file.path, header, opened)


def _pieces(
    name: str, match: re.Match[str], shape: list[int], home: Mapping[str, TensorFile], args: MoEArgs
) -> Iterator[tuple[str, Piece, list[int]]]:
    """Our names for the parts of the stacked tensor `name`, with their places and shapes."""
    kind = match[3] or ".weight"
    _check_dimensions(name, kind, shape, home[name])
    scales = scales_file = None
    if kind in MXFP4:
        other = name.removesuffix(kind) + ("_scales" if kind == "_blocks" else "_blocks")
        if other not in home:
            raise ValueError(
                f"{name!r} in {home[name].path} has no {other!r} beside it; numbers in mxfp4 are "
                "blocks and their scales; download the checkpoint again"
            )
        if kind == "_scales":
            return
        scales, shape = other, [*shape[:-2], shape[-2] * MXFP4_GROUP]
        scales_file = home[other] if home[other] is not home[name] else None
    is_transposed = args.is_transposed and not kind.endswith("bias") and scales is None
    for ours, part in expert_parts(name, shape, is_transposed, args.is_interleaved).items():
        piece = Piece(name, part.expert, part.rows, is_transposed, scales, scales_file)
        yield ours, piece, list(part.shape)


def _check_dimensions(name: str, kind: str, shape: list[int], file: TensorFile) -> None:
    wanted = {"_blocks": 4, "_bias": 2, ".bias": 2}.get(kind, 3)
    if len(shape) != wanted or 0 in shape or (kind == "_blocks" and shape[-1] != MXFP4_GROUP // 2):
        raise ValueError(
            f"{name!r} in {file.path} has shape {shape}; stacked experts have {wanted} dimensions, "
            f"the first of which counts them{', the last of 16 bytes' if wanted == 4 else ''}"
        )
