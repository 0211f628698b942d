"""The weight files of a checkpoint folder, and their headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mini_vllm.gguf import is_gguf
from mini_vllm.json_files import check_no_pointer, parse_json, read_json
from mini_vllm.model.checkpoint_files import check_weight_map
from mini_vllm.model.gguf.tensors import BLOCKS, GGUFTensors
from mini_vllm.model.memory import drop_pages

FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
OTHERS = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
PICKLES = (".bin", ".pt", ".pth")
TABLES_OF_ROTATION = ("rotary_emb.cos_cached", "rotary_emb.sin_cached")
OF_ROTATION = ("rotary_emb.inv_freq", *TABLES_OF_ROTATION)
"""How names end of tensors that old files have although they follow from the config."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: its dtype as safetensors spells it ("BF16", "I32"), and its shape."""

    dtype: str
    shape: list[int]


@dataclass(frozen=True)
class TensorFile:
    """A file with tensors: its path, its header, and a function that opens it.

    The opened file has the methods of an open safetensors file: `get_tensor(name)` and
    `get_slice(name)`.
    """

    path: Path
    header: Mapping[str, TensorInfo]
    open: Callable[[], AbstractContextManager[Any]]


class MappedTensors:
    """An open safetensors file, of which only one tensor at a time is in memory.

    The file is memory-mapped, so the pages of a tensor stay in memory beside its copy. They are
    released when the next tensor is read.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._last = safe_open(path, framework="pt"), ""

    def __enter__(self) -> MappedTensors:
        self._tensors = self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        self._turn_to(name)
        return self._tensors.get_tensor(name)

    def get_slice(self, name: str) -> Any:
        self._turn_to(name)
        return self._tensors.get_slice(name)

    def _turn_to(self, name: str) -> None:
        if self._last not in ("", name):
            drop_pages(self._tensors.get_tensor(self._last))
        self._last = name


def tensor_files(
    path: Path, dtype: torch.dtype = torch.float32, blocks: Collection[str] = ()
) -> list[TensorFile]:
    """The files with the weights of the model at `path`: a folder's safetensors, or a GGUF file.

    A GGUF file's tensors are converted to `dtype`, except those named in `blocks`, which stay in
    blocks. Raises ValueError or FileNotFoundError for a file that cannot be read.
    """
    if not is_gguf(path):
        return [
            TensorFile(file, read_header(file), partial(MappedTensors, file))
            for file in weight_files(path)
        ]
    tensors = GGUFTensors(path, dtype, blocks)
    types = {name: "U8" if name.endswith(BLOCKS) else "F32" for name in tensors}
    header = {name: TensorInfo(types[name], tensors.shape(name)) for name in types}
    return [TensorFile(path, header, lambda: tensors)]


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's files: those in its index, or `model.safetensors`, or all there are.

    Raises FileNotFoundError for a missing file, ValueError for an index that cannot be read, or
    for a tensor that is in two files, because either could be the right one.
    """
    index = folder / "model.safetensors.index.json"
    whole = folder / "model.safetensors"
    if index.is_file():
        files = _indexed_files(index)
    else:
        files = [whole] if whole.is_file() else _files_without_index(folder)
    if not files:
        raise FileNotFoundError(
            f"{str(folder)!r} has no .safetensors file; {_instead_of_safetensors(folder)}"
        )
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is a folder, or a link to nothing; download it again")
    if len(files) > 1:
        _check_distinct(files)
    return files


def _files_without_index(folder: Path) -> list[Path]:
    """All safetensors files of a folder, less a second copy under Mistral's names and an adapter.

    Raises FileNotFoundError if the files count themselves, and one of them is missing.
    """
    files = sorted(folder.glob("*.safetensors"))
    files = [each for each in files if not each.name.startswith(BESIDE)] or files
    numbers: dict[int, set[int]] = {}
    for each in files:
        if match := SHARD.search(each.name):
            numbers.setdefault(int(match[2]), set()).add(int(match[1]))
    for count, found in numbers.items():
        if missing := sorted(set(range(1, count + 1)) - found):
            raise FileNotFoundError(
                f"{str(folder)!r} has {len(found)} of {count} weight files; number {missing[0]} is "
                "not there; download it"
            )
    for each in files:
        if each.name.startswith(BESIDE[0]) and MISTRALS in read_header(each):
            raise ValueError(
                f"{each} has its tensors under Mistral's own names, such as {MISTRALS!r}; take the "
                "model in the form of transformers, with model.safetensors"
            )
    return files


BESIDE = ("consolidated", "adapter_model")
SHARD = re.compile(r"-(\d{1,5})-of-(\d{1,5})\.safetensors$")
MISTRALS = "tok_embeddings.weight"


def _instead_of_safetensors(folder: Path) -> str:
    """What helps: weights may be there as pickles, which can run any code when they are read."""
    names = sorted(path.name for end in PICKLES for path in folder.glob(f"*{end}"))
    if not names:
        return "download the weights in that format"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"it has {names[0]}{more}, a format that is not read because it can run code; write it "
        "anew: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER), of "
        "transformers, or download the weights as safetensors"
    )


def _indexed_files(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not weight_map:
        raise ValueError(f"{index} has no 'weight_map'; download it again")
    names = sorted(set(check_weight_map(weight_map, index).values()))
    whole = "model.safetensors"
    joined = f", or remove the index if {whole} is the whole model"
    for name in names:
        if not (index.parent / name).is_file():
            raise FileNotFoundError(
                f"{index} names {name!r}, which is not in the folder; download it"
                + (joined if (index.parent / whole).is_file() else "")
            )
    return [index.parent / name for name in names]


def _check_distinct(files: list[Path]) -> None:
    file_of: dict[str, Path] = {}
    for file in files:
        for name in read_header(file):
            if (other := file_of.setdefault(name, file)) != file:
                raise ValueError(
                    f"{name!r} is in {other} and in {file}; a tensor must be in one file only; "
                    "remove the file that does not belong to the checkpoint"
                )


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The dtype and shape of each tensor of a safetensors file, in the order of their data.

    The library checks that the header is valid and that the tensors fill the file exactly.

    Raises ValueError that names the file, its size, and what is wrong.
    """
    check_no_pointer(file)
    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.offset_keys()}
            return {
                name: TensorInfo(one.get_dtype(), one.get_shape()) for name, one in slices.items()
            }
    except SafetensorError as error:
        raise ValueError(
            f"{file} is cut off or corrupt, the file has {file.stat().st_size} bytes: "
            f"{_damage(file, str(error))}; download it again"
        ) from error


def _damage(file: Path, said: str) -> str:
    """What is wrong with a safetensors file, by its first bytes and its header; else what the
    library has said.

        8 bytes: length of the header | the header, JSON | the bytes of all tensors
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        begin = stream.read(8)
        length = int.from_bytes(begin, "little")
        if not begin:
            return "it is empty"
        if begin.startswith((b"<", b"PK")):
            kind = "a web page" if begin.startswith(b"<") else "a zip file, as torch.save writes it"
            return f"it begins with {begin!r}, so it is {kind}"
        if size < 8 + length:
            return f"its first 8 bytes say that its header has {length} bytes"
        if "not fully covered" not in said:
            return said
        header = parse_json(stream.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return f"by its header it has {8 + length + max(ends, default=0)} bytes"


def read_shapes(file: Path) -> dict[str, list[int]]:
    """The name and shape of each tensor in a safetensors file. Raises what `read_header` does."""
    return {name: info.shape for name, info in read_header(file).items()}


def check_dtype(info: TensorInfo, wanted: torch.dtype, name: str, file: Path) -> None:
    """Raise ValueError unless converting to `wanted` keeps what the numbers mean.

    One floating point type may become another. Integers and 8-bit floats belong to quantised
    tensors; used as weights without their scales they would be noise.
    """
    if wanted in FLOATS.values() and info.dtype in FLOATS:
        return
    if info.dtype == "F8_E8M0" and wanted == torch.float32 and "scale" in name:
        return  # powers of two
    if OTHERS.get(info.dtype) != wanted:
        raise ValueError(
            f"{name!r} in {file} has dtype {info.dtype}; the model holds it as {wanted}. Is "
            "'quantization_config' in config.json missing, or another checkpoint's?"
        )


OLD_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files of AutoGPTQ, AutoAWQ and ModelOpt from before `config.json` had a `quantization_config`."""


def read_quantize_config(folder: Path, wanted: str | None) -> dict[str, Any] | None:
    """The `quantization_config` from a file of its own.

    None without such a file, and if the weights are not packed.

    Args:
        wanted: the format, if the caller names it; otherwise it follows from the entries.

    Source: vllm/model_executor/model_loader/weight_utils.py#L387-L421 (get_quant_config) @ v0.22.1.
    Difference: there the file is read only if a format is named.
    """
    file = next((folder / name for name in OLD_FILES if (folder / name).is_file()), None)
    if file is None or not list(folder.glob("*.safetensors")):
        return None
    found: dict[str, Any] = read_json(file)
    if file.name == OLD_FILES[-1]:
        return {"quant_method": "modelopt"} | found
    names = (name for weights in weight_files(folder) for name in read_header(weights))
    if not any(name.endswith(".qweight") for name in names):
        return None
    is_awq = "zero_point" in found or "w_bit" in found
    return {"quant_method": wanted or ("awq" if is_awq else "gptq")} | found
