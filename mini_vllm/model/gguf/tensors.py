"""The tensors of a GGUF file, under the names and in the order of a Hugging Face checkpoint.

    in the file               [rows, columns]       in a checkpoint
    blk.3.ffn_up.weight       [I, H]                model.layers.3.mlp.up_proj.weight
    blk.3.ffn_up_exps.weight  [E, I, H]             model.layers.3.mlp.experts.0.up_proj.weight ...
    blk.3.attn_q.weight       rows in another order model.layers.3.self_attn.q_proj.weight

The rotation acts on pairs of features. llama.cpp pairs neighbours where transformers pairs the two
halves of a head, so its converter reorders the rows of q and k of each head for Llama:

    transformers  a0 a1 a2 | b0 b1 b2       llama.cpp  a0 b0 a1 b1 a2 b2

A row is a whole number of blocks, and only whole rows are moved here. So a tensor can be read in
two formats: as floats, or as its blocks, without loss.

Source: vllm/model_executor/model_loader/gguf_loader.py#L108-L253 (_get_gguf_weights_map) @ v0.22.1.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mini_vllm.errors import show
from mini_vllm.gguf import TYPES, GGUFFile, GGUFTensor, read_gguf
from mini_vllm.model.gguf.config import architecture, one_value
from mini_vllm.model.memory import drop_pages

BLOCKS = "qweight"
"""Replaces "weight" in the name of a tensor that is read as blocks."""
MAX_CHUNK_BYTES = 1 << 19
"""Most bytes of a file that are converted to floats at a time."""

BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
"""Types whose blocks a layer can keep; others are converted to floats while they are loaded."""
GROUP = 32
"""Numbers of such a block."""
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OWN_LAYER = {
    "gemma3": BEHIND | {"ffn_norm": "pre_feedforward_layernorm"},
    "olmo2": BEHIND,
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
}
"""Names that differ in an architecture, or that only it has."""
NOT_WEIGHTS = (
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
    ".attn_rot_embd.weight",
)  # fmt: skip
"""Tensors that the config reads, see `config._rope`; and one of old files, which follows from
it."""


@dataclass(frozen=True)
class Source:
    """Where a tensor of the checkpoint is in the file.

    Args:
        expert: the index of one expert in `tensor`; None: the whole tensor.
        heads: the number of heads whose rows are in llama.cpp's order; 0: rows are in our order.
        added: a constant that the file has added to each number: 1 in Gemma's norms.
    """

    tensor: GGUFTensor
    expert: int | None = None
    heads: int = 0
    added: int = 0

    @property
    def shape(self) -> list[int]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]


def sources(file: GGUFFile) -> dict[str, Source]:
    """For each tensor name of a checkpoint, its source in the file.

    Raises ValueError for a tensor that the architecture does not have.
    """
    arch = architecture(file)
    found = {}
    for tensor in file.tensors.values():
        if not tensor.name.endswith(NOT_WEIGHTS):
            for name, source in _sources_of(file, arch, tensor):
                found[name] = source
    return found


def _sources_of(file: GGUFFile, arch: str, tensor: GGUFTensor) -> Iterator[tuple[str, Source]]:
    match = re.fullmatch(r"(?:blk\.(\d{1,4})\.)?(\w+)\.(weight|bias)", tensor.name)
    layer, word, kind = match.groups() if match else (None, "", "")
    names = WHOLE_MODEL if layer is None else LAYER | OWN_LAYER.get(arch, {})
    if layer is not None and word in EXPERTS and len(tensor.shape) == 3:
        for expert in range(tensor.shape[0]):
            name = f"model.layers.{layer}.mlp.experts.{expert}.{EXPERTS[word]}.{kind}"
            yield name, Source(tensor, expert)
    elif word in names:
        heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(word)
        is_turned = arch == "llama" and heads is not None
        prefix = "" if layer is None else f"model.layers.{layer}."
        yield (
            f"{prefix}{names[word]}.{kind}",
            Source(
                tensor,
                heads=_num_heads(file, tensor, f"llama.attention.{heads}") if is_turned else 0,
                added=1 if arch == "gemma3" and "norm" in word else 0,
            ),
        )
    else:
        raise ValueError(
            f"{file.path}: tensor {show(tensor.name)} of shape {tensor.shape} is not known for "
            f"architecture {arch!r}; a layer has {', '.join(LAYER | OWN_LAYER.get(arch, {}))}"
        )


def _num_heads(file: GGUFFile, tensor: GGUFTensor, key: str) -> int:
    named = [one for one in (key, "llama.attention.head_count") if one in file.metadata]
    count = one_value(file, named[0]) if named else None
    if not isinstance(count, int) or count < 1 or tensor.shape[0] % (2 * count):
        raise ValueError(
            f"{file.path}: {key} is {show(count)}; it must divide the {tensor.shape[0]} rows of "
            f"{tensor.name!r} into heads of an even size"
        )
    return count


class GGUFTensors:
    """A GGUF file with the methods of an open safetensors file.

    Args:
        dtype: of the tensors that are read in floats.
        blocks: names of tensors, "...weight", that are read as blocks, under "...qweight":
            `[rows, blocks in a row, bytes of a block]` uint8.
    """

    def __init__(
        self, path: Path, dtype: torch.dtype = torch.float32, blocks: Collection[str] = ()
    ) -> None:
        self.path, self.dtype, self._last = path, dtype, torch.empty(0, dtype=torch.uint8)
        self._sources = {
            name.removesuffix("weight") + BLOCKS if name in blocks else name: source
            for name, source in sources(read_gguf(path)).items()
        }

    def __enter__(self) -> GGUFTensors:
        return self

    def __exit__(self, *error: Any) -> None:
        drop_pages(self._last)

    def __iter__(self) -> Iterator[str]:
        """The names of the tensors."""
        return iter(self._sources)

    def shape(self, name: str) -> list[int]:
        """The shape of `get_tensor(name)`."""
        source = self._sources[name]
        kind, shape = source.tensor.type, source.shape
        if not name.endswith(BLOCKS):
            return shape
        return [*shape[:-1], shape[-1] // kind.weights, kind.num_bytes]

    def get_slice(self, name: str) -> Tensor:
        """The whole tensor, as `get_tensor`: a part is not read by itself."""
        return self.get_tensor(name)

    def get_tensor(self, name: str) -> Tensor:
        """The tensor `name`: as floats of `dtype`, or as blocks.

        It lies in the mapped file if nothing has to be converted; its pages are then released when
        the next tensor is read. Otherwise only one piece of the file is in memory at a time.
        """
        source, shape = self._sources[name], self.shape(name)
        kind, is_blocks = source.tensor.type.name, name.endswith(BLOCKS)
        raw = self._rows(source)
        places = our_rows(len(raw), source.heads) if source.heads else None
        if places is None and not source.added and (is_blocks or FLOATS.get(kind) == self.dtype):
            return (raw if is_blocks else raw.view(self.dtype)).view(shape)
        row = shape[-2:] if is_blocks else [source.tensor.columns]
        result = torch.empty(shape, dtype=torch.uint8 if is_blocks else self.dtype)
        rows, start = result.view(-1, *row), 0
        for some in raw.split(max(MAX_CHUNK_BYTES // raw.shape[1], 1)):
            here = slice(start, start + len(some))
            piece = some if is_blocks else dequantize(some, kind)
            if source.added and not is_blocks:
                piece = piece - source.added
            rows[here if places is None else places[here]] = piece.view(-1, *row).to(result.dtype)
            start += len(some)
            drop_pages(some)
        return result

    @cached_property
    def _file(self) -> Tensor:
        """All bytes of the file. Pages of a private mapping can be written to, as torch wants."""
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def _rows(self, source: Source) -> Tensor:
        """The bytes of the tensor's rows in the mapped file, `[rows, bytes]` uint8."""
        drop_pages(self._last)
        num_rows, row_bytes = (
            math.prod(source.shape) // source.tensor.columns,
            source.tensor.row_bytes,
        )
        size = num_rows * row_bytes
        begin = source.tensor.begin + (source.expert or 0) * size
        self._last = self._file[begin : begin + size]
        if len(self._last) < size:
            raise ValueError(f"{self.path} ends inside {source.tensor.name!r}; download it again")
        return self._last.view(num_rows, row_bytes)


def our_rows(num_rows: int, num_heads: int) -> Tensor:
    """For each row in llama.cpp's order, its index in our order: `[num_rows]`.

    Two heads of four rows: [0, 2, 1, 3, 4, 6, 5, 7].
    """
    return torch.arange(num_rows).view(num_heads, 2, -1).transpose(1, 2).flatten()


def split_blocks(blocks: Tensor, type_name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Split blocks `[N, G, bytes]` uint8 of a type in `BITS` into q, scale and shift.

    Returns:
        q `[N, K]`, int32 of 0 .. 15 or int8; scale and shift `[N, G]` float16.
    """
    scale, shift, data = _fields(blocks, type_name)
    if shift is None:
        return data.view(torch.int8).flatten(1), scale, torch.zeros_like(scale)
    return torch.cat((data & 15, data >> 4), -1).flatten(1).int(), scale, shift


def _fields(blocks: Tensor, type_name: str) -> tuple[Tensor, Tensor | None, Tensor]:
    """The scale, the shift (float16; None for no shift), and the bytes of the numbers."""
    num_floats = 2 if type_name == "Q4_1" else 1  # d, or d and m
    head, data = blocks.split([2 * num_floats, blocks.shape[-1] - 2 * num_floats], dim=-1)
    floats = head.contiguous().view(torch.float16)
    scale, shift = floats[..., 0], None
    if BITS[type_name] == 4:
        shift = floats[..., 1] if type_name == "Q4_1" else scale * -8
    return scale, shift, data.contiguous()


def dequantize(raw: Tensor, type_name: str) -> Tensor:
    """Convert rows of blocks `[rows, bytes]` uint8 to floats `[rows, columns]` float32.

    The most frequent types are converted here, because the `gguf` package is slow. All other types
    need it. Raises ValueError if it is not installed; names the command.
    """
    if type_name in FLOATS:
        return raw.view(FLOATS[type_name]).float()
    if type_name in BITS:
        block_bytes = next(kind.num_bytes for kind in TYPES.values() if kind.name == type_name)
        blocks = raw.view(len(raw), -1, block_bytes)
        scale, shift, data = _fields(blocks, type_name)
        groups = torch.empty(*data.shape[:2], GROUP)
        if BITS[type_name] == 8:
            groups.copy_(data.view(torch.int8))
        else:
            groups[..., : GROUP // 2] = data & 15
            groups[..., GROUP // 2 :] = data >> 4
        groups.mul_(scale.float()[..., None])
        return (groups if shift is None else groups.add_(shift.float()[..., None])).flatten(1)
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise ValueError(
            "a .gguf file needs the gguf package, which is not installed; run: pip install gguf"
        ) from None
    return torch.from_numpy(dequantize(raw.numpy(), GGMLQuantizationType[type_name]))
