"""From this machine to a ready environment, without touching any interpreter of yours.

    PYTHON=... has everything?  -> use it as it is
    .venv is complete?          -> use it                    (a stamp file says so, in milliseconds)
    this python has everything? -> use it as it is           (works without a package index)
    otherwise                   -> create or repair .venv    (torch first, then the rest)

`look` reads the machine, `plan` turns that into a list of steps and touches nothing, `carry_out`
does them. A set-up that was interrupted is noticed, and .venv is made afresh.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.course.root import ROOT
from labkit.setup.pythons import Interpreter, other_pythons, probe
from labkit.setup.requirements import (
    PYTHONS,
    Requirement,
    SetupError,
    missing,
    requirements,
)
from labkit.setup.venv import TORCH, TORCH_CPU_INDEX, Step, Venv, do


@dataclass(frozen=True)
class Machine:
    """What `plan` needs to know.

    `venv_state` is one of: `absent`, `ready` (complete for the groups asked for), `usable` (works,
    packages missing), `broken` (ours, but its Python does not run), `foreign` (not an environment).
    """

    system: str
    processor: str
    has_gpu: bool
    writable: bool
    venv_state: str
    venv: Interpreter | None
    candidates: tuple[Interpreter, ...]
    override: Interpreter | None = None


def venv_state(
    venv: Venv, groups: Sequence[str], names: Sequence[str]
) -> tuple[str, Interpreter | None]:
    """Which state of `Machine.venv_state` the folder is in, and its interpreter if it runs."""
    if not venv.path.exists():
        return ("broken" if venv.path.is_symlink() else "absent"), None
    found = probe(str(venv.python), names)
    complete = found is not None and not missing(requirements(groups), found.packages)
    if found is not None and complete and found.supported and set(groups) <= set(venv.groups()):
        return "ready", found
    whole = (venv.path / "bin" / "pip").exists() and not venv.busy.exists()
    if found is not None and found.has_venv and whole:
        return "usable", found
    ours = any(path.exists() for path in (venv.busy, venv.stamp, venv.path / "pyvenv.cfg"))
    return ("broken" if ours or not any(venv.path.iterdir()) else "foreign"), None


def find_candidates(venv: Venv, names: Sequence[str]) -> tuple[Interpreter, ...]:
    """Interpreters that may be ready, or the base of a new environment.

    Looks no further than the running one and `python3` when one of them can serve as a base.
    """
    here = getattr(sys, "_base_executable", sys.executable) if venv.is_running() else sys.executable
    found: dict[str, Interpreter] = {}
    for index, path in enumerate((here, *other_pythons())):
        if index > 1 and any(c.supported and c.has_venv for c in found.values()):
            break
        answer = probe(path, names) if os.path.exists(path) else None
        if answer is not None:
            found.setdefault(answer.path, answer)
    return tuple(found.values())


def look(groups: Sequence[str], override: str | None = None) -> Machine:
    """Read this machine. Changes nothing."""
    venv, names = Venv(), [need.name for need in requirements(groups)]
    chosen = None
    if override:
        chosen = probe(shutil.which(override) or override, names)
        if chosen is None:
            raise SetupError(f"PYTHON={override} does not run", f"give the path of one, {PYTHONS}")
        if Path(chosen.path) == venv.python:
            chosen = None
    state, found = venv_state(venv, groups, names)
    return Machine(
        system=sys.platform,
        processor=platform.machine(),
        has_gpu=shutil.which("nvidia-smi") is not None,
        writable=os.access(ROOT, os.W_OK),
        venv_state=state,
        venv=found,
        candidates=() if state == "ready" and not chosen else find_candidates(venv, names),
        override=chosen,
    )


def plan(machine: Machine, groups: Sequence[str]) -> list[Step]:
    """The steps from this machine to a ready environment. Pure: reads and changes nothing else."""
    wanted = requirements(groups, machine.system)
    ready = choose_ready(machine, wanted)
    if ready is not None:
        return [Step("use", f"Use {ready} as it is", (ready.path,))]
    base = choose_base(machine)
    venv, steps = machine.venv, []
    if machine.venv_state == "foreign":
        raise SetupError(
            f"{ROOT / '.venv'} exists and is not a Python environment",
            "move it away, then run this again",
        )
    if must_rebuild(machine):
        steps.append(Step("remove", "Remove the unusable .venv"))
        venv = None
    if venv is None:
        steps.append(Step("create", f"Create .venv from {base}", (base.path,)))
    lacking = missing(wanted, venv.packages if venv else {})
    if any(need.name == "torch" for need in lacking):
        steps.append(torch_step(machine))
    rest = [need.text for need in lacking if need.name != "torch"]
    if rest:
        steps.append(
            Step("install", f"Install {len(rest)} packages and what they need", tuple(rest))
        )
    return steps


def choose_ready(machine: Machine, wanted: Sequence[Requirement]) -> Interpreter | None:
    """The interpreter that needs nothing: the override, else .venv, else one found."""
    if machine.override is not None:
        candidates: tuple[Interpreter, ...] = (machine.override,)
    elif machine.venv_state == "ready":
        return machine.venv
    else:
        candidates = machine.candidates
    return next((c for c in candidates if c.supported and not missing(wanted, c.packages)), None)


def choose_base(machine: Machine) -> Interpreter:
    """The interpreter that a new .venv is made from, or the reason why there is none."""
    if not machine.writable:
        raise SetupError(
            f"the folder {ROOT} is read-only and no Python here has all that is needed",
            "copy the repository to a folder you may write to",
        )
    candidates = (machine.override,) if machine.override else machine.candidates
    supported = [c for c in candidates if c.supported]
    if not supported:
        seen = ", ".join(str(c) for c in candidates) or "none"
        raise SetupError(
            f"needs {PYTHONS}; found: {seen}",
            "install one of them, then run `make setup PYTHON=/path/to/python3.12`",
        )
    base = next((c for c in supported if c.has_venv), None)
    if base is None:
        minor = supported[0].version[1]
        raise SetupError(
            f"{supported[0]} has no venv module",
            f"on Debian and Ubuntu: `sudo apt install python3.{minor}-venv`; then run this again",
        )
    return base


def must_rebuild(machine: Machine) -> bool:
    """Whether the .venv that is there cannot be repaired by installing into it."""
    if machine.venv_state == "broken":
        return True
    if machine.venv is None:
        return False
    if machine.override and machine.override.version[:2] != machine.venv.version[:2]:
        return True
    return not machine.venv.supported


def torch_step(machine: Machine) -> Step:
    """Torch goes in first and pinned, so that no other package can pull in another build of it."""
    if machine.system == "darwin" and machine.processor == "x86_64":
        raise SetupError(
            "torch has no build for Macs with an Intel processor",
            "use the devcontainer, or a Linux machine",
        )
    if machine.system == "linux" and not machine.has_gpu:
        text = f"Install torch {TORCH} for the CPU (no NVIDIA driver here)"
        return Step("torch", text, (TORCH_CPU_INDEX,))
    kind = "with CUDA, about 2.5 GB" if machine.has_gpu else "for this Mac"
    return Step("torch", f"Install torch {TORCH} ({kind})")


# ---------------------------------------------------------------- doing
def carry_out(steps: Sequence[Step], groups: Sequence[str], venv: Venv) -> str:
    """Do the steps, saying each and how long it took. Returns the path of the interpreter."""
    if steps and steps[0].kind == "use":
        return steps[0].words[0]
    started = time.monotonic()
    for number, step in enumerate(steps, 1):
        begun = time.monotonic()
        print(f"[{number}/{len(steps)}] {step.text}", flush=True)
        do(step, venv)
        print(f"      done in {time.monotonic() - begun:.0f} s", flush=True)
    found = probe(str(venv.python), ["torch"])
    if found is None:
        raise SetupError(f"{venv.python} does not run", "remove .venv, then run this again")
    version = ".".join(map(str, found.version))
    venv.write_stamp(list(dict.fromkeys([*venv.groups(), *groups])), version)
    torch = found.packages.get("torch", "?")
    seconds = time.monotonic() - started
    print(f"Ready in {seconds:.0f} s: .venv with Python {version} and torch {torch}.", flush=True)
    return str(venv.python)


def index_reachable(python: str, package: str) -> bool:
    """Whether pip finds this package anywhere, asked in a hurry."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "pip", "download", "-q", "--no-deps", "--retries", "0"]
        command += ["--timeout", "5", "-d", folder, package]
        try:
            return subprocess.run(command, capture_output=True, timeout=40).returncode == 0
        except subprocess.TimeoutExpired:
            return False


# ---------------------------------------------------------------- the whole of it
def setup(groups: Sequence[str], override: str | None = None) -> str:
    """Make sure of an environment with these groups. Returns the path of its interpreter."""
    venv = Venv()
    with one_at_a_time(venv):
        machine = look(groups, override)
        try:
            steps = plan(machine, groups)
        except SetupError:
            ready = without_index(machine, groups)
            if ready is None:
                raise
            return ready
        if steps and steps[0].kind == "use":
            return steps[0].words[0]
        ready = without_index(machine, groups)
        if ready is not None:
            return ready
        print(f"Setting up mini_vllm in {venv.path} (once; a minute or two)", flush=True)
        return carry_out(steps, groups, venv)


def without_index(machine: Machine, groups: Sequence[str]) -> str | None:
    """Offline, an interpreter that lacks only the tools of `make test` is used as it is."""
    wanted = requirements(groups, machine.system)
    core = requirements(("engine", "course"), machine.system)
    candidates = (machine.override,) if machine.override else machine.candidates
    for found in candidates:
        lacking = missing(wanted, found.packages)
        if not found.supported or missing(core, found.packages) or not lacking:
            continue
        if machine.writable and index_reachable(found.path, lacking[0].text):
            return None
        names = ", ".join(need.name for need in lacking)
        print(f"No package index answers: using {found} as it is. It lacks {names}.", flush=True)
        return found.path
    return None


@contextlib.contextmanager
def one_at_a_time(venv: Venv) -> Iterator[None]:
    """Two set-ups of one environment wait for each other, also where several checkouts link to it:
    a set-up that is under way looks like one that was cut short."""
    path = venv.path.resolve()
    if not os.access(path.parent, os.W_OK):
        yield
        return
    import fcntl

    with path.with_name(f"{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up of this environment is running: waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
