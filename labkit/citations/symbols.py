"""Where the names of a Python file are defined and used: what citations are held to.

Of a page, a file that is no Python, headings are the names.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labkit.citations.published import as_tagged

Span = tuple[int, int]
"""First and last line, both counted from 1, both included."""


_HEADING = re.compile(r"(#+)\s+(.+?)\s*$")
_FENCE = re.compile(r"\s*(```|~~~)")


def is_page(path: str) -> bool:
    """Whether a file of upstream's is no Python: its rules for contributors, for example."""
    return not path.endswith(".py")


def digest(lines: list[str]) -> str:
    """Hash of some lines; spaces at line ends do not count."""
    text = "\n".join(line.rstrip() for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SourceFile:
    """One upstream file: its lines, and lazily the spans of its names."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def definitions(self) -> dict[str, list[Span]]:
        """Spans by qualified name: `Class.method`, `Class.attribute`, `CONSTANT`, `outer.inner`."""
        collector = _Definitions(self.lines)
        collector.visit(self._tree)
        return collector.spans

    def resolve(self, symbol: str) -> list[Span]:
        """Spans of `symbol`: an exact qualified name, or else every name that ends with it."""
        if symbol in self.definitions:
            return self.definitions[symbol]
        tail = f".{symbol}"
        return [s for name, spans in self.definitions.items() if name.endswith(tail) for s in spans]

    def code_of(self, symbol: str) -> str | None:
        """What a function or class says to Python: without comments, docstrings and layout. None if
        the symbol is no such thing, or several."""
        spans = self.resolve(symbol)
        if len(spans) != 1:
            return None
        (first, last), name = spans[0], symbol.rpartition(".")[2]
        for node in ast.walk(self._tree):
            if isinstance(node, _SCOPES) and node.name == name and node.end_lineno == last:
                return _plain_code(node) if node.lineno >= first else None
        return None

    def uses(self, name: str) -> list[int]:
        """Lines on which the identifier `name` is read, called or imported (not defined)."""
        return [line for line, used in self._identifiers if used == name]

    @cached_property
    def _identifiers(self) -> list[tuple[int, str]]:
        return [pair for node in ast.walk(self._tree) for pair in _identifiers_of(node)]

    def region(self, first: int, last: int) -> list[str]:
        return self.lines[first - 1 : last]

    def enclosing(self, first: int, last: int) -> str | None:
        """Qualified name of the smallest definition that holds all of these lines."""
        holders = [
            (end - start, name)
            for name, spans in self.definitions.items()
            for start, end in spans
            if start <= first and last <= end
        ]
        return min(holders)[1] if holders else None

    def find(self, wanted: str, length: int) -> list[Span]:
        """Spans of `length` lines whose digest is `wanted`: where a moved region lies now."""
        last_start = len(self.lines) - length + 1
        return [
            (start, start + length - 1)
            for start in range(1, last_start + 1)
            if digest(self.region(start, start + length - 1)) == wanted
        ]


class Page(SourceFile):
    """A file that is no Python. Its names are its headings, each with all that stands below it; a
    citation may also name words that its lines hold."""

    @cached_property
    def definitions(self) -> dict[str, list[Span]]:
        found: list[tuple[int, int, str]] = []
        is_code = False
        for number, line in enumerate(self.lines, 1):
            is_code ^= bool(_FENCE.match(line))
            if not is_code and (heading := _HEADING.match(line)):
                found.append((number, len(heading[1]), heading[2]))
        spans: dict[str, list[Span]] = {}
        for index, (first, level, title) in enumerate(found):
            behind = (number for number, other, _ in found[index + 1 :] if other <= level)
            spans.setdefault(title, []).append((first, next(behind, len(self.lines) + 1) - 1))
        return spans

    def resolve(self, symbol: str) -> list[Span]:
        return self.definitions.get(symbol, [])

    def code_of(self, symbol: str) -> str | None:
        return None

    def uses(self, name: str) -> list[int]:
        return [number for number, line in enumerate(self.lines, 1) if name in line]


class Upstream:
    """A tree of upstream source files below `root`, read on demand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[str, SourceFile | None] = {}

    def brings(self, path: str) -> bool:
        """Whether this tree can say anything of a file. The published wheels hold no pages."""
        return not is_page(path) or self.file(path) is not None

    def file(self, path: str) -> SourceFile | None:
        """The file at `path` (such as `vllm/v1/request.py`), or None when there is none."""
        if path not in self._files:
            full = self.root / path
            inside = full.resolve().is_relative_to(self.root.resolve())
            found = inside and full.is_file()
            kind = Page if is_page(path) else SourceFile
            text = as_tagged(path, full.read_text("utf-8")) if found else ""
            self._files[path] = kind(path, text) if found else None
        return self._files[path]

    @cached_property
    def paths(self) -> list[str]:
        return sorted(p.relative_to(self.root).as_posix() for p in self.root.glob("vllm/**/*.py"))


_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _plain_code(scope: ast.AST) -> str:
    code = ast.parse(ast.unparse(scope))
    for node in ast.walk(code):
        if isinstance(node, _SCOPES) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(code)


class _Definitions(ast.NodeVisitor):
    """Collects spans. Comment lines directly above a definition belong to it."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.spans: dict[str, list[Span]] = {}
        self.stack: list[tuple[str, bool]] = []  # (name, is it a class)

    def _add(self, name: str, node: ast.stmt, first: int, owner: list[str]) -> None:
        while first > 1 and self.lines[first - 2].lstrip().startswith("#"):
            first -= 1
        qualified = ".".join([*owner, name])
        self.spans.setdefault(qualified, []).append((first, node.end_lineno or first))

    def _scope(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        self._add(node.name, node, first, [name for name, _ in self.stack])
        self.stack.append((node.name, isinstance(node, ast.ClassDef)))
        self.generic_visit(node)
        self.stack.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _scope

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [name for name, _ in self.stack]
        in_function = bool(self.stack) and not self.stack[-1][1]
        for target in (t for group in targets for t in _flatten(group)):
            if isinstance(target, ast.Name) and not in_function:
                self._add(target.id, node, node.lineno, names)
            elif _is_self_attribute(target) and len(self.stack) >= 2 and self.stack[-2][1]:
                assert isinstance(target, ast.Attribute)
                self._add(target.attr, node, node.lineno, names[:-1])

    visit_Assign = visit_AnnAssign = _assignment


def _flatten(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [leaf for part in target.elts for leaf in _flatten(part)]
    return [target]


def _is_self_attribute(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _identifiers_of(node: ast.AST) -> list[tuple[int, str]]:
    match node:
        case ast.Name(id=name, lineno=line) | ast.arg(arg=name, lineno=line):
            return [(line, name)]
        case ast.Attribute(attr=name, end_lineno=line) if line is not None:
            return [(line, name)]
        case ast.keyword(arg=str(name), lineno=line):
            return [(line, name)]
        case ast.alias(name=name, asname=other, lineno=line):
            return [(line, part) for part in [*name.split("."), other] if part]
    return []
