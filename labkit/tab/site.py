"""The tab beside the book's pages: plain files that any static host can serve, below any path.

    try/            scripts, course.zip, packages.zip, pyodide/, and the skeletons below try/labs/
    sw.js           keeps all of it for times without a network

The pages' boxes are `labkit.reader.boxes`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from labkit.course.manifest import Course
from labkit.course.skeleton import skeleton
from labkit.inspector.page import build_shell
from labkit.learner.divergence import takes_part
from labkit.practice.question import kinds
from labkit.reader.boxes import Tab
from labkit.tab import bundle, compiled, pyodide
from labkit.tab.racing import RACERS

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("tab.js", "work.js", "zip.js", "python.js", "worker.js", "editor.js", "offline.js")
FOLDER = "try"
FIRST_RUN = 20_000_000
"""Bytes that may be loaded before the first test runs."""


def write(course: Course, output: Path, given: Path | None = None) -> Tab:
    """Write `try/` below the book's folder.

    Args:
        given: a folder that holds Pyodide; default: fetched, or kept from an earlier build.

    Raises:
        labkit.tab.pyodide.Unavailable: Pyodide is not here and cannot be fetched.
        ValueError: it has grown over FIRST_RUN bytes.
    """
    brought = pyodide.bring(course.root, given)
    place = output / FOLDER
    shutil.rmtree(place, ignore_errors=True)
    (place / "pyodide").mkdir(parents=True)
    for name in pyodide.facts()["files"]:
        shutil.copyfile(brought / name, place / "pyodide" / name)
    (place / "packages.zip").write_bytes(bundle.packed(pyodide.packages(brought)))
    (place / "course.zip").write_bytes(bundle.packed(bundle.contents(course)))
    (place / "inspector.html").write_text(build_shell("Step by step"), encoding="utf-8")
    for name in SCRIPTS:
        shutil.copyfile(ASSETS / name, place / name)
    for phase in bundle.phases_here(course):
        for module in phase.modules:
            file = place / phase.lab_path(module)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(skeleton(phase, module), encoding="utf-8")
    if why := compiled.add_bytecode(place, course.root / pyodide.FOLDER / "compiled"):
        print(f"No bytecode goes along, so Python starts some seconds later in the pages: {why}")
    loaded = [place / "packages.zip", place / "course.zip", *(place / "pyodide").iterdir()]
    total = sum(file.stat().st_size for file in loaded)
    if total > FIRST_RUN:
        raise ValueError(f"the tab loads {total} bytes before the first test; limit: {FIRST_RUN}")
    imported = ("pyodide.mjs", "pyodide.asm.mjs")  # not by `fetch`, so the worker does not see them
    unseen = sum((place / "pyodide" / name).stat().st_size for name in imported)
    return Tab(
        total - unseen,
        asked=frozenset(phase.slug for phase in course.ready if kinds(phase.number)),
        traced=frozenset(phase.slug for phase in bundle.phases_here(course) if takes_part(phase)),
        raced=frozenset(RACERS),
    )


def write_worker(output: Path) -> None:
    """Write `sw.js`, when everything else lies in the folder: it holds the release's name, and the
    digest of each of its files."""
    files = sorted(path for path in output.rglob("*") if path.is_file() and path.name != "sw.js")
    digests = {
        path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:32]
        for path in files
    }
    known = json.dumps(digests, ensure_ascii=False, indent=0)
    text = (ASSETS / "sw.js").read_text(encoding="utf-8")
    text = text.replace("%VERSION%", hashlib.sha256(f"{text}{known}".encode()).hexdigest()[:16])
    (output / "sw.js").write_text(text.replace("%FILES%", known), encoding="utf-8")
