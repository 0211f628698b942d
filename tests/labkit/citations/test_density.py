"""A paragraph is read, not looked up: it cites at most two places, and explains them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.citations.scan import _FENCE, Citation, _blank, scan_text

ROOT = Path(__file__).parents[3]
CHAPTERS = sorted(ROOT.glob("phases/*/0*.md"))
MOST = 2
_BLOCK = re.compile(r"(?m)^(?=[-*] |\d+\. )|\n[ \t]*\n")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_paragraph_is_a_wall_of_citations(chapter: Path) -> None:
    text = _FENCE.sub(_blank, chapter.read_text("utf-8"))
    for block in _BLOCK.split(text):
        if not block.lstrip().startswith("|"):
            cited = [c.symbol for c in scan_text(block, chapter.name) if isinstance(c, Citation)]
            assert len(cited) <= MOST, block.strip()[:200]
