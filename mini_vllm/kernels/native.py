"""Builds `cpu.cpp` for this machine, once, and calls its functions on tensors.

Built with the machine's own C++ compiler ($CXX, or the first of `COMPILERS`) into the user's cache
folder, where every later program finds it. Without a compiler, or with MINI_VLLM_NATIVE=0,
everything runs through PyTorch's operations, more slowly: the functions here then answer that they
cannot help (`can_run`). Why they cannot stands in the log and in `make doctor`.

The library has a plain C interface, without PyTorch: it gets addresses and sizes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mini_vllm.kernels.native_matrix import POINTER, REAL, ROWS, SIZE, Matrix
from mini_vllm.platforms import platform_of

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("cpu.cpp")
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fopenmp-simd", "-pthread", "-fPIC", "-shared",
    # NaN keeps its meaning, unlike in -ffast-math, and so does the order of a sum: where it may be
    # another, cpu.cpp says so (`omp simd reduction`).
    "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
)  # fmt: skip
BUILD_SECONDS = 600
"""g++ 16 needs 22 s of a quiet core; a busy laptop may give it a tenth of one."""
WITHOUT = "steps go through PyTorch's operations, which are slower"
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}
LANES = 16
"""Features of a head that attention takes at a time; a head has a multiple of it."""
FEW_TOKENS = 32
"""Tokens up to which `linear` is faster in float32 than PyTorch's product of the plain weight; with
a narrow MKL it always is. A constant: of a step that is one native call it decides about the head
alone."""
PLACES = (0, 16, 4, 20, 8, 24, 12, 28)
"""Of eight columns of int4 in a word: where the bits of each begin."""
MOST_INT8_COLUMNS = (1 << 17) - 2
"""Of a weight in int8: so many products of -128 and -128 fit into 32 bits."""
MOST_GROUP = 256
"""Columns of a weight that may share a scale: so many products of 16 and 8 bits fit into 32."""
LEAST_PARALLEL = 1 << 15
"""Elements below which one thread is done before others have woken up."""
_more_threads = 0


def can_run(tensor: Tensor) -> bool:
    """Whether the functions here work on `tensor`. Not while `torch.compile` traces."""
    if torch.compiler.is_compiling():  # asked first: it cannot trace how a library is looked for
        return False
    return can_read(tensor.dtype, tensor.device)


def can_read(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Whether there are functions here for such numbers."""
    return platform_of(device).is_host and dtype in NAMES and library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """The built functions; None where they cannot be had. Asked once a process."""
    if is_switched_off():
        return None
    try:
        return load()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning("the C++ kernels are not used, and %s: %s", WITHOUT, error)
        return None


def is_switched_off() -> bool:
    return os.environ.get("MINI_VLLM_NATIVE", "1") == "0"


def load() -> ctypes.CDLL:
    """The built functions.

    Raises OSError, RuntimeError or SubprocessError where they cannot be had, and says why.
    """
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if platform.system() == "Windows":
        raise OSError("they are not built on Windows; use WSL, or the dev container")
    if compiler is None:
        raise OSError(f"there is no C++ compiler ({', '.join(COMPILERS)}, or $CXX); install g++")
    try:
        return ctypes.CDLL(str(build(compiler, cache_folder())))
    except (OSError, subprocess.SubprocessError) as error:
        raise OSError(f"{compiler} cannot build {SOURCE.name}: {error}") from error


def multiplies_bf16() -> bool:
    """Whether the processor multiplies bfloat16, and `linear` with it."""
    found = library()
    return found is not None and bool(found.multiplies_bf16())


def has_tiles() -> bool:
    """Whether the processor multiplies tiles (AMX), and this process may use them."""
    found = library()
    return found is not None and bool(found.has_tiles())


def multiplies_pairs() -> bool:
    """Whether the processor multiplies and adds pairs of 16 bits in one instruction, 32 at once."""
    found = library()
    return found is not None and bool(found.multiplies_pairs())


def has_narrow_mkl() -> bool:
    """Whether PyTorch's product in float32 takes half of a vector at a time, and `linear` a whole.

    MKL computes it. On one of AMD's processors with AVX-512 (Zen 5) it was half as fast as `linear`
    for many tokens; so it is taken to be on all that have it and are not Intel's.
    """
    if torch.compiler.is_compiling():
        return False
    found = library()
    return found is not None and bool(found.has_narrow_mkl())


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "mini_vllm"


def build(compiler: str, folder: Path) -> Path:
    """The library for this source, compiler and processor; built if it is not in `folder`.

    Raises OSError or SubprocessError if that fails. A half-built file never has the final name.
    """
    source = SOURCE.read_bytes()
    identity = [compiler, *FLAGS, processor()]
    digest = hashlib.sha256(source + "\n".join(identity).encode()).hexdigest()[:16]
    target = folder / f"cpu-{digest}.so"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary) / "cpu.so"
        command = [*shlex.split(compiler), *FLAGS, "-o", str(made), str(SOURCE)]
        logger.info("building cpu.cpp with %s, once for this machine", compiler)
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
        if done.returncode:
            raise OSError((done.stderr.strip() or f"{compiler} failed").splitlines()[-1])
        os.replace(made, target)
    return target


def beside(name: str) -> Path:
    """A file beside the library that is used here, for what was measured with it. The library's
    name, with which this one begins, says source, compiler and processor."""
    found = Path(library()._name)  # type: ignore[union-attr]
    return found.with_name(f"{found.stem}-{name}")


def processor() -> str:
    """What tells processors apart whose instructions differ: a home folder may be shared."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def threads(num_elements: int = LEAST_PARALLEL) -> int:
    """How many threads a pass over so many numbers is worth."""
    return 1 if num_elements < LEAST_PARALLEL else torch.get_num_threads() + _more_threads


def use_more_threads(number: int) -> None:
    """Let the functions here use so many threads more than PyTorch does, in the whole process.

    They may where PyTorch should not: no product waits for a thread of theirs that has no core.
    """
    global _more_threads
    _more_threads = number


@functools.cache
def function(name: str, *dtypes: torch.dtype) -> Callable[..., int]:
    """The function for these kinds of numbers, with the types of its arguments."""
    found = getattr(library(), "_".join((name, *(NAMES[dtype] for dtype in dtypes))))
    found.argtypes = ARGUMENTS[name]
    found.restype = SIZE if name in FINDS_ERRORS else None
    return found


INT = ctypes.c_int


class Layer(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("qkv", "o", "gate_up", "down")),
        *((name, POINTER) for name in ("input_norm", "qk_norm", "post_norm")),
        *((name, SIZE) for name in ("heads", "kv_heads", "size", "window")),
        *((name, REAL) for name in ("eps", "scale")),
    ]


class Adapters(ctypes.Structure):
    """Slots of adapters of one product; without arguments: of a product that has none."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "starts", "slots", "ranks")),
        *((name, SIZE) for name in ("slices", "rank")),
    ]

    @classmethod
    def of(cls, a: Tensor, b: Tensor, starts: Tensor, slots: Tensor, ranks: Tensor) -> Adapters:
        """`a` `[S, n, R, K]` and `b` `[S, R, N]` are of one dtype; slice i of n has the columns
        `starts[i] .. starts[i + 1]` of `b`, token t uses the slot `slots[t]`, or none if that is
        negative, and of slot s the rows below `ranks[s]` count; all int32. All must outlive this,
        where they lie.
        """
        pointers = (tensor.data_ptr() for tensor in (a, b, starts, slots, ranks))
        return cls(*pointers, *a.shape[1:3])


class Places(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("cos", "sin", "slots", "table", "rows", "ends")),
        *((name, SIZE) for name in ("turning", "table_stride")),
    ]

    def __init__(
        self, rope: tuple[Tensor, Tensor], slots: Tensor, table: Tensor, rows: Tensor, ends: Tensor
    ) -> None:
        """`rope` has cos and sin `[T, 1, R]`; the others are those of `store` and attention."""
        tensors = (*rope, slots, table, rows, ends)
        super().__init__(*(t.data_ptr() for t in tensors), rope[0].shape[-1], table.stride(0))
        self.rope, self.tensors = rope, tensors  # kept alive: the fields are addresses


class Caches:
    """Where the keys and the values of some layers lie, whose caches have one shape."""

    def __init__(self, kv_caches: Sequence[Tensor]) -> None:
        """Each is `[2, num_blocks, block_size, Hkv, D]`, and must outlive this."""
        keys, values = zip(*map(halves, kv_caches), strict=True)
        self.addresses, many = list(keys), POINTER * len(kv_caches)
        self.keys, self.values = many(*keys), many(*values)
        self.dtype, self.shape = kv_caches[0].dtype, kv_caches[0].shape[1:3]

    def are(self, kv_caches: Sequence[Tensor]) -> bool:
        """Whether these caches still lie there, and are as large."""
        addresses = [cache.data_ptr() for cache in kv_caches]
        return addresses == self.addresses and kv_caches[0].shape[1:3] == self.shape


class Decoder(ctypes.Structure):
    """Fields that end in s and are pointers have one entry a layer."""

    _fields_ = [
        ("layers", ctypes.POINTER(Layer)),
        *((name, ctypes.POINTER(POINTER)) for name in ("keys", "values")),
        *((name, POINTER) for name in ("embedding", "cos", "sin", "norm")),
        ("head", Matrix),
        *((name, SIZE) for name in ("num_layers", "positions", "turning")),
        *((name, SIZE) for name in ("num_blocks", "block_size")),
        ("eps", REAL),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("token_ids", "table")),
        *((name, SIZE) for name in ("num_rows", "max_tokens", "max_blocks")),
    ]


FINDS_ERRORS = {"store", "paged_attention", "decoder_layers", "next_logits"}
"""Functions that return where something is wrong, or -1."""
ARGUMENTS: dict[str, Sequence[type]] = {
    "pack_2": [*[POINTER] * 2, *[SIZE] * 2, INT],
    "pack_4": [*[POINTER] * 2, *[SIZE] * 2, INT],
    "pack_blocks": [*[POINTER] * 2, *[SIZE] * 3, INT, INT],
    "rms_norm": [*[POINTER] * 4, *[SIZE] * 4, REAL, INT],
    "rope": [*[POINTER] * 3, *[SIZE] * 5, INT],
    "silu_mul": [*[POINTER] * 2, *[SIZE] * 2, INT],
    "forbid": [*[POINTER] * 4, *[SIZE] * 4],
    "store": [*[POINTER] * 5, *[SIZE] * 5],
    "paged_attention": [*[POINTER] * 7, *[SIZE] * 9, REAL, INT],
    "gated_delta": [*[POINTER] * 8, *[SIZE] * 4, INT],
    "multiply": [*[POINTER] * 2, ctypes.POINTER(Matrix), SIZE, INT],
    "grouped_multiply": [*[POINTER] * 2, ctypes.POINTER(Matrix), POINTER, SIZE, INT],
    "decoder_layers": [
        *[POINTER] * 3,
        ctypes.POINTER(Layer),
        ctypes.POINTER(Adapters),
        ctypes.POINTER(Places),
        *[ctypes.POINTER(POINTER)] * 2,
        *[SIZE] * 4,
        INT,
    ],
    "next_logits": [
        POINTER,
        ctypes.POINTER(Decoder),
        ctypes.POINTER(Batch),
        *[POINTER] * 4,
        SIZE,
        INT,
    ],
}


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """The norm of each row of `x` `[T, size]`, or `[T, H, D]` with a weight `[H, D]`.

    With a `residual`: of their sum, which then is in `residual`.
    """
    num_heads, size = (1, *x.shape[1:]) if x.dim() == 2 else x.shape[1:]
    output = torch.empty(x.shape, dtype=x.dtype)
    function("rms_norm", x.dtype)(
        output.data_ptr(), x.data_ptr(), None if residual is None else residual.data_ptr(),
        weight.data_ptr(), len(x), num_heads, size, x.stride(0), eps, threads(x.numel()),
    )  # fmt: skip
    return output


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R features of each head of `x` `[T, H, D]`, in place."""
    function("rope", x.dtype)(
        x.data_ptr(), cos.data_ptr(), sin.data_ptr(), *x.shape, cos.shape[-1], x.stride(0),
        threads(x.numel()),
    )  # fmt: skip
    return x


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, `[T, 2 * size] -> [T, size]`."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty(num_tokens, size, dtype=gate_up.dtype)
    function("silu_mul", gate_up.dtype)(
        output.data_ptr(), gate_up.data_ptr(), num_tokens, size, threads(gate_up.numel())
    )
    return output


def forbid(
    logits: Tensor, words: bytes, num_masks: int, rows: Sequence[int], masks: Sequence[int]
) -> None:
    """-inf, in place, for the tokens that masks do not let through.

    Args:
        logits: `[B, V]` float32; rows may lie apart.
        words: `num_masks` rows of 32-bit words, a bit a token.
        rows, masks: row `rows[i]` of the logits gets row `masks[i]` of the words.
    """
    indices = ctypes.c_int64 * len(rows)
    function("forbid", logits.dtype)(
        logits.data_ptr(), words, indices(*rows), indices(*masks), len(rows), logits.shape[1],
        logits.stride(0), len(words) // 4 // num_masks,
    )  # fmt: skip


def store(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """Write `key` and `value` `[T, Hkv, D]` into the slots of a layer's cache; -1 stores nothing.

    Raises IndexError for a slot that the cache does not have.
    """
    num_slots = kv_cache.shape[1] * kv_cache.shape[2]
    bad = function("store", key.dtype, kv_cache.dtype)(
        *halves(kv_cache), key.data_ptr(), value.data_ptr(), slots.data_ptr(),
        num_slots, len(key), key.shape[1] * key.shape[2], key.stride(0), value.stride(0),
    )  # fmt: skip
    if bad >= 0:
        raise no_such_slot(slots, bad, num_slots)


def halves(kv_cache: Tensor) -> tuple[int, int]:
    """Where a layer's keys begin, and where its values do."""
    keys: int = kv_cache.data_ptr()
    return keys, keys + kv_cache.stride(0) * kv_cache.itemsize


def no_such_slot(slots: Tensor, token: int, num_slots: int) -> IndexError:
    return IndexError(f"slot {int(slots[token])} of token {token}; the cache has {num_slots} slots")


def no_such_page(table: Tensor, rows: Tensor, token: int, num_blocks: int) -> IndexError:
    return IndexError(
        f"token {token} reads a page outside the cache, which has {num_blocks}: "
        f"{table[rows[token]].tolist()}"
    )


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    ends: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention of `query` `[T, Hq, D]`; token t sees the first `ends[t]` tokens of its request.

    `rows` and `ends` are `[T]` int32; request r has the pages `block_table[r]`, int32. D is a
    multiple of `LANES`. Raises IndexError for a page that the cache does not have.
    """
    _, num_blocks, block_size, num_kv_heads, size = kv_cache.shape
    output = torch.empty(query.shape, dtype=query.dtype)
    num_tokens, num_heads, _ = query.shape
    bad = function("paged_attention", query.dtype, kv_cache.dtype)(
        output.data_ptr(), query.data_ptr(), *halves(kv_cache),
        block_table.data_ptr(), rows.data_ptr(), ends.data_ptr(),
        num_tokens, num_kv_heads, num_heads // num_kv_heads, size, num_blocks, block_size,
        block_table.stride(0), query.stride(0), window or num_blocks * block_size,
        scale, threads(num_tokens * block_table.shape[1] * block_size * num_kv_heads * size),
    )  # fmt: skip
    if bad >= 0:
        raise no_such_page(block_table, rows, bad, num_blocks)
    return output


def can_pack(weight: Tensor) -> bool:
    """Whether `pack` takes `weight` `[N, K]`: whole blocks of whole pairs."""
    rows, columns = weight.shape
    return rows % ROWS == 0 and columns % 2 == 0


def pack(weight: Tensor, in_place: bool = False) -> Tensor:
    """`weight` `[N, K]` as `[N / ROWS, K, ROWS]`: a column's numbers of `ROWS` rows lie together.

    Of numbers shorter than float32 two neighbours of a row also stay together, so that they are
    multiplied at once: `[N / ROWS, K / 2, ROWS, 2]`.

    Args:
        in_place: `weight` is gone, its memory holds what is returned.
    """
    weight = weight.contiguous()
    packed = weight if in_place else torch.empty_like(weight)
    pairs = 1 if weight.itemsize == 4 else 2
    columns = weight.shape[1] // pairs
    function(f"pack_{weight.itemsize * pairs}")(
        packed.data_ptr(), weight.data_ptr(), len(weight), columns, threads(weight.numel())
    )
    return packed.view(-1, columns, ROWS, *[2] * (pairs == 2))


def pack_blocks(blocks: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Blocks of a GGUF file for `Matrix.of_groups`: `blocks` `[N, G, bytes]` uint8 are gone.

    A block of 32 weights has F float16 numbers, and then its weights, of `bits` bits.

    Returns:
        Both lie in the memory of `blocks`: the weights, as :func:`pack_int4` or :func:`pack` leave
        them, and `[F, G, N]` float16.
    """
    memory, (rows, groups, num_bytes) = blocks.view(-1), blocks.shape
    num_floats = (num_bytes - 4 * bits) // 2
    floats = torch.empty(num_floats, groups, rows, dtype=torch.float16)
    function("pack_blocks")(memory.data_ptr(), floats.data_ptr(), *blocks.shape, bits, num_floats)
    weights, rest = memory.split([rows * groups * 4 * bits, floats.nbytes])
    kept = rest.view(torch.float16).view(floats.shape).copy_(floats)
    if bits == 4:
        return weights.view(torch.int32).view(-1, groups * 4, ROWS), kept
    return weights.view(torch.int8).view(-1, groups * 16, ROWS, 2), kept


def unpack(blocks: Tensor) -> Tensor:
    """The weight `[N, K]` that was packed."""
    if blocks.dtype == torch.bfloat16:
        return unpack_pairs(blocks)
    return blocks.transpose(1, 2).reshape(-1, blocks.shape[1])


def unpack_rows(blocks: Tensor, rows: Tensor) -> Tensor:
    """Some rows of the weight that was packed, `[T] -> [T, K]`."""
    return blocks[rows // ROWS, :, rows % ROWS].flatten(1)


def unpack_pairs(packed: Tensor) -> Tensor:
    """The weight `[N, K]` that was packed."""
    return packed.transpose(1, 2).reshape(-1, packed.shape[1] * 2)


def multiply(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias: `[T, K]` -> `[T, N]`; `bias` is float32.

    x is rounded to bfloat16 for a weight in bfloat16, if the processor multiplies such numbers; for
    one in int8 to int8, as `quantize_per_token` does; for one in groups to 16 bits a group, or to
    bfloat16 where many tokens go through tiles. A token's numbers are the same, to the bit,
    whatever other tokens come with it, but for weights in groups: tiles add in another order.
    """
    x, weight = x.contiguous(), weight.with_bias(bias)
    output = torch.empty(x.shape[0], weight.rows, dtype=x.dtype)
    function("multiply", x.dtype)(
        output.data_ptr(), x.data_ptr(), weight, x.shape[0], threads(weight.rows * weight.columns)
    )
    return output


def grouped_multiply(x: Tensor, weights: ctypes.Array[Matrix], counts: Tensor) -> Tensor:
    """`multiply` of rows that belong to several weights of one shape: `[P, K]` -> `[P, N]`.

    The first `counts[0]` rows are those of the first weight, and so on; `counts` `[E]` is int64.
    """
    x, rows = x.contiguous(), weights[0].rows
    output = torch.empty(x.shape[0], rows, dtype=x.dtype)
    function("grouped_multiply", x.dtype)(
        output.data_ptr(), x.data_ptr(), weights, counts.data_ptr(), len(weights),
        threads(rows * weights[0].columns),
    )  # fmt: skip
    return output


def linear(x: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    """`multiply` by a weight of floats: `blocks` is what :func:`pack` made of it."""
    return multiply(x, Matrix.of_floats(blocks), bias)


def decoder_layers(
    layers: ctypes.Array[Layer],
    x: Tensor | None,
    residual: Tensor,
    places: Places,
    caches: Caches,
    adapters: ctypes.Array[Adapters] | None = None,
) -> Tensor:
    """What the last of some layers adds to `residual` `[T, H]`, which takes in what those before
    add, and first of all `x`; all have one dtype.

    `adapters` are those of four products a layer; None: nothing is added to any.

    Raises IndexError for a slot or a page that the cache does not have.
    """
    output = torch.empty(residual.shape, dtype=residual.dtype)
    num_tokens, (num_blocks, block_size) = residual.shape[0], caches.shape
    bad = function("decoder_layers", residual.dtype, caches.dtype)(
        output.data_ptr(), None if x is None else x.data_ptr(), residual.data_ptr(),
        layers, adapters, places, caches.keys, caches.values, len(layers), num_blocks, block_size,
        num_tokens, threads(),
    )  # fmt: skip
    if bad >= 0:
        _, _, slots, table, rows, _ = places.tensors
        if bad < num_tokens:
            raise no_such_slot(slots, bad, num_blocks * block_size)
        raise no_such_page(table, rows, bad - num_tokens, num_blocks)
    return output


def next_logits(
    model: Decoder, dtype: torch.dtype, batch: Batch, reads: Tensor, fed: Tensor | None
) -> Tensor:
    """What a decoder says after the tokens that R requests read: `[R, V]`.

    Args:
        dtype: of its cache.
        reads: `[3, R]` int64, of each request its row in the batch, its first position, and how
            many tokens it reads.
        fed: `[R]` int64, the one token that each reads; None: those of the batch.

    Raises IndexError for a token, a position, a slot or a page that there is not.
    """
    num_requests, row = reads.shape[1], reads.stride(0) * reads.itemsize
    logits = torch.empty(num_requests, model.head.rows)
    start = reads.data_ptr()
    bad = function("next_logits", dtype)(
        logits.data_ptr(), model, batch, start, start + row, start + 2 * row,
        None if fed is None else fed.data_ptr(), num_requests, threads(),
    )  # fmt: skip
    if bad >= 0:
        row, first, count = reads[:, bad].tolist()
        raise IndexError(
            f"row {row} of the batch is to read {count} tokens from position {first} on; not all "
            "of them have a token id of the vocabulary, a position, a slot and pages in the cache"
        )
    return logits


def pack_int4(stored: Tensor) -> Tensor:
    """`stored` `[N, K]` int32 of 0 .. 15 as `[N / ROWS, K / 8, ROWS]` words, eight columns in each.

    The even ones lie in the lower half, 4 bits each, the odd ones in the upper half.
    """
    nibbles = stored.view(-1, ROWS, stored.shape[1] // 8, 8).transpose(1, 2)
    words = torch.zeros(nibbles.shape[:-1], dtype=torch.int32)
    for column, place in enumerate(PLACES):
        words |= nibbles[..., column] << place
    return words


def unpack_int4(packed: Tensor) -> Tensor:
    """What was packed: `[N, K]` int32 of 0 .. 15."""
    nibbles = packed.transpose(1, 2)[..., None] >> torch.tensor(PLACES, dtype=torch.int32) & 15
    return nibbles.reshape(-1, packed.shape[1] * 8)


def can_multiply_groups(rows: int, columns: int, group: int) -> bool:
    """Whether `Matrix.of_groups` takes such a weight: whole blocks, and no sum too large."""
    fits = rows % ROWS == 0 and columns % group == 0 and group % 8 == 0 and group <= MOST_GROUP
    return fits and library() is not None


def can_multiply_int8(weight: Tensor) -> bool:
    """Whether `Matrix.of_int8` takes int8 `weight` `[N, K]`: whole blocks, no sum too large."""
    fits = can_pack(weight) and weight.shape[1] <= MOST_INT8_COLUMNS
    return fits and library() is not None


def pack_int8(weight: Tensor) -> Tensor:
    """A copy of int8 `weight` `[N, K]` as `[N / ROWS, K / n, ROWS, n]`; K as a multiple of n.

    The processor multiplies n columns at once, two or four. Its instruction for four may want
    numbers without a sign: then 128 is added to each.
    """
    word, zero = library().int8_word(), library().int8_zero()  # type: ignore[union-attr]
    weight = torch.nn.functional.pad(weight, (0, -weight.shape[1] % word))
    blocks = weight.view(-1, ROWS, weight.shape[1] // word, word).transpose(1, 2)
    blocks = blocks.clone(memory_format=torch.contiguous_format)
    return blocks.bitwise_xor_(-128) if zero else blocks


def unpack_int8(blocks: Tensor, columns: int) -> Tensor:
    """The weight `[N, K]` that was packed."""
    if library().int8_zero():  # type: ignore[union-attr]
        blocks = blocks ^ -128
    return blocks.transpose(1, 2).flatten(2).flatten(0, 1)[:, :columns]
