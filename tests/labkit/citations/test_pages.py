"""Citations of upstream's pages: headings and words, with the page at hand and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.citations import published
from labkit.citations.check import Report, check_project, updated_lock
from labkit.citations.drift import by_phase
from labkit.citations.lock import read_lock, write_lock
from labkit.citations.scan import Citation, Problem, scan_project, scan_text
from labkit.citations.symbols import Page, Upstream
from labkit.course.root import PIN

RULES = "docs/contributing/README.md"
BLOB = f"https://github.com/vllm-project/vllm/blob/{PIN}/{RULES}"
TEXT = """\
# Contributing

## Pull requests

### Sign-off

Commits must include a `Signed-off-by:` header.

```bash
# this is no heading
git commit -s
```

### Review

After 7 days, ask.

## Thank you
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "docs").mkdir(parents=True)
    return tmp_path / "project"


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    page = tmp_path / "upstream" / RULES
    page.parent.mkdir(parents=True)
    page.write_text(TEXT)
    return Upstream(tmp_path / "upstream")


def link(words: str, lines: str, plain: str = "?plain=1") -> str:
    return f"[`{words}`]({BLOB}{plain}#{lines})"


def cite(project: Path, text: str) -> None:
    (project / "docs" / "upstream.md").write_text(text + "\n")


def checked(project: Path, upstream: Upstream | None) -> Report:
    return check_project(project, upstream)


def lock_all(project: Path, upstream: Upstream) -> None:
    citations = [c for c in scan_project(project) if isinstance(c, Citation)]
    lock, problems = updated_lock(citations, upstream, read_lock(project))
    assert not problems
    write_lock(project, lock)


def test_a_heading_holds_all_below_it_up_to_its_next_equal() -> None:
    page = Page(RULES, TEXT)
    assert page.definitions == {
        "Contributing": [(1, 18)],
        "Pull requests": [(3, 17)],
        "Sign-off": [(5, 13)],
        "Review": [(14, 17)],
        "Thank you": [(18, 18)],
    }


@pytest.mark.parametrize(
    ("words", "lines"),
    [("Sign-off", "L5-L13"), ("Signed-off-by:", "L7"), ("After 7 days, ask.", "L14-L16")],
)
def test_headings_and_words_are_found_with_the_page_and_without(
    project: Path, upstream: Upstream, tmp_path: Path, words: str, lines: str
) -> None:
    cite(project, link(words, lines))
    lock_all(project, upstream)
    assert not checked(project, upstream).problems
    wheel = Upstream(tmp_path / "wheel")
    assert not checked(project, wheel).problems
    assert not checked(project, None).problems


def test_words_that_stand_elsewhere_are_refused(project: Path, upstream: Upstream) -> None:
    cite(project, link("Signed-off-by:", "L14-L16"))
    (problem,) = checked(project, upstream).problems
    assert "is not at lines 14-16" in problem.message and "line 7" in problem.hint


def test_a_page_that_is_not_here_and_not_locked_is_told_how_to_be_had(
    project: Path, tmp_path: Path
) -> None:
    cite(project, link("Sign-off", "L5-L13"))
    (problem,) = checked(project, Upstream(tmp_path / "wheel")).problems
    assert "citations.lock does not know" in problem.message and "sdist" in problem.hint


def test_an_update_without_the_page_keeps_what_was_known(
    project: Path, upstream: Upstream, tmp_path: Path
) -> None:
    cite(project, link("Sign-off", "L5-L13"))
    lock_all(project, upstream)
    before = read_lock(project)
    lock_all(project, Upstream(tmp_path / "wheel"))
    assert read_lock(project) == before


def test_a_link_that_github_would_not_follow_is_refused() -> None:
    (problem,) = scan_text(link("Sign-off", "L5-L13", plain=""), "docs/upstream.md")
    assert isinstance(problem, Problem) and "lacks ?plain=1" in problem.message


def test_a_newer_release_is_asked_for_code_only(project: Path, upstream: Upstream) -> None:
    cite(project, link("Sign-off", "L5-L13"))
    lock_all(project, upstream)
    citations = [c for c in scan_project(project) if isinstance(c, Citation)]
    assert not by_phase(citations, read_lock(project), upstream, {})


def test_what_the_wheel_has_changed_is_read_as_tagged(tmp_path: Path) -> None:
    file = tmp_path / published.PATH
    file.parent.mkdir(parents=True)
    before = "def matches():\n    try:\n"
    file.write_text(f"{before}{published.WHEEL}    except: ...\n")
    found = Upstream(tmp_path).file(published.PATH)
    assert found is not None and found.text == f"{before}{published.TAG}    except: ...\n"
