"""Which way a kernel goes by its constants: `if GROUP == 1`, `if HEAD_DIM == DIM_TILE`.

The compiler sees only the way that a launch takes, and the interpreter takes more for a kernel than
the compiler does. So the checker compiles each way, for which it must know what there is. Nothing
of a submission is run for that: its conditions are read.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Way = tuple[int, bool]
"""The line of a condition, and whether it holds."""
ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
LARGEST = 2**63


def ways(function: ast.FunctionDef, constants: Mapping[str, Any]) -> set[Way]:
    """What the conditions of a kernel come to that these constants decide, of those reached."""
    found = _Ways(function, constants)
    found.follow(function.body)
    return found.taken


class _Ways:
    def __init__(self, function: ast.FunctionDef, constants: Mapping[str, Any]) -> None:
        self.known, self.taken = dict(constants), set[Way]()
        self.assigned = Counter(
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )

    def follow(self, statements: Iterable[ast.stmt]) -> None:
        """Go through some statements as the compiler does."""
        for node in statements:
            if isinstance(node, ast.If):
                holds = self._decide(node.test)
                self.follow(node.body if holds is not False else [])
                self.follow(node.orelse if not holds else [])
            elif isinstance(node, (ast.For, ast.While)):
                self.follow(node.body)
            else:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.IfExp):
                        self._decide(inner.test)
                if isinstance(node, (ast.Assign, ast.AnnAssign)):
                    self._remember(node)

    def _decide(self, test: ast.expr) -> bool | None:
        """Whether a condition holds; None if only a run can tell."""
        value = self._value(test)
        if value is None:
            return None
        self.taken.add((test.lineno, bool(value)))
        return bool(value)

    def _remember(self, node: ast.Assign | ast.AnnAssign) -> None:
        """A name that is given a constant, once."""
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and self.assigned[target.id] == 1 and node.value:
            self.known[target.id] = self._value(node.value)

    def _value(self, node: ast.expr) -> Any:
        """A number that is known without a run, else None."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, (bool, int, float)) else None
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._value(node.operand)
            return None if value is None else not value
        if isinstance(node, ast.BinOp):
            return self._computed(node.op, node.left, node.right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._computed(node.ops[0], node.left, node.comparators[0])
        if isinstance(node, ast.BoolOp):
            values = [self._value(value) for value in node.values]
            if None in values:
                return None
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.IfExp):
            holds = self._value(node.test)
            return None if holds is None else self._value(node.body if holds else node.orelse)
        return None

    def _computed(self, kind: ast.AST, left: ast.expr, right: ast.expr) -> Any:
        a, b = self._value(left), self._value(right)
        apply = ARITHMETIC.get(type(kind))
        if (
            a is None
            or b is None
            or apply is None
            or (b == 0 and type(kind) in (ast.FloorDiv, ast.Mod))
        ):
            return None
        result = apply(a, b)
        return result if abs(result) < LARGEST else None
