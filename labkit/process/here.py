"""Run a Python program where there are no processes: inside this one, as a browser's tab must.

`labkit.inside.child.run` calls it when it is told to (`child.runs_here`). The program gets the
environment, the overlay and the modules that a child would have, and afterwards this process is as
it was before: what the program imported from the checkout is forgotten, so that the next run
imports the learner's files anew. Limits of memory and output files do not exist here, and time is
the page's to watch.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from labkit.course.root import HOME
from labkit.process import overlay

ENGINE = ("mini_vllm", "tests")
"""Packages of which nothing may be imported yet when a program begins: the overlay goes first."""


class Cut(io.StringIO):
    """Keeps the first characters of what is written and lets the rest go."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def write(self, text: str) -> int:
        super().write(text[: max(0, self.most - self.tell())])
        return len(text)


def run(command: Sequence[str], env: Mapping[str, str], most: int) -> tuple[int, str, str]:
    """Run `-m module words…` to its end.

    Args:
        command: as for `python`; only `-m` is known here.
        env: the program's whole environment.
        most: characters of each stream to keep.

    Returns:
        Exit code, stdout, stderr.
    """
    dash, module, *words = command
    assert dash == "-m", f"`python {dash}` needs a process; here only `-m` is known"
    out, err, code = Cut(most), Cut(most), 0
    with _as_a_child(env), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = [module, *words]
        try:
            overlay.install(json.loads(env.get(overlay.VARIABLE, "{}")))
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:  # a child would end by it, and print it
            traceback.print_exc()
            code = 1
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _as_a_child(env: Mapping[str, str]) -> Iterator[None]:
    """The environment of a fresh process, and afterwards this one's own."""
    before = dict(os.environ), list(sys.path), list(sys.argv), list(sys.meta_path)
    _forget(name for name in list(sys.modules) if name.partition(".")[0] in ENGINE)
    known = set(sys.modules)
    os.environ.clear()
    os.environ.update(env)
    ours = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = list(dict.fromkeys([*ours, *sys.path]))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        sys.path[:], sys.argv, sys.meta_path[:] = before[1], before[2], before[3]
        _forget(name for name in sys.modules.keys() - known if _is_of_the_checkout(name))
        gc.unfreeze()
        gc.collect()


def _forget(names: Iterator[str]) -> None:
    for name in list(names):
        sys.modules.pop(name, None)


def _is_of_the_checkout(name: str) -> bool:
    """Whether a module is one of ours, or a test's; those of installed packages stay."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    packages = "site-packages" in Path(file).parts
    return name.partition(".")[0] in ENGINE or (file.startswith(str(HOME.parent)) and not packages)
