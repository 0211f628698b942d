"""Beside a citation that a newer vLLM has changed stands a badge, which opens the sentence."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.citations.changed import Change, Changes, changes_since_the_pin
from labkit.citations.scan import Citation, scan_project
from labkit.course.root import ROOT
from labkit.reader.markdown import BADGES, Links, render

URL = "https://github.com/vllm-project/vllm/blob/v0.22.1/vllm/v1/core/block_pool.py"
TEXT = f"""# Blocks

[`BlockPool.free_blocks`]({URL}#L419-L433) frees, and [`BlockPool.touch`]({URL}#L402-L417) holds.
"""


def page_of(changes: Changes) -> str:
    links = Links(Path("chapter.md"), Path("site"), changes=changes)
    return render(TEXT, "c", links).html


def one(symbol: str, region: str, *sentences: str, is_read: bool = False) -> Changes:
    is_read = is_read or bool(sentences)
    change = Change("0.99.0", "changed", "defined at 774-805", sentences, is_read)
    return Changes({(symbol, "v1/core/block_pool.py", region): change})


def test_only_what_has_changed_has_a_badge_and_it_opens_the_sentence() -> None:
    html = page_of(one("BlockPool.free_blocks", "419-433", "`free` goes [first](https://x.y)."))
    (badge,) = BADGES.findall(html)
    assert html.index("BlockPool") < html.index(badge) < html.index("touch")
    target = re.search(r'popovertarget="([^"]+)"', badge)
    assert target is not None and f'id="{target[1]}" popover' in badge
    assert 'class="since read"' in badge and "vLLM 0.99.0: changed, defined at 774-805." in badge
    assert '<code>free</code> goes <a href="https://x.y">first</a>.' in badge


def test_a_change_that_was_not_read_says_so() -> None:
    (badge,) = BADGES.findall(page_of(one("BlockPool.touch", "402-417")))
    assert 'class="since"' in badge and "How is not told yet." in badge


def test_a_change_that_was_read_and_does_not_matter_says_that() -> None:
    (badge,) = BADGES.findall(page_of(one("BlockPool.touch", "402-417", is_read=True)))
    assert 'class="since nothing"' in badge and "nothing that matters has changed" in badge
    assert 'aria-label="changed in vLLM 0.99.0, not in what matters"' in badge
    (unread,) = BADGES.findall(page_of(one("BlockPool.touch", "402-417")))
    assert 'aria-label="changed in vLLM 0.99.0, not read yet"' in unread


def test_without_changes_there_are_no_badges() -> None:
    assert not BADGES.findall(page_of(Changes({})))


def test_the_report_of_the_course_says_what_free_blocks_does_today(tmp_path: Path) -> None:
    changes = changes_since_the_pin(ROOT)
    cited = [item for item in scan_project(ROOT) if isinstance(item, Citation)]
    free = next(c for c in cited if c.symbol == "BlockPool.free_blocks")
    change = changes.of(free)
    assert change is not None and change.release == "0.32.0"
    assert "go to the front of the free queue" in change.sentences[0]
    assert "pull/43447" in change.sentences[0]
    assert sum(changes.of(citation) is not None for citation in cited) > 1000
    assert changes_since_the_pin(tmp_path).of(free) is None
