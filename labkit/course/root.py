"""Where things lie: labkit, the checkout around it, the course to work on, and upstream's source.

Set-up asks this on a bare Python: the standard library only, and nothing else of labkit.
"""

from __future__ import annotations

import os
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
"""The folder of labkit itself."""
ROOT = HOME.parent
"""The checkout that labkit lies in: its pyproject.toml, .venv, docs and results."""
ROOT_VARIABLE = "LABKIT_ROOT"

PIN = "v0.22.1"
UPSTREAM = Path(".upstream") / f"vllm-{PIN[1:]}"
UPSTREAM_VARIABLE = "MINI_VLLM_UPSTREAM"


def find_root() -> Path:
    """The checkout to work on: LABKIT_ROOT, else the one that labkit lies in.

    Raises:
        ValueError: it is no checkout of the course, for it has no folder phases/.
    """
    named = os.environ.get(ROOT_VARIABLE)
    root = Path(named).resolve() if named else ROOT
    if not (root / "phases").is_dir():
        fix = f"give {ROOT_VARIABLE} the folder of a checkout" if named else "work in a checkout"
        raise ValueError(f"{root} is no checkout of the course: it has no phases/; {fix}")
    return root


def upstream_root(project: Path, root: Path | None = None) -> Path | None:
    """The folder that holds upstream's `vllm/`, or None when the source is not on this machine."""
    chosen = root or Path(os.environ.get(UPSTREAM_VARIABLE) or project / UPSTREAM)
    return chosen if (chosen / "vllm").is_dir() else None
