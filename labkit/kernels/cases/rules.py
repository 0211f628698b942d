"""Which elements of a problem's tensors a kernel may read, may write and must write.

A mask is a bool tensor that broadcasts to its tensor's shape, so that a cache `[blocks, block_size,
heads, dim]` of any size needs only one flag a slot: `[blocks, block_size, 1, 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class TensorRule:
    """What may happen to one tensor.

    Attributes:
        readable: None = every element of an input or of an updated tensor; of an output, what a
            kernel has written before.
        writable: None = every element of an output or of an updated tensor, none of an input.
        required: what must be written. None = every element of an output, else none.
        axes: what the tensor's axes count, for messages: `("block", "offset", "head", "dim")`.
        why: why the other elements may not be read, for messages: "no request owns this slot".
    """

    readable: Tensor | None = None
    writable: Tensor | None = None
    required: Tensor | None = None
    axes: tuple[str, ...] = ()
    why: str = ""


PRODUCT = {
    "x": TensorRule(axes=("token", "column")),
    "weight": TensorRule(axes=("row", "column")),
    "output": TensorRule(axes=("token", "row")),
}
"""Of a problem `x @ weight.T`."""


@dataclass(frozen=True)
class CaseRules:
    """The rules of one case. A tensor without a rule has the rule `TensorRule()`.

    Attributes:
        tensors: the rules by the problem's name of a tensor.
        programs: of a launch too long to be interpreted, the numbers along one axis of the grid
            that are run; None = all.
        axis: which axis of the grid that is.
        program_rows: the rows of each tensor that belong to these programs; None = row i belongs to
            program i.
        rest_is_idle: the programs that do not run would have nothing to do, so that the whole
            problem is judged.
        constants: constants of the launches that differ from the launcher's choice: a kernel must
            be right with any tile.
    """

    tensors: Mapping[str, TensorRule] = field(default_factory=dict)
    programs: tuple[int, ...] | None = None
    axis: int = 0
    program_rows: tuple[int, ...] | None = None
    rest_is_idle: bool = False
    constants: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[int, ...] | None:
        """The rows of each tensor by which the problem is judged; None = all."""
        if self.programs is None or self.rest_is_idle:
            return None
        return self.programs if self.program_rows is None else self.program_rows

    def rule(self, name: str) -> TensorRule:
        return self.tensors.get(name, TensorRule())
