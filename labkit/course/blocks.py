"""Generated parts of a page that is otherwise written by hand: between `<!-- NAME -->` and
`<!-- /NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from labkit.course.files import write_text


def fill(text: str, parts: Mapping[str, str], page: str = "the page") -> str:
    """The page with its generated parts replaced.

    Raises:
        ValueError: a part has no place in the page, or several.
    """
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        count = text.count(begin)
        if count != 1 or text.count(end) != 1:
            raise ValueError(f"{page} has {count} places for {name}; it needs one")
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = pattern.sub(lambda _, new=f"{begin}{part}\n{end}": new, text)  # type: ignore[misc]
    return text


def differences(path: Path, parts: Mapping[str, str]) -> list[str]:
    """Lines of the page that would be written differently today, at most ten."""
    old = path.read_text(encoding="utf-8")
    new = fill(old, parts, path.name)
    pairs = zip(old.splitlines(), new.splitlines(), strict=False)
    found = [f"page    {a}\ncommand {b}" for a, b in pairs if a != b]
    if len(old.splitlines()) != len(new.splitlines()):
        found.append("the number of lines differs")
    return found[:10]


def write(path: Path, parts: Mapping[str, str]) -> None:
    """Replace the generated parts of a page."""
    write_text(path, fill(path.read_text(encoding="utf-8"), parts, path.name))
