"""Reads and checks the header of a GGUF file, in plain Python.

    4 bytes "GGUF" | u32 version | u64 number of tensors | u64 number of entries
    entries    key, type of the value, value: "llama.block_count" u32 30
    tensors    name, shape, type, where its bytes begin after the padding
    padding    to a multiple of `general.alignment`, 32
    the bytes of the tensors

Numbers are little-endian; a string is its length as u64, then that many bytes of UTF-8. In the file
the fastest dimension of a shape is first; here shapes are torch's, `[rows, columns]`.

The reader of the `gguf` package is not used: it makes an object of every string, which takes
seconds for a vocabulary, and it does not check the counts of a damaged file.

Source: vllm/transformers_utils/gguf_utils.py#L22-L38 (check_gguf_file) @ v0.22.1.
"""

from __future__ import annotations

import functools
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from mini_vllm.errors import show

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MAX_DIMENSIONS = 4
STRING, ARRAY = 8, 9
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Formats of `struct` for types of values, by their number."""


@dataclass(frozen=True)
class BlockType:
    """A type of tensor: blocks of so many weights of a row, and so many bytes."""

    name: str
    weights: int
    num_bytes: int


TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
}
"""Types of tensors by their number: those that the `gguf` package can dequantise."""
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class GGUFTensor:
    """The place of a tensor in its file, its type and shape."""

    name: str
    type: BlockType
    shape: list[int]
    begin: int

    @property
    def columns(self) -> int:
        """Numbers of a row. A one-dimensional tensor of floats is a column."""
        is_column = len(self.shape) == 1 and self.type.weights == 1
        return 1 if is_column else self.shape[-1]

    @property
    def row_bytes(self) -> int:
        return self.columns // self.type.weights * self.type.num_bytes

    @property
    def num_rows(self) -> int:
        return math.prod(self.shape) // self.columns

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class Array:
    """A list in the metadata. It is read only when needed: a vocabulary has hundreds of thousands
    of entries."""

    path: Path
    key: str
    type: int
    count: int
    begin: int

    def read(self) -> list[Any]:
        """Its values. Raises ValueError for a text that is not UTF-8."""
        with _mapped(self.path) as data:
            if self.type != STRING:
                return list(
                    struct.unpack_from(f"<{self.count}{SCALARS[self.type]}", data, self.begin)
                )
            return self._texts(data)

    def _texts(self, data: mmap.mmap) -> list[str]:
        """One loop without function calls, for speed. The lengths were checked before."""
        unpack, begin, texts = struct.Struct("<Q").unpack_from, self.begin + 8, []
        try:
            for _ in range(self.count):
                end = begin + unpack(data, begin - 8)[0]
                texts.append(data[begin:end].decode())
                begin = end + 8
        except UnicodeDecodeError as error:
            at = begin + error.start
            _Reader(self.path, data).fail(f"{self.key} is not UTF-8 ({error.reason} at byte {at})")
        return texts


@dataclass(frozen=True)
class GGUFFile:
    """The contents of a file. `metadata` has lists as `Array`. `known` is a cache for results of
    other modules, by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    known: dict[str, Any] = field(default_factory=dict, compare=False)

    def get(self, key: str, kind: type | tuple[type, ...], wanted: str, default: Any = ...) -> Any:
        """The value of `key`; `default` if there is none.

        Raises ValueError for a value of another type, or if it is missing without a default.
        """
        value = self.metadata.get(key)
        if value is None and default is not ...:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            found = "missing" if value is None else show(value)
            raise ValueError(f"{self.path}: {key} is {found}; it must be {wanted}")
        return value

    def read_list(self, key: str, kind: type, default: Any = ...) -> list[Any]:
        """The values of the list `key`. Raises ValueError for another type, or if it is missing."""
        noun = {str: "texts", int: "integers", float: "numbers"}[kind]
        array = self.get(key, Array, f"a list of {noun}", default)
        if not isinstance(array, Array):
            return array
        is_kind = array.type == STRING if kind is str else array.type in SCALARS
        if not is_kind:
            raise ValueError(f"{self.path}: {key} holds other values; it must be a list of {noun}")
        return array.read()


def is_gguf(path: str | Path) -> bool:
    """Whether `path` is a GGUF file, by its name or its first bytes."""
    path = Path(path)
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: str | Path) -> GGUFFile:
    """The metadata of a file, and where its tensors are.

    Raises ValueError with the file, the key or tensor, and the allowed values.
    """
    path = Path(path)
    stat = path.stat()
    return _read(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _read(path: Path, mtime: int, size: int) -> GGUFFile:
    if size < 24:
        raise ValueError(f"{path} has {size} bytes; a GGUF file has at least 24; download it again")
    with _mapped(path) as data:
        reader = _Reader(path, data)
        num_tensors, num_entries = reader.preamble()
        metadata = dict(reader.entries(num_entries))
        _check_whole(path, metadata)
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
            raise ValueError(
                f"{path}: general.alignment is {show(alignment)}; it must be a multiple of 8"
            )
        found = list(reader.tensors(num_tensors))
        start = -(-reader.position // alignment) * alignment
    tensors = {name: GGUFTensor(name, kind, shape, start + at) for name, kind, shape, at in found}
    if len(tensors) < len(found):
        names = [name for name, *_ in found]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path} is corrupt: it has two tensors {show(twice)}; download it again")
    for tensor in tensors.values():
        end = tensor.begin + tensor.num_bytes
        if end > size:
            raise ValueError(
                f"{path} is cut off: tensor {tensor.name!r} ends at byte {end}, and the file has "
                f"{size}; download it again"
            )
    return GGUFFile(path, metadata, tensors)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _check_whole(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raises ValueError for one part of a model in several files."""
    if metadata.get("split.count", 1) not in (0, 1):
        raise ValueError(
            f"{path}: split.count is {show(metadata['split.count'])}; a model in several files is "
            "not supported; join them with `llama-gguf-split --merge FIRST OUTPUT`"
        )


class _Reader:
    """Reads from byte `position` on; checks every count against the rest of the file."""

    def __init__(self, path: Path, data: mmap.mmap, position: int = 0) -> None:
        self.path, self.data, self.position = path, data, position

    def fail(self, problem: str) -> NoReturn:
        raise ValueError(f"{self.path} is cut off or corrupt: {problem}; download it again")

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes; returns where they begin."""
        begin = self.position
        if count > len(self.data) - begin:
            self.fail(f"{what} takes {count} bytes at byte {begin} of {len(self.data)}")
        self.position = begin + count
        return begin

    def numbers(self, form: str, what: str) -> tuple[Any, ...]:
        form = "<" + form
        return struct.unpack_from(form, self.data, self.take(struct.calcsize(form), what))

    def text(self, what: str) -> str:
        (length,) = self.numbers("Q", what)
        begin = self.take(length, what)
        try:
            return self.data[begin : begin + length].decode()
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8 ({error.reason} at byte {begin + error.start})")

    def preamble(self) -> tuple[int, int]:
        """The number of tensors, and of entries."""
        magic = self.data[: len(MAGIC)]
        if magic != MAGIC:
            raise ValueError(
                f"{self.path} begins with {magic!r}; a GGUF file begins with {MAGIC!r}; is it "
                "another format, or a pointer of Git LFS?"
            )
        self.position = len(MAGIC)
        version, num_tensors, num_entries = self.numbers("IQQ", "the header")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            hint = " (it is big-endian)" if swapped in VERSIONS else ""
            raise ValueError(
                f"{self.path} is GGUF version {version}{hint}; versions "
                f"{' and '.join(map(str, VERSIONS))}, little-endian, can be read; convert it anew"
            )
        return num_tensors, num_entries

    def entries(self, count: int) -> Iterator[tuple[str, Any]]:
        for index in range(count):
            key = self.text(f"the key of entry {index} of {count}")
            (kind,) = self.numbers("I", f"the type of {show(key)}")
            yield key, self.value(kind, key)

    def value(self, kind: int, key: str) -> Any:
        if kind in SCALARS:
            return self.numbers(SCALARS[kind], key)[0]
        if kind == STRING:
            return self.text(key)
        if kind != ARRAY:
            self.fail(f"{show(key)} has a value of type {kind}; types are 0 to 12")
        kind, count = self.numbers("IQ", key)
        begin = self.position
        if kind in SCALARS:
            self.take(count * struct.calcsize(SCALARS[kind]), f"the list {show(key)}")
        elif kind == STRING:
            self._step_over_texts(count, key)
        else:
            self.fail(f"{show(key)} is a list of type {kind}; lists hold numbers or texts")
        return Array(self.path, key, kind, count, begin)

    def _step_over_texts(self, count: int, key: str) -> None:
        """One loop without function calls, for speed: a vocabulary has hundreds of thousands of
        texts."""
        data, position, size = self.data, self.position, len(self.data)
        unpack = struct.Struct("<Q").unpack_from
        for index in range(count):
            if position + 8 > size or position + 8 + (length := unpack(data, position)[0]) > size:
                self.fail(f"text {index} of the {count} of {show(key)} ends behind byte {size}")
            position += 8 + length
        self.position = position

    def tensors(self, count: int) -> Iterator[tuple[str, BlockType, list[int], int]]:
        """Name, type, shape and offset after the header, of each tensor."""
        for index in range(count):
            name = self.text(f"the name of tensor {index} of {count}")
            (num_dimensions,) = self.numbers("I", f"tensor {show(name)}")
            if not 1 <= num_dimensions <= MAX_DIMENSIONS:
                self.fail(
                    f"tensor {show(name)} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} "
                    "are possible"
                )
            shape = list(self.numbers(f"{num_dimensions}Q", f"tensor {show(name)}"))[::-1]
            kind, offset = self.numbers("IQ", f"tensor {show(name)}")
            if kind not in TYPES:
                raise ValueError(
                    f"{self.path}: tensor {show(name)} has type {kind}; types that can be read are "
                    f"{', '.join(one.name for one in TYPES.values())}"
                )
            if shape[-1] % TYPES[kind].weights or not all(shape):
                self.fail(
                    f"tensor {show(name)} has shape {shape}; rows of {TYPES[kind].name} have a "
                    f"multiple of {TYPES[kind].weights} numbers"
                )
            yield name, TYPES[kind], shape, offset
