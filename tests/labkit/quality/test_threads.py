"""Every issue and pull request that the course cites stands in `upstream_notes/threads.json`.

A row says what the thread or the commit is about, in our words, and how it was opened. A sentence
may cite a number that was not opened, and then it says so: "(not opened)" stands behind the link.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path

from labkit.course.root import ROOT

THREADS = ROOT / "upstream_notes" / "threads.json"
HOW = {
    "thread": "its text was read",
    "commit": "the project's history names it, and the commit was read",
    "diff": "the commits of the pull request were read",
    "not opened": "neither was to be had",
}
LINK = re.compile(
    r"https://github\.com/([\w.-]+/[\w.-]+)/(?:pull|issues)/(\d+)(?:\)( \(not opened\))?)?"
)
FOLDERS = ("phases", "solutions", "upstream_notes", "mini_vllm", "labkit", "docs", "tests/corpora")


@cache
def cited() -> dict[tuple[str, str], list[tuple[str, bool]]]:
    """Repository and number -> where it is cited, and whether it says "not opened" there."""
    command = ["git", "ls-files", "--", *FOLDERS, "README.md", "CHANGELOG.md"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for file in files.split():
        path = Path(ROOT, file)
        if path.suffix not in {".md", ".py", ".toml"} or path.is_symlink():
            continue
        for repository, number, unopened in LINK.findall(path.read_text(encoding="utf-8")):
            key = (repository.lower(), number)
            found.setdefault(key, []).append((file, bool(unopened)))
    return found


@cache
def rows() -> dict[tuple[str, str], tuple[str, str]]:
    """Repository and number -> how it was opened, and what it is."""
    data = json.loads(THREADS.read_text(encoding="utf-8"))
    return {
        (repository.lower(), number): (how, what)
        for repository, numbers in data.items()
        for number, (how, what) in numbers.items()
    }


def test_every_cited_number_has_a_row_and_every_row_is_cited() -> None:
    missing, unused = cited().keys() - rows().keys(), rows().keys() - cited().keys()
    assert not missing, f"open them and say in threads.json what they are: {sorted(missing)}"
    assert not unused, f"no text cites them any more: {sorted(unused)}"


def test_a_row_says_how_and_what() -> None:
    for key, (how, what) in rows().items():
        assert how in HOW, key
        assert bool(what) == (how != "not opened"), key


def test_a_sentence_says_that_a_number_was_not_opened() -> None:
    wrong = [
        (key, file)
        for key, places in cited().items()
        for file, said in places
        if said != (rows()[key][0] == "not opened")
    ]
    assert not wrong, f'"(not opened)" belongs behind these links, or does not: {wrong}'
