"""`python -m labkit.tab.look`: which tasks run in the tab, found by running their tests there.

A task is tried if what its module, its tests and their conftest import is there. It runs in the tab
if all of its tests pass with the reference, in one process, where every other package is missing.
`here.json` is written anew; `--check` only says whether it would change.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.course import here
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.judge.public import files_of
from labkit.tab import bundle
from labkit.tab.imports import THERE, Imports

BARE = """
import importlib.machinery, sys
there = {there!r}
class Missing:
    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        outside = spec and "site-packages" in str(spec.origin or spec.submodule_search_locations)
        if outside and name.partition(".")[0] not in there:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.path.insert(0, ".")
"""
"""Runs before anything else in a Python that is to have the tab's packages alone."""
DRIVE = """
import json, sys
from labkit.tab.driver import Driver
screen = sys.stdout
driver = Driver(lambda event: print(json.dumps(event), file=screen, flush=True))
for request in sys.stdin:
    print(driver.answer(request), file=screen, flush=True)
"""
"""Answers requests, a line each, as the worker does."""


def drive(
    place: Path, files: Mapping[str, bytes], requests: Sequence[Mapping[str, object]]
) -> list[dict[str, Any]]:
    """Let the driver answer under this Python, with the tab's packages alone.

    Args:
        place: an empty folder, for the bundle.
        files: the bundle's contents.
        requests: see :meth:`labkit.tab.driver.Driver.answer`.

    Returns:
        Each event and each answer, in their order.
    """
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    program = BARE.format(there=THERE) + DRIVE
    asked = "".join(json.dumps(request) + "\n" for request in requests)
    words = [sys.executable, "-S", "-c", f"import site; site.main()\n{program}"]
    done = subprocess.run(words, cwd=place, input=asked, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def candidates(course: Course) -> dict[str, list[str]]:
    """Phase -> the tasks whose files import nothing that the tab lacks."""
    imports = Imports(course.root)
    found = {}
    for phase in course.ready:
        if imports.foreign(phase.public_tests / "conftest.py"):
            continue
        names = [task.id for task in phase.exercises if not any(map(imports.foreign, [
            phase.reference_file(task.module), *files_of(phase, [task])]))]  # fmt: skip
        if names:
            found[phase.slug] = names
    return found


def found(course: Course) -> dict[str, list[str]]:
    """Phase -> the candidates whose tests all pass with the reference."""
    tried = candidates(course)
    files = bundle.contents(course, tried)
    passed = {}
    for slug in tried:
        with tempfile.TemporaryDirectory() as place:
            events = drive(Path(place), files, [solved(course.phase(slug))])
        task = {event["id"]: str(event["task"]) for event in events if "task" in event}
        ended = {event["id"]: event["outcome"] for event in events if "id" in event}
        failed = {task[identity] for identity, outcome in ended.items() if outcome != "passed"}
        judged = set(task.values()) - failed
        passed[slug] = [name for name in tried[slug] if name in judged]
    return {slug: names for slug, names in passed.items() if names}


def solved(phase: Phase) -> dict[str, object]:
    """The request that judges a phase with the reference in the learner's place."""
    files = {phase.lab_path(m): phase.reference_file(m).read_text("utf-8") for m in phase.modules}
    return {"do": "run", "phase": phase.slug, "task": "", "files": files}


def main(argv: Sequence[str]) -> int:
    """Write `here.json`, or with `--check` compare."""
    now = found(Course(ROOT))
    text = "{\n" + ",\n".join(f' "{slug}": {json.dumps(now[slug])}' for slug in now) + "\n}\n"
    same = here.FILE.read_text(encoding="utf-8") == text
    if "--check" not in argv:
        here.FILE.write_text(text, encoding="utf-8")
    print(f"{sum(map(len, now.values()))} tasks run in the tab{'' if same else '; that is new'}")
    return int("--check" in argv and not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
