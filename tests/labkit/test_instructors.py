"""docs/instructors.md: its commands exist, and its figures are the saved ones."""

from __future__ import annotations

import json
import re
import tomllib

from benchmarks import bench_grading
from labkit.cli import COMMANDS
from labkit.course.root import find_root
from labkit.sandbox.isolation import LADDER

ROOT = find_root()
GUIDE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")


def test_every_command_of_the_guide_exists() -> None:
    named = set(re.findall(r"python -m labkit ([\w-]+)", GUIDE))
    assert len(named) >= 5
    assert named <= set(COMMANDS)


def test_every_option_of_the_guide_exists() -> None:
    """Somewhere in the tools: a renamed option must be renamed here too."""
    tools = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("labkit/**/*.py"))
    bench = (ROOT / "benchmarks" / "bench_grading.py").read_text(encoding="utf-8")
    of_others = {"--build-arg"}
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", GUIDE)) - of_others:
        name = option.removeprefix("--")
        declared = re.search(rf"(?m)^    {name}: .*typer\.Option", tools)
        assert declared or f'"{option}"' in tools + bench, option


def test_the_figures_are_those_that_were_saved() -> None:
    saved = json.loads(bench_grading.SAVED.read_text(encoding="utf-8"))
    assert bench_grading.report(saved) in GUIDE


def test_the_number_of_cheats_is_right() -> None:
    table = tomllib.loads(
        (ROOT / "tests" / "corpora" / "cheats" / "cheats.toml").read_text(encoding="utf-8")
    )
    assert f"`tests/corpora/cheats` holds {len(table['cheats'])} ways" in GUIDE


def test_every_rung_is_explained() -> None:
    for name in LADDER:
        assert f"| `{name}` |" in GUIDE
