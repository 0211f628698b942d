"""What any worker can be asked to do: answer, load packages. Runs in the child only.

A scenario is a function of keyword arguments, plain data in and plain data out; one that yields
sends each value as soon as it has it. `labkit.inside.worker_child` names the modules that hold
some.
"""

from __future__ import annotations

import importlib


def ping() -> str:
    """Answer: the worker has started."""
    return "pong"


def warm(packages: list[str]) -> None:
    """Import installed packages, so that later answers do not take the time for it."""
    for name in packages:
        importlib.import_module(name)
