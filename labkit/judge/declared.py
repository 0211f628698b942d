"""What a learner has changed about the first lines of a function: its parameters, its decorators,
or that it is a plain function. No test says so by itself: it only meets what comes of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import Exercise, Phase

Definition = ast.FunctionDef | ast.AsyncFunctionDef

IN_PLACE = {"append", "extend", "insert", "reverse", "sort"}


def declared_otherwise(phase: Phase, exercise: Exercise) -> list[str]:
    """One sentence for each difference that the functions of a task have from the given ones."""
    return [said for sentences in changed(phase, exercise).values() for said in sentences]


def changed(phase: Phase, exercise: Exercise) -> dict[str, list[str]]:
    """The functions of a task that are declared otherwise than the given ones -> how."""
    files = (phase.lab_file(exercise.module), phase.reference_file(exercise.module))
    try:
        texts = [read_python(file) for file in files]
        mine, theirs = map(source.functions, texts)
    except (OSError, SyntaxError):  # the reference is judged, whatever lies in labs
        return {}
    names = [name for name in exercise.functions if name in mine and name in theirs]
    found = {name: list(_differences(name, mine[name].node, theirs[name].node)) for name in names}
    for name in names:
        if line := source.defined_again(texts[0], name):
            found[name].append(f"{name} is defined twice; the one in line {line} counts.")
    return {name: said for name, said in found.items() if said}


def kept_nothing(phase: Phase, exercise: Exercise) -> list[str]:
    """Where a task's functions keep, or give back, what a method returns that only changes its
    list: None."""
    text = read_python(phase.lab_file(exercise.module))
    found = []
    for name, function in source.functions(text).items():
        for node in ast.walk(function.node) if name in exercise.functions else ():
            value = node.value if isinstance(node, ast.Assign | ast.Return) else None
            if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
                continue
            if value.func.attr in IN_PLACE:
                found.append(
                    f"`{value.func.attr}` in line {value.lineno} changes its list and returns None:"
                    " leave it alone on its line."
                )
    return found


def _differences(name: str, mine: Definition, theirs: Definition) -> Iterator[str]:
    nothing_runs = "and nothing in it runs. Here it is a plain"
    if isinstance(mine, ast.AsyncFunctionDef) and isinstance(theirs, ast.FunctionDef):
        yield f"{name} is an `async def`: a call only makes a coroutine, {nothing_runs} `def`."
    if _yields(mine) and not _yields(theirs) and not _gives_one_by_one(theirs):
        yield f"{name} has a `yield`: a call only makes a generator, {nothing_runs} function."
    if _yields(theirs) and (line := _returns(mine) if _yields(mine) else 0):
        yield (
            f"{name} yields, so what its `return` in line {line} gives reaches no caller: "
            "`yield` it, then `return` alone."
        )
    above, given = (list(map(ast.unparse, node.decorator_list)) for node in (mine, theirs))
    for lost in given:
        if lost not in above:
            yield f"{name} has lost its `@{lost}`: put it back above its `def`."
    for new in above:
        if new not in given:
            yield f"{name} has a `@{new}` that was not there: without it?"
    if not _fits(mine.args, theirs.args):
        yield f"{name} takes ({_names(mine.args)}) now; it is called with ({_names(theirs.args)})."


def _gives_one_by_one(node: Definition) -> bool:
    """Whether it may as well be a generator: it promises an Iterator, or an Iterable."""
    promised = ast.unparse(node.returns) if node.returns else ""
    return promised.startswith(("Iterator", "Iterable", "Generator"))


def _yields(node: ast.AST) -> bool:
    """Whether it is a generator; one that it defines inside does not count."""
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in _parts(node))


def _returns(node: ast.AST) -> int:
    """The line of its first `return` with a value; 0 if there is none."""
    found = [p.lineno for p in _parts(node) if isinstance(p, ast.Return) and p.value is not None]
    return min(found, default=0)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """All that a function is made of, without the functions that it defines inside."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, inner):
            yield part
            yield from _parts(part)


def _fits(mine: ast.arguments, theirs: ast.arguments) -> bool:
    """Whether every call of the given function is one of this, by place or by name."""
    ours, given = ([a.arg for a in (*args.posonlyargs, *args.args)] for args in (mine, theirs))
    needed = ours[: len(ours) - len(mine.defaults)]
    keywords, wanted = ([a.arg for a in args.kwonlyargs] for args in (mine, theirs))
    by_place = bool(mine.vararg) or ours[: len(given)] == given
    by_name = bool(mine.kwarg) or set(wanted) <= {*keywords, *ours}
    return by_place and by_name and set(needed) <= set(given)


def _names(args: ast.arguments) -> str:
    """ "self, prompt, *, limit", without types and defaults."""
    names = [a.arg for a in (*args.posonlyargs, *args.args)]
    star = f"*{args.vararg.arg}" if args.vararg else "*" if args.kwonlyargs else ""
    rest = [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ", ".join([*names, *filter(None, [star]), *(a.arg for a in args.kwonlyargs), *rest])
