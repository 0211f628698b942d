"""Which modules of the checkout can be imported where there is neither torch nor numpy.

Read from the source alone: nothing is imported to find out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OURS = ("mini_vllm", "labkit", "tests")
THERE = (
    "_pytest", "fsrs", "iniconfig", "jinja2", "markupsafe", "msgspec", "packaging", "pluggy", "py",
    "pygments", "pytest", "typing_extensions",
)  # fmt: skip
"""Packages that the tab brings along."""


@dataclass(frozen=True)
class Named:
    """Dotted names in the import statements of one file.

    Attributes:
        all: anywhere in it.
        needed: those that run while it is imported itself: not inside of functions, not for types
            alone, and not where a missing package is caught.
    """

    all: frozenset[str]
    needed: frozenset[str]


class Imports:
    """The imports of a checkout's files.

    Args:
        root: the checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._foreign: dict[Path, set[str]] = {}
        self._runs: dict[str, tuple[Path, ...]] = {}
        self._named: dict[Path, Named] = {}

    def foreign(self, file: Path) -> set[str]:
        """Packages that importing the file needs and the tab does not have."""
        if file not in self._foreign:
            seen, queue, found = {file}, [file], set[str]()
            while queue:
                for name in self._names_of(queue.pop()).needed:
                    top = name.partition(".")[0]
                    if top not in OURS:
                        found |= {top} - sys.stdlib_module_names - {*THERE}
                    fresh = [part for part in self._run_by(name) if part not in seen]
                    queue += fresh
                    seen.update(fresh)
            self._foreign[file] = found
        return self._foreign[file]

    def reached(self, roots: Iterable[Path]) -> set[Path]:
        """All files that may be imported from some files on, inside of functions too, as far as
        the tab can import them."""
        seen = set(roots)
        queue = list(seen)
        while queue:
            for name in self._names_of(queue.pop()).all:
                files = [file for file in self._run_by(name) if file not in seen]
                if files and not any(map(self.foreign, self._run_by(name))):
                    queue += files
                    seen.update(files)
        return seen

    def _names_of(self, file: Path) -> Named:
        if file not in self._named:
            tree = ast.parse(file.read_bytes())
            statements = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
            everywhere = frozenset(name for node in statements for name in _names(node))
            self._named[file] = Named(everywhere, frozenset(_at_once(tree.body)))
        return self._named[file]

    def _run_by(self, name: str) -> tuple[Path, ...]:
        """The files of ours that `import name` runs: its packages' `__init__.py`, and its own."""
        if name not in self._runs:
            parts, found = name.split("."), list[Path]()
            for end in range(1, len(parts) + 1) if parts[0] in OURS else ():
                path = self.root.joinpath(*parts[:end])
                files = (path / "__init__.py", path.with_suffix(".py"))
                found += [file for file in files if file.is_file()][:1]
            self._runs[name] = tuple(found)
        return self._runs[name]


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """`from a import b` may import the module a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        assert not node.level, "the house imports absolutely"
        yield node.module or ""
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _at_once(body: Iterable[ast.AST]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _names(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _at_once(node.orelse)
        elif isinstance(node, ast.Try) and any(map(_catches_imports, node.handlers)):
            yield from _at_once(node.orelse + node.finalbody)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef | ast.For):
            yield from _at_once(ast.iter_child_nodes(node))


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    return "ImportError" in ast.unparse(handler) or "ModuleNotFoundError" in ast.unparse(handler)
