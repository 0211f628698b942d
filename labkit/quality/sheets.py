"""docs/sheets.md: a page for each phase to print, its invariants and its formulas.

The invariants are read out of the guide. The formulas stand in the phase's `formulas.toml`, in the
words of its chapters: one that no chapter says, or an example that comes out otherwise, is an
error, so a sheet cannot say something that the chapters do not.
"""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from labkit.course.manifest import Course, Phase

PAGE = Path("docs", "sheets.md")
FILE = "formulas.toml"
GUIDE = "00-guide.md"
ARITHMETIC = {"ceil": math.ceil, "log": math.log, "exp": math.exp, "max": max, "min": min,
              "round": round, "__builtins__": {}}  # fmt: skip


@dataclass(frozen=True)
class Formula:
    """One line of a sheet.

    Attributes:
        says: the words of a chapter that say it.
        means: what it is for, in a few words.
        formula: how it stands on the sheet; "": as the chapter says it.
        example: numbers put in, as arithmetic; "" without one.
        result: what comes out, as a chapter writes it: "4.2 ms".
        chapters: those that are looked into.
    """

    says: str
    means: str
    formula: str = ""
    example: str = ""
    result: str = ""
    chapters: tuple[str, ...] = (GUIDE,)


def invariants(phase: Phase) -> list[str]:
    """What always holds, from the phase's guide: a list below the words "Invariants", in a quote
    or in a section of its own.

    Raises:
        ValueError: the guide has no such list.
    """
    guide = (phase.folder / GUIDE).read_text(encoding="utf-8")
    quote = re.search(r"(?m)^> \*\*Invariants\*\*.*\n((?:>.*\n)+)", guide)
    section = re.search(r"(?ms)^## Invariants\n(.*?)(?=^## )", guide)
    text = re.sub(r"(?m)^> ?", "", quote[1]) if quote else section[1] if section else ""
    rows = re.split(r"(?m)^(?:\d+\.|-) ", text)[1:]
    if not rows:
        raise ValueError(f"{phase.slug}/{GUIDE} has no list of invariants")
    return [" ".join(row.split()) for row in rows]


def formulas(phase: Phase) -> list[Formula]:
    """The phase's formulas, each checked against the chapters.

    Raises:
        ValueError: there are none, no chapter says it so, or its example does not give the result.
    """
    path = phase.folder / FILE
    if not path.is_file():
        raise ValueError(f"{phase.slug} has no {FILE}; phases/03-scheduler/{FILE} is an example")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    found = [
        Formula(**row | {"chapters": tuple(row.get("chapters", (GUIDE,)))})
        for row in data["formula"]
    ]
    for formula in found:
        if wrong := fault(phase, formula):
            raise ValueError(f"{phase.slug}/{FILE}: {wrong}")
    return found


def fault(phase: Phase, formula: Formula) -> str:
    """What is wrong with a formula; "" if nothing is."""
    names = ", ".join(formula.chapters)
    text = plain("\n".join((phase.folder / n).read_text("utf-8") for n in formula.chapters))
    for words in (formula.says, formula.result):
        if plain(words) not in text:
            return f"{words!r} is not in {names}; write it as the chapter does"
    if formula.example:
        value = eval(formula.example, ARITHMETIC)  # the repository's own arithmetic
        wanted, step = number(formula.result)
        if abs(value - wanted) > step / 2 * 1.001:
            return f"{formula.example} is {value:g}, and the chapter says {formula.result}"
    return ""


def plain(text: str) -> str:
    """A text without its markup, and with one space for every stretch of white space."""
    text = re.sub(r"\\text\{([^}]*)\}", r"\1", text).replace("\\times", "x")
    return " ".join(re.sub(r"[*`$]", "", text).split())


def number(text: str) -> tuple[float, float]:
    """The number at the beginning of a result, and the worth of its last digit: "4.2 ms" is 4.2
    and 0.1.

    Raises:
        ValueError: it does not begin with a number.
    """
    found = re.match(r"-?[\d,]+(?:\.(\d+))?", text)
    if not found:
        raise ValueError(f"the result {text!r} does not begin with a number, such as 4.2 ms")
    return float(found[0].replace(",", "")), 10.0 ** -len(found[1] or "")


def sheet(phase: Phase) -> str:
    """One phase, as Markdown."""
    guide = f"[The guide](../phases/{phase.slug}/{GUIDE})"
    lines = [f"## {phase.number} {phase.title}", "", f"*{phase.question}* {guide}", ""]
    lines += ["**What always holds**", ""]
    lines += [f"{i}. {text}" for i, text in enumerate(invariants(phase), 1)]
    lines += ["", "| formula | what it is | an example |", "|---|---|---|"]
    lines += [_row(formula) for formula in formulas(phase)]
    return "\n".join(lines)


def _row(formula: Formula) -> str:
    shown = (formula.formula or formula.says).replace("`", "").replace("|", r"\|")
    example = f"{formula.example} = {formula.result}" if formula.example else ""
    example = example.replace("**", "^").replace(" * ", " · ")
    return f"| `{shown}` | {formula.means.rstrip(':')} | {example} |"


def table(course: Course) -> str:
    """All sheets, one behind the other."""
    return "\n\n".join(sheet(phase) for phase in course.ready)
