"""Find functions in Python source and replace their bodies, line by line, so that every other
character stays as it was."""

from __future__ import annotations

import ast
import io
import textwrap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


class SourceError(ValueError):
    """A source file does not hold the function that was asked for, or not in a shape that can be
    replaced."""


class UnresolvedMerge(SyntaxError):
    """Marks of a merge stand in the text; `lineno` is that of the first."""


class NestedTooDeeply(SyntaxError):
    """More levels than Python can read; `lineno` is None: it is about the whole file."""


def lines_of(text: str) -> list[str]:
    """The lines of a text, each with its end, as Python and editors count them. `str.splitlines`
    would begin one at a form feed or a U+2028 as well, and every number behind it would be off."""
    return list(io.StringIO(text))


def indented(text: str, indent: str) -> str:
    """As `textwrap.indent`, with the lines of `lines_of`: a U+2028 in a string stays alone."""
    return "".join(indent + line if line.strip() else line for line in lines_of(text))


def unresolved_merge(text: str, broken: bool = False) -> int:
    """The line of the first mark that a merge has left, also one that was left by
    mistake; 0 if there is none.

    Args:
        broken: the text is not Python, so that the marks between the two sides count as well. In a
            docstring they may underline a title.
    """
    marks = ("<<<<<<< ", ">>>>>>> ", *(("||||||| ",) if broken else ()))
    for number, line in enumerate(lines_of(text), 1):
        if line.startswith(marks) or (broken and line.rstrip() in ("=======", "|||||||")):
            return number
    return 0


def parse(text: str, filename: str = "<source>") -> ast.Module:
    """As `ast.parse`, but what a merge has left is said to be that.

    Raises:
        SyntaxError: the text is not Python; NestedTooDeeply: it may be, but it cannot be read.
    """
    try:
        return ast.parse(text, filename)
    except (RecursionError, MemoryError):
        said = "nested too deeply for Python: a chain of thousands of `elif`, operators or brackets"
        raise NestedTooDeeply(said, (filename, None, None, None)) from None
    except SyntaxError:
        line = unresolved_merge(text, broken=True)
        if not line:
            raise
        said = f"line {line} holds an unresolved merge"
        raise UnresolvedMerge(said, (filename, line, 1, None)) from None


def compiled(text: str, filename: str = "<source>") -> list[tuple[int, str]]:
    """Go further than `parse`: an `await` outside of an `async def`, a `return` outside of any
    function and the like are found by Python's compiler alone.

    Returns:
        (line, what it warns of): `is` beside a number, a pair that is asserted, "\\d" in a text.

    Raises:
        SyntaxError: the text is not Python.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            compile(parse(text, filename), filename, "exec", dont_inherit=True)
        except (RecursionError, MemoryError):
            pass  # judged all the same: `labkit.process.overlay` compiles it in another way
        except SyntaxError as error:
            lines = lines_of(text)
            error.text = error.text or (lines[error.lineno - 1] if error.lineno else None)
            raise
    kinds = SyntaxWarning | DeprecationWarning
    told = [w for w in caught if isinstance(w.message, kinds) and w.filename == filename]
    return sorted({(w.lineno, str(w.message)) for w in told})


@dataclass(frozen=True)
class Function:
    """Where one function stands in its file; line numbers count from 1, as editors do.

    Attributes:
        name: qualified name, "Scheduler._preempt".
        node: its syntax tree.
        body_line: first line after signature and docstring.
        end_line: last line of the body.
    """

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    body_line: int
    end_line: int

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def first_line(self) -> int:
        """The line of the first decorator, or of `def`."""
        return min([self.node.lineno, *(d.lineno for d in self.node.decorator_list)])

    @property
    def statements(self) -> list[ast.stmt]:
        """The body without its docstring."""
        return self.node.body[1:] if ast.get_docstring(self.node) is not None else self.node.body


@lru_cache(maxsize=64)
def functions(text: str, filename: str = "<source>") -> Mapping[str, Function]:
    """Every function and method of a module by qualified name (functions inside functions left
    out). Kept, since one screen asks many times for functions of the same few files.

    Of several definitions with one name (a property and its setter) the first counts.

    Raises:
        SyntaxError: the text is not Python.
    """
    found: dict[str, Function] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                has_doc = ast.get_docstring(node) is not None
                start = (
                    (node.body[0].end_lineno or 0) + 1 if has_doc else _header_end(node, text) + 1
                )
                name = prefix + node.name
                found.setdefault(name, Function(name, node, start, node.end_lineno or start))

    visit(parse(text, filename).body, "")
    return found


def find(text: str, name: str, filename: str = "<source>") -> Function:
    """One function by qualified name.

    Raises:
        SourceError: it is not there.
    """
    known = functions(text, filename)
    if name not in known:
        raise SourceError(f"{filename} has no function {name!r}")
    return known[name]


def defined_again(text: str, name: str) -> int:
    """The line of the definition that replaces a function's first one; 0 if there is none. A
    property's setter replaces nothing."""
    *classes, own = name.split(".")
    body = parse(text).body
    for part in classes:
        inside = [node for node in body if isinstance(node, ast.ClassDef) and node.name == part]
        body = [node for each in inside for node in each.body]
    lines = [
        node.lineno
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == own
        and not any(isinstance(above, ast.Attribute) for above in node.decorator_list)
    ]
    return lines[-1] if len(lines) > 1 else 0


def _header_end(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> int:
    """Last line of `def …:`; comments between it and the first statement belong to the body."""
    lines = lines_of(text)
    line = node.body[0].lineno - 1
    while line > node.lineno and (
        not lines[line - 1].strip() or lines[line - 1].lstrip()[0] == "#"
    ):
        line -= 1
    return line


def function_text(text: str, function: Function) -> str:
    """The function's lines, decorators included, dedented."""
    return _dedented(text, function.first_line, function.end_line)


def body_text(text: str, function: Function) -> str:
    """The body's lines without the docstring, dedented."""
    return _dedented(text, function.body_line, function.end_line)


def _dedented(text: str, first: int, last: int) -> str:
    return textwrap.dedent("".join(lines_of(text)[first - 1 : last]).removesuffix("\n"))


def replace_body(text: str, name: str, body: str, filename: str = "<source>") -> str:
    """Put `body` (not indented) in the place of a function's body; signature and docstring stay.

    Raises:
        SourceError: there is no such function, or its body stands on the line of its `def`.
    """
    function = find(text, name, filename)
    node = function.node
    if not function.statements:
        raise SourceError(f"{filename}: {name} has nothing but a docstring")
    if function.body_line <= node.lineno or node.body[0].lineno == node.lineno:
        raise SourceError(f"{filename}:{node.lineno}: put the body of {name} on a line of its own")
    indent = " " * node.body[0].col_offset
    lines = lines_of(text)
    end = _with_trailing_comments(lines, function.end_line, node.col_offset)
    new = indented(body.strip("\n"), indent) + "\n"
    return "".join(lines[: function.body_line - 1]) + new + "".join(lines[end:])


def replace_function(text: str, name: str, source: str, filename: str = "<source>") -> str:
    """Put `source` (a whole function, not indented) in the place of another one.

    Raises:
        SourceError: there is no such function.
    """
    function = find(text, name, filename)
    lines = lines_of(text)
    end = _with_trailing_comments(lines, function.end_line, function.node.col_offset)
    new = indented(source.strip("\n"), " " * function.node.col_offset) + "\n"
    return "".join(lines[: function.first_line - 1]) + new + "".join(lines[end:])


def put_back(text: str, name: str, blank: str, filename: str = "<source>") -> str:
    """The text with one function as it is in `blank`: in its own place; where it is gone, behind
    the nearest function that stands above it there, or at the end of its class or file.

    Raises:
        SourceError: `blank` does not have it, or its class is gone, too.
    """
    new = function_text(blank, find(blank, name))
    known, family = functions(text, filename), name.rpartition(".")[0]
    if name in known:
        return replace_function(text, name, new, filename)
    above = [each for each in functions(blank) if each.rpartition(".")[0] == family]
    found = [known[each] for each in above[: above.index(name)] if each in known]
    lines = lines_of(text)
    if found:
        column = found[-1].node.col_offset
        line = _with_trailing_comments(lines, found[-1].end_line, column)
    else:
        line, column = _end_of(text, family, filename)
    apart = "\n" if family else "\n\n"
    body = indented(new.strip("\n"), " " * column) + "\n"
    return "".join([*lines[:line], apart, body, *lines[line:]])


def has_class_of(text: str, name: str) -> bool:
    """Whether a function of that qualified name has a place in the text."""
    try:
        _end_of(text, name.rpartition(".")[0], "")
    except SourceError:
        return False
    return True


def _end_of(text: str, family: str, filename: str) -> tuple[int, int]:
    """The last line of a class, "Outer.Inner", or of the file for "", and where what is in it
    begins."""
    body, line, column = parse(text, filename).body, len(lines_of(text)), 0
    for name in filter(None, family.split(".")):
        inner = (node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
        found = next(inner, None)
        if not found:
            raise SourceError(f"{filename} has no class {family!r}")
        body, line, column = found.body, found.end_lineno or 0, found.body[0].col_offset
    return line, column


def _with_trailing_comments(lines: list[str], end: int, column: int) -> int:
    """Move `end` past comment lines that stand deeper than `def`: they belong to the body."""
    last = end
    for index in range(end, len(lines)):
        stripped = lines[index].strip()
        if stripped.startswith("#") and len(lines[index]) - len(lines[index].lstrip()) > column:
            last = index + 1
        elif stripped:
            break
    return last
