"""Which part of a layer a rank has, in rows and columns and in entries of parameters. No torch.

A linear layer multiplies by a matrix `[out, in]`. Three properties are independent of each other:

    how weights are stored      LinearMethod   bfloat16, or eight 4-bit numbers in a word
    which part a rank has       Layout         the whole matrix, or rows or columns of it
    what is added               Adapters       nothing, or the low-rank products of LoRA adapters

A layout gives a part in rows and columns of the matrix (`Part`). A parameter says how many of them
one of its entries holds (`ParamSpec`). So the slice of a packed parameter follows by division:

    rows 64 .. 128 of the matrix    weight, bfloat16 [out, in]         rows 64 .. 128
                                    zero points, 8 rows a word         entries 8 .. 16
                                    scales of blocks of 32 rows        entries 2 .. 4
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Part:
    """This rank's rows and columns of one projection. A slice may end after the matrix, as for a
    padded vocabulary; the rest is zeros."""

    out: slice
    in_: slice

    @property
    def output_size(self) -> int:
        return self.out.stop - self.out.start

    @property
    def input_size(self) -> int:
        return self.in_.stop - self.in_.start


@dataclass(frozen=True)
class ParamSpec:
    """How a parameter of a linear layer is split over ranks and stacked.

    Args:
        out_dim: its dimension for the matrix's rows; None: it has none.
        in_dim: its dimension for the columns; None: it has none.
        out_pack: how many rows one entry holds; the last entry may hold fewer.
        in_pack: the same for columns.
        per_part: each stacked projection has its own whole tensor, at `parameter[i]`; otherwise
            they follow one another along `out_dim`.
        optional: a checkpoint may leave it out; the parameter then keeps its initial value.

    Source: vllm/model_executor/parameter.py#L353-L394 (PackedvLLMParameter) @ v0.22.1.
    """

    out_dim: int | None = 0
    in_dim: int | None = None
    out_pack: int = 1
    in_pack: int = 1
    per_part: bool = False
    optional: bool = False

    def entries(self, part: Part) -> dict[int, slice]:
        """For each dimension that is split, the entries that hold `part`.

        Raises ValueError if the part begins inside an entry, because a part of a word cannot be
        loaded.
        """
        cuts = [(self.out_dim, part.out, self.out_pack), (self.in_dim, part.in_, self.in_pack)]
        return {dim: _divide(rows, pack) for dim, rows, pack in cuts if dim is not None}


def _divide(rows: slice, pack: int) -> slice:
    if rows.start % pack:
        raise ValueError(
            f"a part begins at {rows.start}, inside a group of {pack} that is stored as one "
            "entry; choose a smaller tensor_parallel_size, or a smaller group size"
        )
    return slice(rows.start // pack, -(-rows.stop // pack))


class Layout(Protocol):
    """Which part of a layer this rank has, and how the ranks' results are combined."""

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the bias to its result."""

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        """This rank's part of each stacked projection, in their order."""

    def finish(self, y: Tensor) -> Tensor:
        """The layer's result from this rank's `y`; may communicate with the other ranks."""


class EmbeddingLayout(Layout, Protocol):
    """Which rows of an embedding this rank has."""

    def lookup(self, input_ids: Tensor, weight: Tensor) -> Tensor:
        """The vectors `[T, H]` of `[T]` tokens; `weight` has only this rank's rows."""


class Whole:
    """This rank has the whole layer."""

    adds_bias = True

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        return [Part(slice(0, size), slice(0, input_size)) for size in output_sizes]

    def finish(self, y: Tensor) -> Tensor:
        return y


WHOLE = Whole()


class Stage(NamedTuple):
    """The layers of one pipeline stage."""

    start: int
    end: int
    """The number after the last layer."""
    num_layers: int
    """Of the whole model."""

    @property
    def is_first(self) -> bool:
        """Whether this stage has the embedding."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the logits."""
        return self.end == self.num_layers

    def __contains__(self, layer: object) -> bool:
        return layer in range(self.start, self.end)


class ExpertPlacement(Protocol):
    """Which experts of a layer this rank has, and how rows reach the experts of other ranks."""

    num_physical: int
    """The number of places for experts on all ranks together."""

    @property
    def local_experts(self) -> list[int]:
        """The expert in each place of this rank; a frequently used expert may have several
        places."""

    def to_places(self, ids: Tensor) -> Tensor:
        """The place, on any rank, for each pair of a token and an expert `[T, k]`."""

    def own_tokens(self, x: Tensor) -> Tensor:
        """The rows of `x` `[T, H]` that this rank computes."""

    def gather(self, y: Tensor, num_tokens: int) -> Tensor:
        """The results of all ranks `[T, H]`, from this rank's results `y`."""

    def exchange(
        self, rows: Tensor, places: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The result of each row from the expert in its place, `[P, H] -> [P, H]`; `places` is
        sorted."""


class Parallel(Protocol):
    """The layouts of one rank's layers; one method for each role of a layer."""

    def stage(self, num_layers: int) -> Stage:
        """Which of the model's layers this rank has."""

    def column(self) -> Layout:
        """The rows of each projection are split; nothing is exchanged."""

    def qkv(self, num_heads: int, num_kv_heads: int) -> Layout:
        """Rows are split by whole heads; a KV head may be on several ranks."""

    def row(self) -> Layout:
        """Columns are split; the partial sums are added."""

    def experts(self, num_experts: int) -> ExpertPlacement | None:
        """How a layer's experts are distributed; None: each rank has a part of every expert."""

    def vocab(self, vocab_size: int) -> Layout:
        """Rows are split; the logits of all ranks are gathered."""

    def embedding(self, vocab_size: int) -> Layout:
        """Rows are split as by `vocab`; the looked-up vectors are added."""


class Single:
    """The only rank, which has everything."""

    def stage(self, num_layers: int) -> Stage:
        return Stage(0, num_layers, num_layers)

    def column(self) -> Layout:
        return WHOLE

    def qkv(self, num_heads: int, num_kv_heads: int) -> Layout:
        return WHOLE

    def row(self) -> Layout:
        return WHOLE

    def experts(self, num_experts: int) -> None:
        return None

    def vocab(self, vocab_size: int) -> Layout:
        return WHOLE

    def embedding(self, vocab_size: int) -> Layout:
        return WHOLE


SINGLE = Single()
