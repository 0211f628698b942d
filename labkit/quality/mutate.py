"""Small wrong changes of a function, made by rule: what a suite should notice.

Unlike the named mistakes in `tests/corpora/mutants`, these are not chosen by hand, so they
say what the suite misses that no author thought of. One change at a time: a comparison,
an operator, a constant, a condition, an argument, or a statement left out. Text for humans
(messages of exceptions and assertions, docstrings) is left alone.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.course import source
from labkit.course.manifest import Phase

COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITE = {
    "min": "max", "max": "min", "any": "all", "all": "any", "append": "appendleft",
    "popleft": "pop", "appendleft": "append", "extendleft": "extend", "argmax": "argmin",
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One change of one graded function.

    Attributes:
        name: "Scheduler._preempt: `x += 1` -> `x -= 1`"; stays the same when lines move.
        text: the whole module with it.
    """

    task: str
    module: str
    function: str
    name: str
    text: str


def mutations(phase: Phase) -> list[Mutation]:
    """All changes of all graded functions of a phase, in the order of the files."""
    return [
        mutation
        for module in phase.modules
        for function, task in phase.holes(module).items()
        for mutation in of_function(
            phase.reference_file(module).read_text(encoding="utf-8"), module, function, task.id
        )
    ]


def of_function(text: str, module: str, name: str, task: str) -> Iterator[Mutation]:
    """All changes of one function of a module.

    Raises:
        labkit.course.source.SourceError: the module has no such function.
    """
    statements = source.find(text, name, module).statements
    seen: Counter[str] = Counter()
    for path, old, new in changes(statements):
        body = _replaced(statements, path, new)
        label = f"{name}: `{_short(old)}` -> `{_short(new)}`"
        seen[label] += 1
        if seen[label] > 1:
            label += f" ({seen[label]})"
        changed = source.replace_body(text, name, "\n".join(map(ast.unparse, body)))
        yield Mutation(task, module, name, label, changed)


Path = tuple[str | int, ...]


def changes(statements: list[ast.stmt]) -> Iterator[tuple[Path, ast.AST, ast.AST]]:
    """(where, node, other node) for each change; `where` leads from the list of statements."""

    def visit(node: ast.AST, path: Path) -> Iterator[tuple[Path, ast.AST, ast.AST]]:
        for other in variants(node):
            yield path, node, other
        if isinstance(node, ast.Raise | ast.JoinedStr):
            return  # what a message says is not what is graded
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "msg", "ctx"):
                continue
            for index, child in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(child, ast.AST):
                    step: Path = (field, index) if isinstance(value, list) else (field,)
                    yield from visit(child, (*path, *step))

    for index, statement in enumerate(statements):
        yield from visit(statement, (index,))


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Other nodes that could stand here by mistake."""
    if isinstance(node, ast.Compare):
        yield from _compared(node)
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        yield from node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constant(node)
    elif isinstance(node, ast.Call):
        yield from _called(node)
    elif isinstance(node, ast.Slice):
        yield from (_with(node, **{end: None}) for end in ("lower", "upper") if getattr(node, end))
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    if isinstance(node, ast.stmt):
        yield from _statements(node)


def _compared(node: ast.Compare) -> Iterator[ast.AST]:
    for index, operator in enumerate(node.ops):
        for other in COMPARE[type(operator)]:
            yield _with(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])


def _other_constant(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        if node.value > 1:
            yield ast.Constant(node.value - 1)


def _called(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in OPPOSITE:
        yield _with(node, func=ast.Name(OPPOSITE[function.id], ast.Load()))
    if isinstance(function, ast.Attribute) and function.attr in OPPOSITE:
        yield _with(node, func=_with(function, attr=OPPOSITE[function.attr]))
    if isinstance(function, ast.Name) and function.id in ("reversed", "list", "sorted", "tuple"):
        yield from node.args[:1]
    for index in range(len(node.keywords)):
        yield _with(node, keywords=node.keywords[:index] + node.keywords[index + 1 :])


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    """A statement left out, a condition that always or never holds, a loop that goes on or ends."""
    if isinstance(node, ast.If | ast.While):
        yield _with(node, test=ast.Constant(False))
        if isinstance(node, ast.If):
            yield _with(node, test=ast.Constant(True))
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Return):
        if node.value is not None and not _is_none(node.value):
            yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr | ast.AugAssign | ast.Delete | ast.Raise):
        yield ast.Pass()
    elif isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple):
        yield ast.Pass()  # without a local name's first value nothing would run at all


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A shallow copy with some fields changed."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _replaced(statements: list[ast.stmt], path: Path, new: ast.AST) -> list[ast.stmt]:
    """A deep copy of the statements with `new` at `path`."""
    body = copy.deepcopy(statements)
    place: object = body
    for step in path[:-1]:
        place = place[step] if isinstance(step, int) else getattr(place, step)  # type: ignore[index]
    last = path[-1]
    if isinstance(last, int):
        place[last] = new  # type: ignore[index]
    else:
        setattr(place, last, new)
    return body


def _short(node: ast.AST) -> str:
    """The first line of a node as source."""
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))
    first, _, rest = text.partition("\n")
    return f"{first} …" if rest else first
