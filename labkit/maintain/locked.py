"""Starts the process that runs vLLM's files, on a rung of `labkit.sandbox.isolation`.

A learner's own files run on the rung `plain`. What an exam's students hand in runs on the strongest
rung that works: it sees the interpreter, the installed packages, the pinned tree, this engine,
labkit and the public golden traces. It sees no hidden test but the one that is being run, no key,
and no other student's files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from labkit.course.root import HOME, ROOT
from labkit.inside import child
from labkit.sandbox import isolation
from labkit.sandbox.build import TASKS, environment, site_folders
from labkit.sandbox.isolation import View
from labkit.trace.golden import FOLDER as GOLDEN

LIMITS = child.Limits(memory_mb=8192, cpu_seconds=1200, files=1024)
START = """
import sys
sys.path[:0] = [{root!r}]
sys.path += {packages!r}
from labkit.inside import child
child.prepare_from_environment()
child.be_killed_first()
from labkit.maintain.child import main
main()
"""


def view(place: Path, tree: Path) -> View:
    """What the process may see; `place` holds a folder for each run, a scratch and a root."""
    python = Path(os.path.realpath(sys.executable))
    shown = (python.parent.parent, *site_folders(), tree, HOME, ROOT / "mini_vllm", GOLDEN)
    return View(
        readable=(*shown, place / "runs"),
        scratch=place / "scratch",
        root=place / "root",
        secret=(ROOT,),
    )


def prepare(place: Path) -> None:
    """Make the folders of `view`."""
    for name in ("runs", "scratch", "root"):
        (place / name).mkdir()
        (place / name).chmod(0o755)
    place.chmod(0o755)


def start(rung: isolation.Rung, place: Path, tree: Path) -> subprocess.Popen[bytes]:
    """
    Raises:
        OSError: the rung does not work here.
    """
    python = os.path.realpath(sys.executable)
    packages = [str(path) for path in site_folders()] if rung.hides else [*filter(None, sys.path)]
    code = rung.prologue() + START.format(root=str(ROOT), packages=packages)
    limits = replace(LIMITS, tasks=rung.tasks() + TASKS)
    env = environment(place / "scratch") | {"PYTHONHASHSEED": "0"} | child.variable(limits)
    words = [python, "-I", "-S", "-B", "-W", "ignore", "-c", code]
    return rung.start(words, env, view(place, tree))


def choose(tree: Path, wanted: str = isolation.AUTO) -> tuple[type[isolation.Rung], dict[str, str]]:
    """The strongest rung that works for this, and why each stronger one does not.

    Raises:
        ValueError: `wanted` is no rung, or does not work here.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as name:
        prepare(Path(name))
        return isolation.choose(view(Path(name), tree), os.path.realpath(sys.executable), wanted)
