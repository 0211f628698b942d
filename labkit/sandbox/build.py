"""Where code that is graded runs: an engine without the graded modules, and the learner's files in
their places.

A worker gets a fresh folder each time it starts:

    engine/     the engine's packages; the phase's modules are the submission's files, and nothing
                else of the submission is there
    tools/      those few files of labkit that the worker's side of the protocol needs
    scratch/    home, working directory and temporary folder, and the only place to write

The interpreter starts isolated (`-I -S`): no variable, no user site, no .pth file and no
sitecustomize reaches it. It finds those three folders' code and the installed packages. What it can
see beyond that is up to the rung (`labkit.sandbox.isolation`).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.course.manifest import Phase
from labkit.course.root import HOME
from labkit.inside import child
from labkit.sandbox import isolation
from labkit.sandbox.isolation import View

MAX_FILE = 1 << 20
TOOLS = (
    "__init__.py",
    "inside/*.py",
    "inside/serving/*.py",
    "trace/__init__.py",
    "trace/external.py",
    "trace/format.py",
    "trace/groups.py",
    "trace/runner.py",
    "trace/scenario.py",
    "trace/stand_ins.py",
    "arena/__init__.py",
    "arena/scenario.py",
)
"""All of labkit that a worker gets, as patterns. None of it knows an answer."""
KERNEL_TOOLS = ("kernels/__init__.py", "kernels/cases/*.py", "kernels/watch/*.py")
"""What a worker needs besides to draw a kernel's cases, interpret it and compile it: no oracle."""
HEAVY = ("torch", "triton", "transformers")
TASKS = 64
FILES = 1024
MAPPED_MB = 8192
"""Address space beyond the memory limit: libraries are mapped, not used."""
CPU_SECONDS = 300
START = """
import sys
sys.path[:0] = {ours}
sys.path += {packages}
from labkit.inside import child, own_stack, worker_child
child.prepare_from_environment()
child.be_killed_first()
main = worker_child.main
own_stack.hide()
del child, own_stack, worker_child
main()
"""


class SubmissionError(ValueError):
    """A file of a submission that cannot be taken; the message names the file and the reason."""


def declared(files: Mapping[str, Path]) -> dict[str, bytes]:
    """Read a submission's files: module -> content. A link could hand in any file that the grader
    can read, so each must be a plain file.

    Raises:
        SubmissionError: a file is missing, no plain file, too large, or closed to the grader.
    """
    found = {}
    for module, path in files.items():
        try:
            about = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            raise SubmissionError(f"{path.name} is missing") from None
        except OSError as error:  # its folder is closed
            raise SubmissionError(f"{path.name} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(about.st_mode):
            raise SubmissionError(f"{path.name} is a link or no file; hand in the file itself")
        if about.st_size > MAX_FILE:
            raise SubmissionError(
                f"{path.name} has {about.st_size} bytes; at most {MAX_FILE} are graded"
            )
        try:
            found[module] = path.read_bytes()
        except OSError as error:
            raise SubmissionError(f"{path.name} cannot be read: {error.strerror}") from None
    return found


def packages_of(phase: Phase) -> list[str]:
    """The engine's top-level packages that a phase takes its modules from."""
    return sorted({module.partition(".")[0] for module in phase.modules})


def heavy_packages(phase: Phase) -> list[str]:
    """Installed packages that a phase's modules import and that take seconds to load."""
    texts = [phase.reference_file(m).read_text(encoding="utf-8") for m in phase.modules]
    return [
        name
        for name in HEAVY
        if any(re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE) for text in texts)
    ]


def site_folders() -> list[Path]:
    """Where the installed packages lie, the user's own left out."""
    names = ("site-packages", "dist-packages")
    private = Path.home() / ".local"
    folders = [Path(entry).resolve() for entry in sys.path if Path(entry).name in names]
    return [f for f in dict.fromkeys(folders) if f.is_dir() and not f.is_relative_to(private)]


class Sandbox:
    """A launcher for `labkit.process.worker.Worker`: every start gets a fresh folder on one rung.

    Args:
        phase: whose modules are graded.
        submission: module -> content of its file, for every module of the phase.
        rung: how it is locked up.
        python: the interpreter; default: this one, where its real file lies.
        tools: the files of labkit that its workers get, as patterns.
        compiles: for the kernel checker, whose compilers are processes.

    Attributes:
        stand_ins: modules of the submission that the next workers get other files for.
    """

    def __init__(
        self,
        phase: Phase,
        submission: Mapping[str, bytes],
        rung: type[isolation.Rung],
        python: str = "",
        tools: Sequence[str] = TOOLS,
        compiles: bool = False,
    ) -> None:
        if set(submission) != set(phase.modules):
            raise ValueError(
                f"a submission of phase {phase.number} is {sorted(phase.modules)};"
                f" this one is {sorted(submission)}"
            )
        self.phase, self.submission, self.rung_type = phase, dict(submission), rung
        self.stand_ins: dict[str, bytes] = {}
        self.python, self.tools = python or os.path.realpath(sys.executable), tuple(tools)
        self.compiles = compiles
        self._places: dict[Any, tuple[isolation.Rung, tempfile.TemporaryDirectory[str]]] = {}

    def for_kernels(self) -> Sandbox:
        """A launcher for the same submission on the same rung, for workers of the kernel
        checker. Their address space has no limit: cases whose offsets exceed 32 bits map many GiB
        and touch a few pages. Code that touches it all is the first that ends when memory runs
        out."""
        tools = (*TOOLS, *KERNEL_TOOLS)
        return Sandbox(
            self.phase, self.submission, self.rung_type, self.python, tools, compiles=True
        )

    def start(self, limits: child.Limits) -> subprocess.Popen[bytes]:
        """
        Raises:
            OSError: the rung does not work here.
        """
        rung = self.rung_type()
        place = tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True)
        folder = Path(place.name)
        build(folder, self.phase, self.submission | self.stand_ins, self.tools)
        limits = replace(
            limits,
            mapped_mb=0 if self.compiles else limits.memory_mb + MAPPED_MB,
            cpu_seconds=CPU_SECONDS,
            tasks=rung.tasks() + TASKS,
            files=FILES,
            alone=not self.compiles,
        )
        own = dict(self.phase.environment)
        env = environment(folder / "scratch") | own | child.variable(limits)
        ours = [str(folder / "engine"), str(folder / "tools")]
        packages = [str(path) for path in site_folders()]
        code = rung.prologue() + START.format(ours=ours, packages=packages)
        words = [self.python, "-I", "-S", "-B", "-c", code]
        process = rung.start(words, env, view(folder, self.phase, self.python))
        self._places[process] = rung, place
        return process

    def ask(self, process: subprocess.Popen[bytes]) -> None:
        """No output may show where graded code hangs; end it."""
        self.end(process)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        if process not in self._places:  # it has been ended
            return
        rung, place = self._places.pop(process)
        rung.end(process)
        try:
            place.cleanup()
        except RecursionError:  # folders that lie deeper in each other than Python 3.12 can go
            subprocess.run(["rm", "-rf", "--", place.name], stderr=subprocess.DEVNULL)


def files_of(tools: Sequence[str]) -> list[Path]:
    """The files of labkit that some patterns name."""
    return [path for pattern in tools for path in sorted(HOME.glob(pattern))]


def build(
    folder: Path, phase: Phase, submission: Mapping[str, bytes], tools: Sequence[str] = TOOLS
) -> None:
    """Fill an empty folder. The graded modules' own source is not copied, nor is any bytecode."""
    left_out = {phase.reference_file(module) for module in phase.modules}

    def skipped(where: str, names: list[str]) -> set[str]:
        return {n for n in names if n == "__pycache__" or Path(where, n) in left_out}

    for package in packages_of(phase):
        shutil.copytree(phase.root / package, folder / "engine" / package, ignore=skipped)
    for module, content in submission.items():
        target = folder.joinpath("engine", *module.split(".")).with_suffix(".py")
        target.write_bytes(content)
    for path in files_of(tools):
        target = folder / "tools" / "labkit" / path.relative_to(HOME)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in ("scratch", "root"):
        (folder / name).mkdir()
    open_to_all(folder)


def open_to_all(folder: Path) -> None:
    """Let every user read what lies here: a worker may be another one, and neither the grader's
    umask nor the modes of a checkout that is closed to others may stand in its way."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def environment(scratch: Path) -> dict[str, str]:
    """The variables of every worker, besides its phase's own: a home, one thread, no network."""
    return {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "USER": "learner",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "MINI_VLLM_NATIVE": "0",  # no compiler for a submission, and no cache of ours
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_LOGGING_LEVEL": "WARNING",  # a verdict's screen has no lines of an engine's start
        "TRITON_CACHE_DIR": str(scratch / "triton"),
    }


def view(folder: Path, phase: Phase, python: str) -> View:
    """What a worker in `folder` may see. The checkout is secret, and so is an engine that was
    installed beside the packages."""
    sites = site_folders()
    installed = [site / name for site in sites for name in packages_of(phase)]
    return View(
        readable=(
            Path(python).parent.parent,
            *sites,
            folder / "engine",
            folder / "tools",
        ),
        scratch=folder / "scratch",
        root=folder / "root",
        secret=(phase.root, *(path for path in installed if path.exists())),
    )


def choose_rung(
    phase: Phase, wanted: str = isolation.AUTO, python: str = ""
) -> tuple[type[isolation.Rung], dict[str, str]]:
    """The strongest rung for this phase on this machine, and why each stronger one fails.

    Raises:
        ValueError: `wanted` is no rung, or does not work here.
    """
    python = python or os.path.realpath(sys.executable)
    with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for part in ("engine", "tools", "scratch", "root"):
            (folder / part).mkdir()
        open_to_all(folder)
        return isolation.choose(view(folder, phase, python), python, wanted)
