"""Which of JSON Schema's keywords `native` enforces, by the official test suite.

    git clone --depth 1 https://github.com/json-schema-org/JSON-Schema-Test-Suite
    python -m benchmarks.schema_keywords JSON-Schema-Test-Suite/tests/draft2020-12

The suite has a file for each keyword: schemas, and for each some instances that are valid and some
that are not. A schema is *supported* if it compiles. Then no invalid instance may be writable: the
exit code is 1 if one is. `--save` keeps the table in `benchmarks/results/`; a test of phase 12
compares it with the chapter.

    schemas     of the keyword's file
    supported   that compile; the others are refused by name
    wrong       invalid instances that can be written although the schema compiles
    missed      valid instances that cannot: `format` is enforced here, where the suite only notes
                it, and objects are written in the order of their properties
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mini_vllm.structured_output.json_schema import compile_schema
from mini_vllm.structured_output.pushdown import Pushdown, compile_rules
from mini_vllm.structured_output.regex_automaton import DEAD

RESULTS = Path(__file__).parent / "results" / "schema_keywords.json"
STYLES: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"ensure_ascii": False})


@dataclass
class Row:
    """What became of one keyword's schemas and their instances."""

    keyword: str
    schemas: int = 0
    supported: int = 0
    valid: int = 0
    missed: int = 0
    invalid: int = 0
    wrong: int = 0


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser("schema_keywords", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suite", type=Path, help="a folder with a file for each keyword")
    parser.add_argument("--save", action="store_true", help=f"keep the table in {RESULTS.name}")
    options = parser.parse_args(argv)
    rows = [measure(path) for path in sorted(options.suite.glob("*.json"))]
    if not rows:
        parser.error(f"{options.suite} has no *.json; name the suite's folder tests/draft2020-12")
    print("\n".join(table(rows)))
    if options.save:
        record = {"suite": commit_of(options.suite), "rows": [asdict(row) for row in rows]}
        RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(row.wrong for row in rows))


def measure(path: Path) -> Row:
    """One keyword's file."""
    row = Row(path.stem)
    for case in json.loads(path.read_text(encoding="utf-8")):
        row.schemas += 1
        walk = follow(case["schema"])
        if walk is None:
            continue
        row.supported += 1
        for instance in case["tests"]:
            writable = any(accepts(walk, text) for text in spelled(instance["data"]))
            if instance["valid"]:
                row.valid += 1
                row.missed += not writable
            else:
                row.invalid += 1
                row.wrong += writable
    return row


def follow(schema: Any) -> Pushdown | None:
    """The automaton of a schema as JSON Schema means it, or None if it is refused."""
    try:
        return Pushdown(compile_rules(compile_schema(json.dumps(schema), close_objects=False)))
    except ValueError:
        return None


def spelled(instance: Any) -> Iterator[str]:
    return (json.dumps(instance, **style) for style in STYLES)


def accepts(walk: Pushdown, text: str) -> bool:
    """Whether the whole text can be written."""
    state = walk.start
    for byte in text.encode("utf-8", "surrogatepass"):
        state = walk.next(state, byte)
        if state == DEAD:
            return False
    return walk.is_accepting(state)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a Markdown table, and the sum."""
    total = Row("all")
    for row in rows:
        for name in ("schemas", "supported", "valid", "missed", "invalid", "wrong"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
    yield "| keyword | supported | wrong | missed |"
    yield "|---|---|---|---|"
    for row in (*rows, total):
        yield (
            f"| {row.keyword} | {row.supported} of {row.schemas} | {row.wrong} of {row.invalid} |"
            f" {row.missed} of {row.valid} |"
        )


def commit_of(folder: Path) -> str:
    """The commit of the checkout that a folder is in, or ""."""
    words = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
