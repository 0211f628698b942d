"""Generated parts of pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course import blocks


def test_generated_parts_replace_the_old_ones_and_nothing_else(tmp_path: Path) -> None:
    old = "before\n<!-- goodput -->\nold\nlines\n<!-- /goodput -->\nafter\n"
    new = blocks.fill(old, {"goodput": "new \\1"})
    assert new == "before\n<!-- goodput -->\nnew \\1\n<!-- /goodput -->\nafter\n"
    path = tmp_path / "page.md"
    path.write_text(old)
    assert blocks.differences(path, {"goodput": "old\nlines"}) == []
    assert blocks.differences(path, {"goodput": "old\nline"}) == ["page    lines\ncommand line"]
    assert "number of lines" in blocks.differences(path, {"goodput": "old"})[-1]
    with pytest.raises(ValueError, match="0 places for prices"):
        blocks.fill(old, {"prices": "x"})
