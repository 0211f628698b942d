"""Which part of a layer is here, and how its parameters count it. Plain arithmetic, no torch.

A linear layer multiplies by a matrix `[out, in]`. Three things may change about it, and none of
them knows the others:

    how the numbers are held    LinearMethod   bfloat16, or eight 4-bit numbers in a word
    which part is here          Layout         all of it, or the rows or columns of one rank
    what is added               Adapters       nothing, or the low-rank products of fine-tunes

A layout says its part in rows and columns of the matrix (`Part`); a parameter says how many of
them one of its entries stands for (`ParamSpec`). So a slice of packed numbers is a division:

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
    """The rows and columns of one projection that are here. A slice may end behind the matrix
    (a padded vocabulary): the rest is zeros."""

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
    """How a parameter of a linear layer is cut and stacked.

    Args:
        out_dim: its dimension that runs over the matrix's rows; None: it has none.
        in_dim: its dimension that runs over the columns; None: it has none.
        out_pack: rows that one entry stands for, the last entry perhaps for fewer.
        in_pack: the same for columns.
        per_part: each stacked projection has a whole tensor of its own, at `parameter[i]`;
            otherwise they follow one another along `out_dim`.
        optional: a checkpoint may leave it out; the parameter then keeps its first value.

    Source: vllm/model_executor/parameter.py#L353-L394 (PackedvLLMParameter) @ v0.22.1.
    """

    out_dim: int | None = 0
    in_dim: int | None = None
    out_pack: int = 1
    in_pack: int = 1
    per_part: bool = False
    optional: bool = False

    def entries(self, part: Part) -> dict[int, slice]:
        """For each dimension that is cut, the entries that hold `part`.

        Raises ValueError if the part begins inside an entry: half a word cannot be loaded.
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
    """Which part of a layer is here, and what makes the parts' results one."""

    @property
    def adds_bias(self) -> bool:
        """Whether this part of the result has the bias in it."""

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        """What is here of each stacked projection, in their order."""

    def finish(self, y: Tensor) -> Tensor:
        """The layer's result from this part's `y`, perhaps with the help of the others."""


class EmbeddingLayout(Layout, Protocol):
    """Which rows of an embedding are here."""

    def lookup(self, input_ids: Tensor, weight: Tensor) -> Tensor:
        """The vectors `[T, H]` of `[T]` tokens, where `weight` holds only this part's rows."""


class Whole:
    """All of the layer is here."""

    adds_bias = True

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        return [Part(slice(0, size), slice(0, input_size)) for size in output_sizes]

    def finish(self, y: Tensor) -> Tensor:
        return y


WHOLE = Whole()


class Stage(NamedTuple):
    """The layers that are here, of a model whose layers are spread over stages."""

    start: int
    end: int
    """Behind the last."""
    num_layers: int
    """Of the whole model."""

    @property
    def is_first(self) -> bool:
        """Tokens come in here."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Logits come out here."""
        return self.end == self.num_layers

    def __contains__(self, layer: object) -> bool:
        return layer in range(self.start, self.end)


class ExpertPlacement(Protocol):
    """Which experts of a layer are here, and how rows get to those that are not."""

    num_physical: int
    """Places of all ranks."""

    @property
    def local_experts(self) -> list[int]:
        """The expert of each place that is here; a busy one may have several places."""

    def to_places(self, ids: Tensor) -> Tensor:
        """A place for each pair of token and expert `[T, k]`, on any rank."""

    def own_tokens(self, x: Tensor) -> Tensor:
        """The rows of `x` `[T, H]` that this rank takes care of."""

    def gather(self, y: Tensor, num_tokens: int) -> Tensor:
        """All ranks' results `[T, H]`, by this rank's share `y`."""

    def exchange(
        self, rows: Tensor, places: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Each row's result by the expert in its place, `[P, H] -> [P, H]`; `places` is sorted."""


class Parallel(Protocol):
    """The layouts of one rank's layers; a method for each role that a layer can have."""

    def stage(self, num_layers: int) -> Stage:
        """Which of the model's layers are here."""

    def column(self) -> Layout:
        """Each projection's rows are divided; nothing is exchanged."""

    def qkv(self, num_heads: int, num_kv_heads: int) -> Layout:
        """Rows by whole heads; a KV head may be on several ranks."""

    def row(self) -> Layout:
        """Columns are divided; the partial sums are added."""

    def experts(self, num_experts: int) -> ExpertPlacement | None:
        """How a layer's experts are shared out; None: each rank has its part of every one."""

    def vocab(self, vocab_size: int) -> Layout:
        """Rows are divided; each part's logits are gathered."""

    def embedding(self, vocab_size: int) -> Layout:
        """Rows are divided as by `vocab`; the looked-up vectors are added."""


class Single:
    """One rank that holds everything."""

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
