"""The first line of a public test's docstring stands on the learner's screen, alone."""

from __future__ import annotations

import ast

from labkit.course.root import ROOT


def test_a_title_is_a_whole_sentence() -> None:
    """Not the second half of the test's name, which the screen does not show."""
    cut = []
    for file in sorted((ROOT / "tests" / "public").glob("*/test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                title = (ast.get_docstring(node) or "").partition("\n")[0]
                if not title.endswith((".", "?")):
                    cut.append((file.name, node.name, title))
    assert cut == []
