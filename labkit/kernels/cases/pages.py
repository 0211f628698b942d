"""Pages of keys and values with requests in them, and what makes attention over them hard.

Every cache here is NaN wherever no visible token lies, and every block table ends in an impossible
block: a kernel that looks there and "masks it later" is found out twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases.draw import VAST, Draw, Setup, far_apart, lazy_zeros, unfilled
from labkit.kernels.cases.rules import CaseRules, TensorRule

IMPOSSIBLE_BLOCK = 2**31 - 1
CACHE_AXES = ("block", "offset", "head", "dim")
BIG_CACHE = 2**32 + 2**16  # elements: 32 bits do not count them, signed or not


class Pages:
    """Key and value caches with the contexts of some requests in them, in shuffled blocks.

    Args:
        seq_lens: tokens of each request.
        first_visible: the first position of each that its queries see; None = 0. Blocks in which
            no position is visible belong to no request.
        shared: how many leading blocks all requests have in common.
        num_blocks: None = a few more than are needed. More than 2^31 elements are allocated lazily,
            and the blocks in use lie at the end.
        zero: block 0 is in use, like any other.
    """

    def __init__(
        self,
        draw: Draw,
        dtype: torch.dtype,
        seq_lens: Sequence[int],
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        first_visible: Sequence[int] | None = None,
        shared: int = 0,
        num_blocks: int | None = None,
        zero: bool = False,
    ) -> None:
        self.seq_lens, self.block_size, self.draw = list(seq_lens), block_size, draw
        first_visible = first_visible or [0] * len(seq_lens)
        self.first = list(map(min, first_visible, seq_lens))
        ends = [-(-length // block_size) for length in seq_lens]
        begins = [first // block_size for first in self.first]
        needs = [end - begin for begin, end in zip(begins, ends, strict=True)]
        total = num_blocks or sum(needs) + 4
        free = draw.order(range(max(total - sum(needs) - 3, 1), total))
        free += [0] if zero else []  # the next to be taken
        common, self.width = [free.pop() for _ in range(shared)], max(*ends, 1)
        self.table = torch.full((len(needs), self.width + 2), IMPOSSIBLE_BLOCK, dtype=torch.int32)
        for row, need in enumerate(needs):
            blocks = (common + [free.pop() for _ in range(max(need - shared, 0))])[:need]
            self.table[row, begins[row] : ends[row]] = torch.tensor(blocks, dtype=torch.int32)
        self.table = self.table[:, : self.width]
        self.slots = torch.zeros(total, block_size, dtype=torch.bool)
        for row, length in enumerate(seq_lens):
            position = torch.arange(self.first[row], length)
            blocks_of = self.table[row, position // block_size].long()
            self.slots[blocks_of, position % block_size] = True
        self.key = self._cache(draw, dtype, total, num_kv_heads, head_dim)
        self.value = self._cache(draw, dtype, total, num_kv_heads, head_dim)

    def _cache(self, draw: Draw, dtype: torch.dtype, total: int, heads: int, dim: int) -> Tensor:
        shape = (total, self.block_size, heads, dim)
        big = torch.Size(shape).numel() > 2**31
        cache = lazy_zeros(*shape, dtype=dtype) if big else unfilled(*shape, dtype=dtype)
        cache[self.slots] = draw.normal(int(self.slots.sum()), heads, dim, dtype=dtype)
        return cache

    def place(self, row: int, position: int) -> tuple[int, int]:
        """Block and offset of a request's position."""
        return int(self.table[row, position // self.block_size]), position % self.block_size

    def rules(self) -> dict[str, TensorRule]:
        """Slots are readable where a visible token lies, table entries where a block is."""
        cache = TensorRule(
            readable=self.slots[:, :, None, None],
            axes=CACHE_AXES,
            why="no token that this kernel may see lies in this slot",
        )
        table = TensorRule(
            readable=self.table != IMPOSSIBLE_BLOCK,
            axes=("request", "entry"),
            why="the request has no block there; entries past its last block are garbage",
        )
        return {"key_cache": cache, "value_cache": cache, "block_table": table}


def int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def stored_rules(
    slots: Sequence[int], mapping: Tensor, blocks: int, block_size: int, last_axis: str = "dim"
) -> CaseRules:
    """Rules of a store: `slots` of the caches must be written and nothing else may be; of the new
    tokens those are read whose slot in `mapping` is not -1."""
    required = torch.zeros(blocks * block_size, dtype=torch.bool)
    required[list(slots)] = True
    required = required.view(blocks, block_size, 1, 1)
    cache = TensorRule(
        readable=torch.zeros(1, 1, 1, 1, dtype=torch.bool),
        writable=required,
        required=required,
        axes=(*CACHE_AXES[:3], last_axis),
        why="storing needs nothing of what is in the cache",
    )
    new = TensorRule(
        readable=(mapping >= 0)[:, None, None],
        axes=("token", "head", "dim"),
        why="its slot is -1, so this token is not stored",
    )
    return CaseRules({"key_cache": cache, "value_cache": cache, "key": new, "value": new})


def among(
    many: int, make: Callable[[Draw, torch.dtype], Setup], names: Iterable[str]
) -> Callable[[Draw, torch.dtype], Setup]:
    """The requests of a problem, far from each other among `many`: the first, the last, and some
    that are drawn. Only their programs run. `names`: the tensors that have a row a request.
    """

    def wide(draw: Draw, dtype: torch.dtype) -> Setup:
        problem, rules = make(draw, dtype)
        count = len(problem["seq_lens"])
        middle = sorted(draw.order(range(many // 2, many - 1))[: count - 2])
        places, tensors = [0, *middle, many - 1], dict(rules.tensors)
        for name in names:
            few = problem[name]
            nobodys = {"block_table": IMPOSSIBLE_BLOCK, "seq_lens": 0}.get(name, math.nan)
            if many * few[0].numel() > 2**31:
                problem[name] = lazy_zeros(many, *few.shape[1:], dtype=few.dtype)
            else:
                spread = torch.full((many, few.stride(0)), nobodys, dtype=few.dtype)
                problem[name] = spread[:, : few[0].numel()].view(many, *few.shape[1:])
            problem[name][places] = few
            flags = tensors[name].readable
            shape = [1] * (few.dim() - 1) if flags is None else few.shape[1:]
            rows = torch.zeros(many, *shape, dtype=torch.bool)
            rows[places] = True if flags is None else flags
            why = tensors[name].why or "its program does not run here"
            tensors[name] = replace(tensors[name], readable=rows, why=why)
        rows = torch.zeros(many, 1, 1, dtype=torch.bool)
        rows[places] = True
        axes = tensors["output"].axes
        tensors["output"] = TensorRule(writable=rows, required=rows, axes=axes)
        return problem, replace(rules, tensors=tensors, programs=tuple(places))

    return wide


# ---------------------------------------------------------------- what makes it hard
def far_logits(paged: Pages, problem: dict[str, Any]) -> None:
    """Logits from -1e4 to 1e4 in steps so wide that one key has all the weight of its query.

    Every visible key is a multiple of one direction, every query the same long vector.
    """
    dim = paged.key.shape[-1]
    direction = torch.ones(dim) / dim**0.5
    scale = 1e4 / (problem["scale"] * 100)
    problem["query"].copy_((direction * scale).expand(problem["query"].shape))
    for row, length in enumerate(paged.seq_lens):
        order = [(7 * position + 3) % max(length, 1) for position in range(length)]
        for position, level in enumerate(order):
            key = direction * (200 * (level + 1) / length - 100)
            place = paged.place(row, position)
            if paged.slots[place]:
                paged.key[place] = key.to(paged.key.dtype)


def logits_around(level: float) -> Callable[[Pages, dict[str, Any]], None]:
    """Logits around a number that float32's exp does not survive: around -110 it gives 0, around
    110 infinity. Only a true maximum can be subtracted, and -12,000 lies below what many take for
    one to begin with.

    Every query is the same vector, and every visible key is moved along it. Keys are multiples of
    1/64, so that float32 sums them without rounding.
    """

    def change(paged: Pages, problem: dict[str, Any]) -> None:
        dim = paged.key.shape[-1]
        direction = torch.ones(dim) / dim**0.5
        problem["query"].copy_((direction / problem["scale"]).expand(problem["query"].shape))
        moved = paged.key[paged.slots].float() + level * direction
        paged.key[paged.slots] = ((moved * 64).round() / 64).to(paged.key.dtype)

    return change


low_logits, high_logits = logits_around(-110.0), logits_around(110.0)
deep_logits = logits_around(-12_000.0)  # float32 holds them to 1e-3: enough for bfloat16


def abyss(paged: Pages, problem: dict[str, Any]) -> None:
    """Logits around -3 million, tens apart: far below any finite number that one takes for -inf.

    They are whole numbers and exact, if `scale` is a power of two and the dtype float32; the
    largest has all the weight.
    """
    problem["query"].zero_()[..., 0] = 1 / problem["scale"]
    for row, length in enumerate(paged.seq_lens):
        for position in range(length):
            level = -3_000_000 - 32 * ((7 * position + 2) % length)
            paged.key[paged.place(row, position)][:, 0] = level


def creeping(paged: Pages, problem: dict[str, Any]) -> None:
    """Scores that rise by less than a millionth a token, and values that rise with them.

    No tile's maximum is much above that of the tile before it, yet who does not rescale for so
    little has given the first tokens too much weight in the end.
    """
    problem["query"].zero_()[..., 0] = 1 / problem["scale"]
    for row, length in enumerate(paged.seq_lens):
        for position in range(length):
            place = paged.place(row, position)
            paged.key[place][:, 0] = 2e-3 * position / length
            paged.value[place] += 2 * position / length


def uneven(paged: Pages, problem: dict[str, Any]) -> None:
    """One key has as much weight as all behind the first 32 together, which are alike. It is one of
    the first in every second request, and in the others the last.

    A split over the former adds up to 1, one over the latter to their number: whatever is added to
    such a sum moves weight from one to the other, and so does an exponential to another base. Their
    values have opposite signs.
    """
    problem["query"].zero_()[..., 0] = 1 / problem["scale"]
    for row, length in enumerate(paged.seq_lens):
        for position in range(length):
            place = paged.place(row, position)
            is_loud = position == (length - 1 if row % 2 else 5)
            loud = math.log(max(length - 32, 1))
            paged.key[place][:, 0] = loud if is_loud else -40.0 if position < 32 else 0.0
            paged.value[place] += 3 if is_loud else -3


def faint(paged: Pages, problem: dict[str, Any]) -> None:
    """Five keys, the first in every second request and else the last, have e^12 times the weight of
    any other, of which there are many: who leaves out what weighs little leaves out too much.
    """
    problem["query"].zero_()[..., 0] = 1 / problem["scale"]
    for row, length in enumerate(paged.seq_lens):
        for position in range(length):
            place = paged.place(row, position)
            is_loud = position >= length - 5 if row % 2 else position < 5
            paged.key[place][:, 0] = 0.0 if is_loud else -12.0
            paged.value[place] += 0 if is_loud else 3


def vast(paged: Pages, problem: dict[str, Any]) -> None:
    """Keys and values beyond float16, and queries below it; scores are as always."""
    problem["query"] /= VAST
    for cache in (paged.key, paged.value):
        cache[paged.slots] *= VAST


def levels(tokens: int, heads: int) -> Tensor:
    """-128, 0 or 128 by token and head; each is another one than its neighbour's."""
    return 128.0 * ((torch.arange(tokens)[:, None] + torch.arange(heads)) % 3 - 1)


def apart(paged: Pages, problem: dict[str, Any]) -> None:
    """Scores around -128 for one head or token, around 0 for the next and around 128 for the one
    after: each needs a maximum of its own. They are exact if `scale` is a power of two.
    """
    query = problem["query"]
    query.zero_()[..., 0] = levels(*query.shape[:2]) / problem["scale"]
    key = paged.key[paged.slots]
    key[..., 0] = 1 + (2 * key[..., 0]).round() / 64
    paged.key[paged.slots] = key


def leaning(paged: Pages, problem: dict[str, Any]) -> None:
    """Scores around 40 that hardly differ, of long keys nearly at right angles to their query.

    All queries of a request are the same. What rounds a query or a score to half precision moves
    weight from key to key.
    """
    requests = len(paged.seq_lens)
    starts = problem.get("query_start_loc", torch.arange(requests + 1)).tolist()
    for row, length in enumerate(paged.seq_lens):
        tokens = problem["query"][starts[row] : starts[row + 1]]
        tokens[:] = 2 * tokens[0, 0].clone()
        query = tokens[0, 0].double()
        for position in range(length):
            place = paged.place(row, position)
            key = paged.key[place].double()
            scores = 40 + key[:, 0]
            key *= 6
            along = scores / problem["scale"] - key @ query
            key += along[:, None] * query / query.square().sum()
            paged.key[place] = key.to(paged.key.dtype)


def steady(paged: Pages, problem: dict[str, Any]) -> None:
    """Values around 3: what weights lose by rounding averages out over many keys, and what is
    left of the error is how often the sum itself was rounded.
    """
    paged.value[paged.slots] = (3 + paged.value[paged.slots].float() / 4).to(paged.value.dtype)


def loud_key(paged: Pages, problem: dict[str, Any]) -> None:
    """One key of each request, at a place that is drawn, 20 times as long as the others."""
    for row, length in enumerate(paged.seq_lens):
        if length:
            paged.key[paged.place(row, paged.draw.integer(0, length - 1))] *= 20


def spoilt(paged: Pages, problem: dict[str, Any]) -> None:
    """NaN in one number of a value that all of the first request's tokens see."""
    paged.value[paged.place(0, 1)][0, 1] = torch.nan


def far_queries(paged: Pages, problem: dict[str, Any]) -> None:
    """Queries 2^30 elements apart."""
    problem["query"] = far_apart(problem["query"])


def far_table(paged: Pages, problem: dict[str, Any]) -> None:
    """Rows of the block table 2^30 elements apart."""
    problem["block_table"] = far_apart(problem["block_table"])


def zero_queries(paged: Pages, problem: dict[str, Any]) -> None:
    """Every score is 0: each visible value counts the same."""
    problem["query"].zero_()
