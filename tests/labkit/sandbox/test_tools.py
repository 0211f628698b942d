"""What a sandbox gets of labkit holds together: nothing in it imports what is left outside."""

from __future__ import annotations

import ast

import pytest

from labkit.course.root import HOME
from labkit.sandbox.build import KERNEL_TOOLS, TOOLS

FILES = sorted({file for tool in (*TOOLS, *KERNEL_TOOLS) for file in HOME.glob(tool)})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(HOME).as_posix())
def test_a_tool_imports_tools_only(file) -> None:  # type: ignore[no-untyped-def]
    inside = {
        "labkit." + f.relative_to(HOME).as_posix().removesuffix(".py").replace("/", ".")
        for f in FILES
    }
    inside |= {name.removesuffix(".__init__") for name in inside}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:  # what an import of it runs
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labkit"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            wanted = (names & inside) or {node.module}
            assert wanted <= inside, f"add {sorted(wanted - inside)} to labkit.sandbox.build.TOOLS"
