"""Python starts in half the time where it finds bytecode: Node.js and Pyodide make it when the book
is built. Without Node.js the pages work all the same, and start slower.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

SCRIPTS = tuple(Path(__file__).with_name(name) for name in ("compile.mjs", "bytecode.py"))
ARCHIVES = ("pyodide/python_stdlib.zip", "packages.zip", "course.zip")
SECONDS = 600
"""A busy machine needs two minutes."""


def add_bytecode(place: Path, kept: Path) -> str:
    """Write bytecode into the archives of `try/`.

    Args:
        place: holds ARCHIVES, and Pyodide.
        kept: a folder in which the archives stay, for the next build of the same course.

    Returns:
        Why there is none; "" where there is.
    """
    digest = hashlib.sha256()
    for file in [*SCRIPTS, *(place / name for name in ARCHIVES)]:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    mine = kept / digest.hexdigest()[:16]
    if not mine.is_dir():
        if why := _run(place):
            return why
        shutil.rmtree(kept, ignore_errors=True)
        for name in ARCHIVES:
            (mine / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place / name, mine / name)
    for name in ARCHIVES:
        shutil.copyfile(mine / name, place / name)
    return ""


def _run(place: Path) -> str:
    node = shutil.which("node")
    if node is None:
        return "Node.js is not installed"
    words = [node, str(SCRIPTS[0]), str(place)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{node}: {error}"
    return f"{node}: {done.stderr[-500:].strip()}" if done.returncode else ""
