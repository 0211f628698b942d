"""Enter the environment that a command needs. Standard library only.

`python -m labkit setup` (or `make setup`) ends with an interpreter that has every package listed in
`pyproject.toml`; `enter` finds one, or makes one, before any other command runs.

    requirements.py   what pyproject.toml asks for
    pythons.py        which Pythons are here
    venv.py           .venv: made, filled and stamped
    plan.py           which steps lead from here to a ready environment
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from labkit.course.root import ROOT
from labkit.setup.plan import setup
from labkit.setup.pythons import other_pythons, probe
from labkit.setup.requirements import (
    DEFAULT_GROUPS,
    NEWEST,
    OLDEST,
    PYTHONS,
    SetupError,
    installed,
    missing,
    requirements,
)
from labkit.setup.venv import Venv

ENTERED = "LABKIT_ENTERED"  # set for one exec, so that a broken environment cannot loop


def require_python(argv: Sequence[str]) -> None:
    """Go on with a supported Python when this one is not."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    for path in other_pythons():
        found = probe(path) if os.path.exists(path) else None
        if found is not None and found.supported:
            replace_process(found.path, argv)
    raise SetupError(
        f"needs {PYTHONS}; this is {platform.python_version()} ({sys.executable})",
        "install one of them, then run `make setup PYTHON=/path/to/python3.12`",
    )


def enter(groups: Sequence[str], argv: Sequence[str]) -> None:
    """Return when this interpreter has the groups; else run `labkit argv` in one that has them."""
    entered = os.environ.pop(ENTERED, None)
    venv, python = Venv(), ""
    complete = set(groups) <= set(venv.groups())
    if not groups or (complete and venv.is_running()):
        return
    wanted = requirements(groups)
    lacking = missing(wanted, installed([need.name for need in wanted]))
    if not lacking:
        return
    if not entered:
        python = str(venv.python) if complete else setup(groups)
    if python and Path(python) != Path(sys.executable):
        os.environ[ENTERED] = "1"
        replace_process(python, argv)
    importlib.invalidate_caches()
    lacking = missing(wanted, installed([need.name for need in wanted]))
    if lacking:
        raise SetupError(
            f"{sys.executable} lacks {', '.join(need.text for need in lacking)}",
            "run `make setup` where a package index answers, or install them there yourself",
        )


def replace_process(python: str, argv: Sequence[str]) -> None:
    """Become `python -m labkit argv`."""
    if Path.cwd() != ROOT:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    sys.stdout.flush()
    os.execv(python, [python, "-m", "labkit", *argv])


def main(argv: Sequence[str]) -> int:
    """`labkit setup`: make sure of the environment and say what it is."""
    parser = argparse.ArgumentParser(prog="labkit setup", description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="the interpreter to use, or to make .venv from")
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        metavar="GROUP",
        choices=["notebook", "serve"],
        help="also install this group",
    )
    options = parser.parse_args(argv)
    begun = time.monotonic()
    try:
        python = setup((*DEFAULT_GROUPS, *options.extra), options.python or None)
    except KeyboardInterrupt:
        print("\nInterrupted. Run `make setup` again; what was downloaded is kept.")
        return 130
    print(f"Environment: {python} ({time.monotonic() - begun:.1f} s). Next: `make demo`.")
    return 0
