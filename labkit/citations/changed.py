"""What a newer release has changed of the cited lines, as its drift report has it.

The report is made with both sources at hand (`cite-drift`). It is read here, so that the reader can
tell of the changes where neither source is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.citations.drift import NOTES, UNTOUCHED, load_reading
from labkit.citations.scan import Citation
from mini_vllm.config.profiles import RELEASES

_ROW = re.compile(r"^\| `([^`]+)` \| (\S+) (\S+) \| ([a-z ]+) \| (.*?) \| (.*?) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """The fate of a cited place in a newer release: its state, where it is now, and what that
    means, in Markdown. Without a sentence the change was read and does not matter, or was not read.
    """

    release: str
    state: str
    now: str
    sentences: tuple[str, ...]
    is_read: bool = False


class Changes:
    """The changed places of a release, by citation."""

    def __init__(self, places: dict[tuple[str, str, str], Change]) -> None:
        self.places = places

    def of(self, citation: Citation) -> Change | None:
        """What has become of a cited place; None if it is as it was, or was not looked up."""
        path = citation.path.removeprefix("vllm/")
        return self.places.get((citation.symbol, path, citation.region))


@cache
def changes_since_the_pin(project: Path) -> Changes:
    """Those of the release that the profile "current" follows; none without its report."""
    release = RELEASES["current"]
    report = project / NOTES / f"{release}.md"
    if not report.is_file():
        return Changes({})
    told = {note.number: note.told() for note in load_reading(project, release).notes}
    places = {}
    for symbol, path, region, state, now, numbers in _ROW.findall(report.read_text("utf-8")):
        if state not in UNTOUCHED:
            sentences = tuple(told[int(number)] for number in re.findall(r"\d+", numbers))
            is_read = bool(numbers.strip())
            places[symbol, path, region] = Change(release, state, now, sentences, is_read)
    return Changes(places)
