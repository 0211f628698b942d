"""What Python takes and is hardly ever meant: a loop that returns in its first round, `=+`, an
error that is made and not raised, a copy that is not kept. Told beside a test that has failed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import Exercise, Phase
from labkit.course.skeleton import is_kernel, is_todo, todo_in

Definition = ast.FunctionDef | ast.AsyncFunctionDef
ENDS = ast.Return | ast.Raise | ast.Continue | ast.Break
LOOPS = ast.For | ast.AsyncFor | ast.While
NOTHING = ast.Compare | ast.BinOp | ast.BoolOp | ast.Name | ast.Attribute | ast.Subscript
"""What does nothing where it stands alone on its line."""
CHANGES = set("append appendleft add clear extend insert pop remove reverse sort update".split())
COPIES = set(
    "astype clamp clone contiguous flatten float index_put int long lower lstrip masked_fill"
    " permute removeprefix removesuffix reshape rstrip squeeze strip transpose unsqueeze"
    " upper".split()
)
"""Methods that leave their object as it is and return a changed copy."""
LENT = {"Sequence", "Mapping", "Collection", "Iterable"}
"""A parameter of such a type is promised not to be changed."""
FOREIGN = r"(torch|np|numpy|math|F)\."
KINDS = {ast.List: "list", ast.ListComp: "list", ast.Set: "set", ast.SetComp: "set",
         ast.Dict: "dict", ast.DictComp: "dict", ast.Tuple: "tuple"}  # fmt: skip
MAKERS = {"sorted": "list"} | {
    name: name for name in "list set dict tuple deque OrderedDict defaultdict frozenset".split()
}


@dataclass(frozen=True)
class Slip:
    """One of them: the function that it is in, its line in the file, and what to say.

    Attributes:
        elsewhere: what comes of it is noticed in another function.
    """

    function: str
    line: int
    said: str
    elsewhere: bool = False


def slips(phase: Phase, exercise: Exercise) -> list[Slip]:
    """Those in the functions of a task, in their order."""
    try:
        text = read_python(phase.lab_file(exercise.module))
        known = source.functions(text)
    except (OSError, SyntaxError):  # the reference is judged, whatever lies in labs
        return []
    names = [name for name in exercise.functions if name in known]
    return [slip for name in names for slip in of_function(text, name, known[name].node)]


def of_function(text: str, name: str, node: Definition) -> list[Slip]:
    """Those of one function of a module."""
    found = [Slip(name, line, said) for line, said in _found(node)]
    found += [Slip(name, line, said, True) for line, said in _other_kinds(text, name, node)]
    return sorted(found, key=lambda slip: slip.line)


def _found(node: Definition) -> Iterator[tuple[int, str]]:
    yield from _lent(node)
    yield from _never_read(node)
    if isinstance(node, ast.FunctionDef) and is_kernel(node):
        yield from _unknown_to_kernels(node)
    gives_errors = "Error" in _written(node.returns) or "Exception" in _written(node.returns)
    for part in ast.walk(node):
        error = _made_error(part.value) if isinstance(part, ast.Return) else ""
        if isinstance(part, ast.Return) and error and not gives_errors:
            yield part.lineno, f"line {part.lineno} returns `{error}`: is a `raise` meant?"
        if isinstance(part, ast.Expr):
            yield from _without_effect(part)
        yield from _power(part)
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.UnaryOp):
            yield from _assigned_plus(part, part.value)
        if isinstance(part, LOOPS):
            yield from _ends_at_once(part, node)
        for block in ("body", "orelse", "finalbody"):
            yield from _never_reached(getattr(part, block, None))


def _written(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation else ""


def _made_error(value: ast.expr | None) -> str:
    """ "ValueError" of `ValueError("...")`; "" of anything else."""
    name = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    return name if name.isidentifier() and name.endswith(("Error", "Exception")) else ""


def _never_read(node: Definition) -> Iterator[tuple[int, str]]:
    """A name that is set anew, and not read from there on, nor in another round of a loop around
    it: what it named before was to be changed."""
    given = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    loops = [part for part in ast.walk(node) if isinstance(part, LOOPS)]
    for part in (each for each in ast.walk(node) if isinstance(each, ast.Assign)):
        target, line = part.targets[0], part.lineno
        if not isinstance(target, ast.Name):
            continue
        same = [each for each in names if each.id == target.id]
        stored = [each.lineno for each in same if isinstance(each.ctx, ast.Store)]
        around = [
            each.lineno
            for each in loops
            if each.lineno < line <= (each.end_lineno or 0) and not _sets(each, target.id)
        ]
        own = set() if around else {id(each) for each in ast.walk(part)}
        later = [
            each for each in same if each.lineno >= min([line, *around]) and id(each) not in own
        ]
        is_read = any(not isinstance(each.ctx, ast.Store) for each in later)
        if not is_read and (target.id in given or min(stored) < line):
            what = f"line {line} gives the name `{target.id}` to something that nothing reads"
            yield line, f"{what}; what had the name before stays as it was."


def _sets(loop: ast.For | ast.AsyncFor | ast.While, name: str) -> bool:
    """Whether each round begins with another value of that name."""
    parts = ast.walk(loop.target) if not isinstance(loop, ast.While) else ()
    return any(isinstance(part, ast.Name) and part.id == name for part in parts)


def _power(part: ast.AST) -> Iterator[tuple[int, str]]:
    """`2 ^ n`, as it is written elsewhere."""
    if not (isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitXor)):
        return
    if isinstance(part.left, ast.Constant) and part.left.value in (2, 10):
        said = f"`{ast.unparse(part)}` in line {part.lineno} is an exclusive or"
        yield part.lineno, f"{said}; a power is written with `**`."


def _unknown_to_kernels(node: Definition) -> Iterator[tuple[int, str]]:
    """Functions of Python, PyTorch and NumPy: a kernel has Triton's."""
    for part in ast.walk(node):
        name = ast.unparse(part.func) if isinstance(part, ast.Call) else ""
        if name in {"all", "any", "pow", "round", "sorted", "sum"} or re.match(FOREIGN, name):
            line = part.lineno  # type: ignore[attr-defined]
            yield line, f"line {line} calls `{name}`, which no kernel knows: look for one in `tl`."


def _method(value: ast.AST) -> str:
    """ "append" of `items.append(1)`."""
    is_method = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    return value.func.attr if is_method else ""  # type: ignore[attr-defined]


def _without_effect(statement: ast.Expr) -> Iterator[tuple[int, str]]:
    value, line = statement.value, statement.lineno
    if error := _made_error(value):
        yield line, f"line {line} makes a `{error}` and does not raise it: put `raise` before it."
    elif isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.Eq):
        yield line, f"line {line} compares and drops the answer; a single `=` sets a value."
    elif isinstance(value, ast.Attribute):
        yield line, f"line {line} names `{value.attr}` and does not call it: are its `()` missing?"
    elif isinstance(value, NOTHING):
        yield line, f"line {line} computes a value that nothing keeps: is a `return` meant?"
    elif (method := _method(value)) in COPIES:
        yield line, f"`{method}` in line {line} returns a changed copy, and nothing keeps it."


def _assigned_plus(node: ast.Assign, value: ast.UnaryOp) -> Iterator[tuple[int, str]]:
    what = ast.unparse(node.targets[0])
    if isinstance(value.op, ast.UAdd) and ast.unparse(value.operand) != what:  # a Counter's `+x`
        yield node.lineno, f"line {node.lineno} sets {what} anew; `{what} += …` adds to it."


def _ends_at_once(
    loop: ast.For | ast.AsyncFor | ast.While, around: Definition
) -> Iterator[tuple[int, str]]:
    """A loop whose last line leaves it, whatever has come before. Where something follows the loop,
    or the line is all that it has, the first round is most often the only one that is wanted."""
    last = loop.body[-1]
    goes_on = any(isinstance(part, ast.Continue) for part in ast.walk(loop))
    is_meant = len(loop.body) == 1 or loop is not around.body[-1]
    if isinstance(last, ast.Return) and not goes_on and not is_meant:
        yield (
            last.lineno,
            f"the `return` in line {last.lineno} ends the loop of line {loop.lineno} in its first"
            " round: is it indented too far?",
        )


def _never_reached(block: object) -> Iterator[tuple[int, str]]:
    statements = block if isinstance(block, list) else []
    for before, after in pairwise(statements):
        if isinstance(before, ENDS) and not is_todo(todo_in(ast.unparse(after))):
            word = type(before).__name__.lower()
            what = f"line {after.lineno} is never reached: it stands behind the `{word}` of line"
            yield after.lineno, f"{what} {before.lineno}."
            return


# ---------------------------------------------------------------- what belongs to the caller
def _lent(node: Definition) -> Iterator[tuple[int, str]]:
    """Where a function changes what it was only lent: a parameter that is a Sequence or the like,
    or a tensor where another is returned. By their own names alone: not everything is found. A
    docstring that says "in place" lends nothing."""
    if "in place" in (ast.get_docstring(node) or ""):
        return
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    aliases = {each.arg: each.arg for each in arguments if _is_lent(each, node)}
    tensors = {each.arg for each in arguments if _written(each.annotation) == "Tensor"}
    for part in sorted(ast.walk(node), key=lambda each: getattr(each, "lineno", 0)):
        name, method = _changed(part)
        changed = aliases.get(name, "")
        if method and (method in CHANGES) == (changed in tensors):
            continue  # a tensor's own end in a "_", and its `sort` returns a copy
        if changed:
            line = part.lineno  # type: ignore[attr-defined]
            yield (
                line,
                f"line {line} changes `{changed}`, which is the caller's: make a copy first.",
            )
            return
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            of = part.value.id if isinstance(part.value, ast.Name) else ""
            aliases[part.targets[0].id] = aliases.get(of, "")


def _is_lent(argument: ast.arg, node: Definition) -> bool:
    kind = _written(argument.annotation).partition("[")[0]
    return kind in LENT or (kind == "Tensor" == _written(node.returns))


def _changed(part: ast.AST) -> tuple[str, str]:
    """("items", "append") of `items.append(1)`; ("items", "") of `items += [1]`, `items[0] = 1` and
    `del items[0]`; ("", "") of what changes nothing."""
    target: ast.AST | None = None
    method = ""
    if isinstance(part, ast.AugAssign):
        target = part.target
    elif isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store | ast.Del):
        target = part
    elif (method := _method(part)) in CHANGES or re.fullmatch(r"[a-z]\w*_", method):
        target = part.func.value  # type: ignore[attr-defined]
    if isinstance(target, ast.Subscript):
        target = target.value
    return (target.id, method) if isinstance(target, ast.Name) else ("", "")


# ---------------------------------------------------------------- what an object keeps
def _other_kinds(text: str, name: str, node: Definition) -> Iterator[tuple[int, str]]:
    """Where a method makes another kind of an attribute than the class begins with: a list of a
    deque. The next method that uses it fails, and seems to be at fault."""
    first = source.functions(text).get(f"{name.rpartition('.')[0]}.__init__")
    if first is None or first.node is node:
        return
    begun = {what: kind for what, kind, _ in _kept(first.node)}
    for what, kind, line in _kept(node):
        if begun.get(what, kind) != kind:
            was = f"line {line} makes a {kind} of `{what}`, which is a {begun[what]} in `__init__`"
            yield line, f"{was}: other methods rely on that."


def _kept(node: Definition) -> Iterator[tuple[str, str, int]]:
    """("self._queue", "deque", line) for each attribute that is set to what is seen to be one."""
    for part in ast.walk(node):
        if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
            targets: Sequence[ast.expr] = (
                part.targets if isinstance(part, ast.Assign) else [part.target]
            )
            kind = KINDS.get(type(part.value), "")
            if isinstance(part.value, ast.Call):
                kind = MAKERS.get(ast.unparse(part.value.func).rpartition(".")[2], "")
            for target in targets if kind else ():
                if ast.unparse(target).startswith("self.") and isinstance(target, ast.Attribute):
                    yield ast.unparse(target), kind, part.lineno
