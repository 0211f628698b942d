"""Find or make the environment that the project runs in. Standard library only.

`python -m labkit setup` (or `make setup`) ends with an interpreter that has every package listed in
`pyproject.toml`. It never installs into an interpreter of yours: what is missing goes into `.venv`.

    PYTHON=... has everything?  -> use it as it is
    .venv is complete?          -> use it                    (a stamp file says so, in milliseconds)
    this python has everything? -> use it as it is           (works without a package index)
    otherwise                   -> create or repair .venv    (torch first, then the rest)

`look` reads the machine, `plan` turns that into a list of steps and touches nothing, `carry_out`
does them. A set-up that was interrupted is noticed, and .venv is made afresh.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = (3, 11), (3, 13)
DEFAULT_GROUPS = ("engine", "course", "dev", "serve", "structured", "vision")
TORCH = "2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ENTERED = "LABKIT_ENTERED"  # set for one exec, so that a broken environment cannot loop


class SetupError(Exception):
    """Set-up cannot go on. Says what is wrong and what to do about it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"setup: {problem}\n  fix: {fix}")


# ---------------------------------------------------------------- requirements
@dataclass(frozen=True)
class Requirement:
    """One line of `pyproject.toml`, such as `torch>=2.11,<2.14`."""

    text: str
    name: str
    bounds: tuple[tuple[str, str], ...]

    def accepts(self, version: str | None) -> bool:
        """Whether an installed version (None: not installed) is within the bounds."""
        return version is not None and all(
            _compare(_release(version), operator, _release(limit))
            for operator, limit in self.bounds
        )


def _release(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13): trailing zeros, local parts and pre-release marks do not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else [0]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _compare(have: tuple[int, ...], operator: str, limit: tuple[int, ...]) -> bool:
    return {"==": have == limit, ">=": have >= limit, "<": have < limit}[operator]


def parse_requirement(text: str, system: str = sys.platform) -> Requirement | None:
    """Read one requirement; None when its marker excludes this system.

    Knows the forms that `pyproject.toml` uses: `name>=a,<b` and the marker `sys_platform == 'x'`.
    """
    body, _, marker = text.partition(";")
    only_on = re.fullmatch(r"\s*sys_platform == '(\w+)'\s*", marker)
    if marker and only_on is None:
        raise ValueError(f"{text!r}: only the marker sys_platform == '...' is understood")
    if only_on and only_on.group(1) != system:
        return None
    match = re.fullmatch(r"\s*([\w.-]+)\s*((?:(?:==|>=|<)[\w.]+,?)*)\s*", body)
    if match is None:
        raise ValueError(f"{text!r}: only `name` with the bounds ==, >= and < is understood")
    bounds = re.findall(r"(==|>=|<)([\w.]+)", match.group(2))
    return Requirement(body.strip(), match.group(1), tuple(bounds))


def requirements(groups: Sequence[str], system: str = sys.platform) -> list[Requirement]:
    """All requirements of some groups: `engine`, or the name of an optional group."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, Requirement] = {}
    for group in groups:
        optional = project["optional-dependencies"]
        for text in project["dependencies"] if group == "engine" else optional[group]:
            requirement = parse_requirement(text, system)
            if requirement is not None:
                found[requirement.name] = requirement
    return list(found.values())


def missing(wanted: Sequence[Requirement], have: Mapping[str, str]) -> list[Requirement]:
    """The requirements that a set of installed versions does not meet."""
    return [need for need in wanted if not need.accepts(have.get(need.name))]


def installed(names: Sequence[str]) -> dict[str, str]:
    """Versions of the packages that the running interpreter has."""
    have = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            have[name] = importlib.metadata.version(name)
    return have


# ---------------------------------------------------------------- looking
@dataclass(frozen=True)
class Interpreter:
    """A Python that answered: where it is, and which packages it has."""

    path: str
    version: tuple[int, int, int]
    packages: Mapping[str, str] = field(default_factory=dict)
    has_venv: bool = True

    @property
    def supported(self) -> bool:
        return OLDEST <= self.version[:2] <= NEWEST

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


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


PROBE = """
import json, sys
from importlib import metadata
from importlib.util import find_spec
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps({"path": sys.executable, "version": sys.version_info[:3], "packages": packages,
                  "has_venv": bool(find_spec("venv") and find_spec("ensurepip"))}))
"""


def probe(path: str, names: Sequence[str] = ()) -> Interpreter | None:
    """Ask a Python what it is; None when it does not run (a dangling link, a stub)."""
    try:
        answer = subprocess.run(
            [path, "-c", PROBE, *names], capture_output=True, text=True, timeout=30, cwd="/"
        )
        found = json.loads(answer.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    version = tuple(found["version"])
    return Interpreter(found["path"], version, found["packages"], found["has_venv"])


class Venv:
    """The project's own environment, and the stamp file that says it is complete."""

    def __init__(self, root: Path = ROOT) -> None:
        self.path = root / ".venv"
        self.python = self.path / "bin" / "python"
        self.stamp = self.path / "mini-vllm.json"
        self.log = self.path / "setup.log"
        self.busy = self.path / "installing"  # there while an installer writes into the folder

    def read_stamp(self) -> dict[str, object]:
        try:
            return dict(json.loads(self.stamp.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Mark the folder as ours and half-done until the body ends, also by a SetupError."""
        self.path.mkdir(exist_ok=True)
        self.busy.touch()
        try:
            yield
        except SetupError:
            self.busy.unlink()
            raise
        self.busy.unlink()

    def write_stamp(self, groups: Sequence[str], version: str) -> None:
        text = json.dumps({"groups": list(groups), "key": stamp_key(groups), "python": version})
        draft = self.stamp.with_suffix(".tmp")
        draft.write_text(text + "\n", encoding="utf-8")
        os.replace(draft, self.stamp)

    def groups(self) -> list[str]:
        """The groups that are installed as `pyproject.toml` now asks for."""
        stamp = self.read_stamp()
        groups = stamp.get("groups")
        if not isinstance(groups, list) or not self.python.exists():
            return []
        try:
            return groups if stamp.get("key") == stamp_key(groups) else []
        except KeyError:  # a group that pyproject.toml no longer has
            return []

    def is_running(self) -> bool:
        """Whether this very process runs in the environment."""
        return Path(sys.prefix).resolve() == self.path.resolve()


def stamp_key(groups: Sequence[str]) -> str:
    """Changes whenever the requirements of these groups change."""
    texts = sorted(need.text for need in requirements(groups))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def venv_state(
    venv: Venv, groups: Sequence[str], names: Sequence[str]
) -> tuple[str, Interpreter | None]:
    """Which state of `Machine.venv_state` the folder is in, and its interpreter if it runs."""
    if not venv.path.exists():
        return "absent", None
    found = probe(str(venv.python), names)
    complete = found is not None and not missing(requirements(groups), found.packages)
    if found is not None and complete and found.supported and set(groups) <= set(venv.groups()):
        return "ready", found
    whole = (venv.path / "bin" / "pip").exists() and not venv.busy.exists()
    if found is not None and found.has_venv and whole:
        return "usable", found
    ours = any(path.exists() for path in (venv.busy, venv.stamp, venv.path / "pyvenv.cfg"))
    return ("broken" if ours or not any(venv.path.iterdir()) else "foreign"), None


def other_pythons() -> Iterator[str]:
    """Paths where a supported Python may be, most likely first."""
    for name in ("python3", "python", "python3.13", "python3.12", "python3.11"):
        path = shutil.which(name)
        if path:
            yield path
    for folder in (Path("/opt/homebrew/bin"), Path("/usr/local/bin"), Path("/usr/bin")):
        yield from (str(folder / f"python3.{minor}") for minor in (13, 12, 11))
    for minor in (13, 12, 11):
        versions = Path.home() / ".pyenv" / "versions"
        yield from map(str, sorted(versions.glob(f"3.{minor}.*/bin/python3")))


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
            raise SetupError(
                f"PYTHON={override} does not run", "give the path of a Python 3.11, 3.12 or 3.13"
            )
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


# ---------------------------------------------------------------- planning
@dataclass(frozen=True)
class Step:
    """One thing to do: `use`, `remove`, `create`, `torch` or `install`."""

    kind: str
    text: str
    words: tuple[str, ...] = ()


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
            f"needs Python 3.11, 3.12 or 3.13; found: {seen}",
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


def do(step: Step, venv: Venv) -> None:
    """Carry out one step."""
    if step.kind == "remove":
        shutil.rmtree(venv.path)
    elif step.kind == "create":
        create(step.words[0], venv)
    elif step.kind == "torch":
        install_torch(step, venv)
    else:
        constraint = venv.path / "constraints.txt"
        pinned = probe(str(venv.python), ["torch"])
        version = pinned.packages["torch"].split("+")[0] if pinned else TORCH
        constraint.write_text(f"torch=={version}\n", encoding="utf-8")
        pip(venv, ["-c", str(constraint), *step.words])


def create(python: str, venv: Venv) -> None:
    """Make the environment."""
    command = [python, "-m", "venv", str(venv.path)]
    with venv.writing():
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise SetupError(
                f"{python} -m venv failed: {' '.join(last)}",
                "name another Python: `make setup PYTHON=/path/to/python3.12`",
            )


def install_torch(step: Step, venv: Venv) -> None:
    """From the CPU index where it answers, else from the package index that pip is set up with."""
    for index in step.words:
        if not answers(index):
            print(f"      {index} does not answer: using your package index", flush=True)
            continue
        with contextlib.suppress(SetupError):
            pip(venv, ["--index-url", index, f"torch=={TORCH}"])
            return
    pip(venv, [f"torch=={TORCH}"])


def answers(url: str, seconds: float = 4.0) -> bool:
    """Whether a web address answers soon; the thread bounds the name look-up, too."""
    ok: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            request = urllib.request.Request(url + "/", method="HEAD")
            ok.append(urllib.request.urlopen(request, timeout=seconds).status < 400)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(ok and ok[0])


def pip(venv: Venv, words: Sequence[str]) -> None:
    """`pip install` into .venv. Its output goes to a log; a line now and then shows it is alive.

    Bytecode is left to the first import where Python may write it then: compiling all of torch and
    transformers takes a third of set-up's time.
    """
    command = [str(venv.python), "-m", "pip", "install", "--no-input", "--prefer-binary"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"]
    command += [*([] if sys.dont_write_bytecode else ["--no-compile"]), *words]
    output: list[str] = []
    with venv.writing(), venv.log.open("a", encoding="utf-8") as log, heartbeat(output):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        try:
            for line in process.stdout or ():
                log.write(line)
                if not line.startswith("WARNING: Location"):
                    output.append(line.strip())
        except BaseException:  # Ctrl-C: leave no installer behind
            process.kill()
            raise
        failed = process.wait()
    if failed:
        lacking = [word for word in words if re.match(r"[A-Za-z]", word)]
        raise explain("\n".join(output), lacking, venv.log)


@contextlib.contextmanager
def heartbeat(output: Sequence[str], every: float = 15.0) -> Iterator[None]:
    """Print the latest line of pip every so often, so that a long download does not look hung."""
    finished, begun = threading.Event(), time.monotonic()

    def beat() -> None:
        while not finished.wait(every):
            latest = output[-1][:80] if output else "starting"
            print(f"      {time.monotonic() - begun:.0f} s: {latest}", flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


UNREACHABLE = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|Temporary failure in name resolution"
    "|Name or service not known|Network is unreachable|Connection refused|ProxyError|SSLError"
)


def explain(output: str, lacking: Sequence[str], log: Path) -> SetupError:
    """Turn pip's output into one error that names the package and the fix."""
    match = re.search(r"(?:satisfies the requirement|distribution found for) ([^\s;(]+)", output)
    package = match.group(1) if match else lacking[0]
    if "No space left on device" in output:
        return SetupError(f"the disk is full while installing {package}", "free about 4 GB")
    if UNREACHABLE.search(output):
        others = len(lacking) - 1
        more = f" and {others} more" if others else ""
        return SetupError(
            f"no package index answers, so {package}{more} cannot be installed",
            "go online, or set PIP_INDEX_URL to a mirror, or name a Python that already has them: "
            "`make setup PYTHON=/path/to/python`",
        )
    if match:
        return SetupError(
            f"the package index has no {package} for this Python and system",
            "try another Python (`make setup PYTHON=/path/to/python3.12`) or package index "
            f"(PIP_INDEX_URL); pip's own words: {log}",
        )
    last = " / ".join(line for line in output.splitlines()[-3:])
    return SetupError(f"pip failed: {last}", f"read {log}, then run this again")


def index_reachable(python: str, package: str) -> bool:
    """Whether pip finds this package anywhere, asked in a hurry."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "pip", "download", "-q", "--no-deps", "--retries", "0"]
        command += ["--timeout", "5", "-d", folder, package]
        try:
            return subprocess.run(command, capture_output=True, timeout=40).returncode == 0
        except subprocess.TimeoutExpired:
            return False


# ---------------------------------------------------------------- entry points
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
    """Two set-ups of one checkout wait for each other."""
    if not os.access(venv.path.parent, os.W_OK):
        yield
        return
    import fcntl

    with venv.path.with_name(".venv.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up of this checkout is running: waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_python(argv: Sequence[str]) -> None:
    """Go on with a supported Python when this one is not."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    for path in other_pythons():
        found = probe(path) if os.path.exists(path) else None
        if found is not None and found.supported:
            replace_process(found.path, argv)
    raise SetupError(
        f"needs Python 3.11, 3.12 or 3.13; this is {platform.python_version()} ({sys.executable})",
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
