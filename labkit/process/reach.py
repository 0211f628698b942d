"""Which of the learner's functions were entered, so that a test need not run again while all that
it entered is as it was.

The overlay marks a learner's module when it loads it: each function begins with a call of `enter`.
A test that has passed without entering a function does not notice what is written in there, since
it runs alike up to there and there it never comes. What stands outside of functions, with their
names, parameters and decorators, every test may notice.

The variable LABKIT_REACH names a file, to which any process but the one that asks writes what it
has entered, a line each.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from typing import Any

VARIABLE = "LABKIT_REACH"
"""If it is set, the overlay marks what it loads."""
NAME = "__labkit_enter__"
Function = ast.FunctionDef | ast.AsyncFunctionDef
entered: set[str] = set()
_asking = 0


def asking() -> None:
    """From now on this process looks into `entered` by itself; those it starts write the file."""
    global _asking
    _asking = os.getpid()


def taken() -> set[str]:
    """What has been entered since the last call."""
    found = set(entered)
    entered.clear()
    return found


def enter(name: str) -> None:
    """Remember "package.module:Class.function"."""
    if name in entered:
        return
    entered.add(name)
    if os.getpid() != _asking and VARIABLE in os.environ:
        with open(os.environ[VARIABLE], "a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def enter_whole(module: str) -> None:
    """Remember a module that could not be marked: any of its functions may be entered."""
    enter(f"{module}:*")


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions and methods of a module by qualified name; those inside of functions belong to
    them."""

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, Function):
                yield prefix + node.name, node

    yield from visit(tree.body, "")


def marked(data: bytes, path: str, module: str) -> ast.Module:
    """A module's syntax tree with a call of `enter` at the beginning of each function, and each
    line where it was.

    Raises:
        SyntaxError: it is not Python.
        RecursionError: it is nested too deeply, as in a chain of a thousand `elif`.
    """
    tree = ast.parse(data, path)
    for name, node in functions(tree):
        first = node.body[0]
        has_doc = ast.get_docstring(node, clean=False) is not None
        call = ast.Expr(
            ast.Call(ast.Name(NAME, ast.Load()), [ast.Constant(f"{module}:{name}")], [])
        )
        node.body.insert(int(has_doc), ast.copy_location(call, first))
        ast.fix_missing_locations(node.body[int(has_doc)])
    return tree


def watch_kernels(namespace: dict[str, Any], module: str) -> None:
    """Triton's interpreter reads a kernel's text anew, without the marks: note each time that it
    asks for the kernel."""
    for name, kernel in namespace.items():
        rewrite = getattr(kernel, "rewrite", None)
        if type(kernel).__name__ == "InterpretedFunction" and callable(rewrite):
            kernel.rewrite = _noted(f"{module}:{name}", rewrite)


def _noted(name: str, rewrite: Any) -> Any:
    def noting() -> Any:
        enter(name)
        return rewrite()

    return noting
