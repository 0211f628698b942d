"""The arithmetic of docs/design.md, computed again.

    python -m labkit.quality.designs              the page's own lines
    python -m labkit.quality.designs mine.md      those of a copy with your numbers

A block that begins with ```arithmetic holds a line for each number: a name, an expression over the
names above it, and what comes out, `tokens = space / kv -> 423,279`. Names live until the next
heading of the second rank.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.course.root import ROOT
from labkit.quality.sheets import ARITHMETIC, number

PAGE = ROOT / "docs" / "design.md"
LINE = re.compile(r"(\w+) += +(.+?)(?: +-> +(\S+))?(?:  +.*)?")


@dataclass(frozen=True)
class Line:
    """One number: its section, name and expression, its value, and what the page says it is."""

    section: str
    name: str
    expression: str
    value: float
    said: str

    @property
    def is_right(self) -> bool:
        """Whether the page says the value, rounded to the digits that it writes."""
        if not self.said:
            return True
        wanted, step = number(self.said)
        return abs(self.value - wanted) <= step / 2 * 1.001


def lines(text: str) -> Iterator[Line]:
    """Every line of arithmetic, in order.

    Raises:
        ValueError: a line is none, or names what stands nowhere above it.
    """
    section, names = "", dict[str, float]()
    for heading, block in re.findall(r"(?ms)^## (.+?)$|^```arithmetic\n(.*?)^```", text):
        if heading:
            section, names = heading, {}
        for row in filter(str.strip, block.splitlines()):
            found = LINE.fullmatch(row.strip())
            if not found:
                raise ValueError(f"{row.strip()!r} is no line such as: blocks = ceil(99 / 16) -> 7")
            name, expression, said = found[1], found[2].strip(), found[3] or ""
            try:
                value = float(eval(expression.replace(",", ""), ARITHMETIC, names))
            except (NameError, SyntaxError, ZeroDivisionError) as error:
                raise ValueError(f"{row.strip()!r}: {error}") from None
            names[name] = value
            yield Line(section, name, expression, value, said)


def main(words: Sequence[str]) -> int:
    """Print each line with its value; 1 if one says something else."""
    path = Path(words[0]) if words else PAGE
    section, wrong = "", 0
    for line in lines(path.read_text(encoding="utf-8")):
        if line.section != section:
            section = line.section
            print(f"\n{section}")
        wrong += not line.is_right
        mark = " " if line.is_right else "✗"
        says = "" if line.is_right else f"   the page says {line.said}"
        print(f"{mark} {line.name:<18} {line.value:>18,.6g}{says}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
