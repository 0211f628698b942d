"""Rewords every error of the engine as it is imported: ``PYTHONPATH`` names this folder.

``ValueError(f"n is {n}; ...")`` becomes ``ValueError((f"n is {n}; ...", "reworded")[1])``: the text
is still made, for making it may have effects, and then thrown away.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any

REWORDED = "reworded"
ERRORS = (
    "ValueError", "TypeError", "RuntimeError", "OverflowError", "NotImplementedError", "APIError",
    "RequestError", "RequestFailure", "EngineGenerateError", "QueueFullError",
)  # fmt: skip


class Reword(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
            pair = ast.Tuple([node.args[0], ast.Constant(REWORDED)], ast.Load())
            node.args[0] = ast.Subscript(pair, ast.Constant(1), ast.Load())
        return node


class Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        tree = Reword().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "mini_vllm":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
