"""How well a grader can lock up code that it does not trust: a ladder of four rungs.

| rung | files | processes | network |
|---|---|---|---|
| `container` (bubblewrap) | only what is shown | own | none |
| `namespaces` (Linux, root or user namespaces) | only what is shown | own | none |
| `other-uid` (run by root) | those that another user may read | another user's | open |
| `plain` (any system) | all of yours | yours | open |

`choose` takes the strongest rung that works here. It does not ask for a version or a flag: it
starts a probe on the rung, which must come up, must be able to write its scratch folder and to read
what it is shown, and must not be able to read what is secret. `plain` hides nothing and is for
practice only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.inside import child
from labkit.inside.timeouts import Patience, until_ended
from labkit.sandbox import namespaces

AUTO = "auto"
SCRATCH_MB = 256
PROBE_SECONDS = 20.0
ENDING_SECONDS = 5.0
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
UIDS = range(61184, 65520)
"""Users that no system gives to people; systemd keeps them for services of a moment, too."""
PROBE = """
import json, os, sys
view = json.loads(sys.argv[1])
open(os.path.join(view["scratch"], "probe"), "w").close()
for path in view["shown"]:
    if not os.access(path, os.R_OK):
        sys.exit(path + " cannot be read")
for top in view["secret"]:
    for folder, folders, names in os.walk(top):
        folders[:] = [f for f in folders if os.path.join(folder, f) not in view["shown"]]
        for path in (os.path.join(folder, name) for name in names):
            if path not in view["shown"] and os.access(path, os.R_OK):
                sys.exit(path + " can be read")
print("ok", end="")
"""


OPEN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
AT_ONCE = 1000  # paths of one command
KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"


@dataclass(frozen=True)
class View:
    """What a locked-up program may see.

    Attributes:
        readable: files and folders, besides the system's.
        scratch: the one folder it may write; its home and its working directory.
        root: an empty folder on which a new root may be mounted.
        secret: folders that must not be readable, below whatever they lie; what is `readable` may
            lie in them, as a virtual environment does in a checkout.
    """

    readable: tuple[Path, ...]
    scratch: Path
    root: Path
    secret: tuple[Path, ...] = ()

    @property
    def shown(self) -> list[str]:
        """Absolute paths, the system's first."""
        return [path for path in SYSTEM if os.path.lexists(path)] + [str(p) for p in self.readable]

    @property
    def hidden(self) -> list[str]:
        """The secrets that lie below, or are, something shown."""
        shown = [Path(path) for path in self.shown]
        return [str(s) for s in self.secret if any(s.is_relative_to(path) for path in shown)]


@dataclass
class Rung(ABC):
    """One way to start a program. An instance belongs to one program's life: its user is its own.

    Attributes:
        uid: the user that the program runs as; meaningful where the grader is root.
    """

    name = ""
    hides = True
    uid: int = field(default_factory=lambda: secrets.choice(UIDS))

    @abstractmethod
    def start(
        self, words: Sequence[str], env: Mapping[str, str], view: View
    ) -> subprocess.Popen[bytes]:
        """Start `words` with `env` and nothing else in its environment."""

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill everything that the program started."""
        child.kill_group(process)

    def missing(self) -> str:
        """Why this rung cannot be tried here, or ""."""
        return ""

    def prologue(self) -> str:
        """Python that the program must run first."""
        return ""

    def tasks(self) -> int:
        """How many processes and threads its user has outside, which a limit must allow for."""
        return _tasks_of(os.getuid()) if os.getuid() else 0


class Bubblewrap(Rung):
    """Flatpak's sandbox: the program sees what is bound for it, in namespaces of its own."""

    name = "container"

    def missing(self) -> str:
        return "" if shutil.which("bwrap") else "bubblewrap (bwrap) is not installed"

    def start(
        self, words: Sequence[str], env: Mapping[str, str], view: View
    ) -> subprocess.Popen[bytes]:
        options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        if os.getuid():
            options += ["--unshare-user"]
        else:  # the program gives up root by itself, before it loads anything
            options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        options += ["--die-with-parent", "--new-session"]
        shown = set(view.shown)
        parents = {str(parent) for path in shown for parent in Path(path).parents[:-1]}
        for path in sorted({*shown, *view.hidden, *parents}):
            if path in shown:
                options += self._show(path)
            else:  # bwrap would take over the modes of the outside
                options += ["--tmpfs", path] if path in view.hidden else _open_folder(path)
        options += ["--dev", "/dev", "--proc", "/proc"]
        size = ["--size", str(SCRATCH_MB << 20), "--perms", "1777", "--tmpfs", str(view.scratch)]
        options += [*size, "--chdir", str(view.scratch), "--remount-ro", "/"]
        return child.spawn([str(shutil.which("bwrap")), *options, "--", *words], env)

    def prologue(self) -> str:
        if os.getuid():
            return ""
        number = self.uid
        return (
            f"import os\nos.setgroups([])\nos.setresgid({number}, {number}, {number})\n"
            f"os.setresuid({number}, {number}, {number})\n"
        )

    @staticmethod
    def _show(path: str) -> list[str]:
        if os.path.islink(path):
            return ["--symlink", os.readlink(path), path]
        return ["--ro-bind", path, path]


def _open_folder(path: str) -> list[str]:
    return ["--perms", "0755", "--dir", path]


class Namespaces(Rung):
    """The same with the kernel's own calls (`labkit.sandbox.namespaces`)."""

    name = "namespaces"

    def missing(self) -> str:
        return "" if sys.platform == "linux" else f"{sys.platform} has no namespaces"

    def start(
        self, words: Sequence[str], env: Mapping[str, str], view: View
    ) -> subprocess.Popen[bytes]:
        spec = {
            "readable": view.shown,
            "hidden": view.hidden,
            "scratch": str(view.scratch),
            "scratch_mb": SCRATCH_MB,
            "root": str(view.root),
            "uid": self.uid,
            "env": dict(env),
        }
        launcher = [sys.executable, "-I", "-S", str(namespaces.__file__), json.dumps(spec), "--"]
        return child.spawn([*launcher, *words], {})

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Let the launcher kill the program, which is process 1 of its world: with it all that is
        in there ends. Were the launcher killed, a program that gave up its parent would live on."""
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            until_ended(process.wait, Patience(ENDING_SECONDS))
        super().end(process)


class OtherUid(Rung):
    """Root starts the program as a user who owns nothing. What others may read, it may read."""

    name = "other-uid"
    python = ""

    def missing(self) -> str:
        if not hasattr(os, "getuid"):
            return f"{sys.platform} has no uids"
        return "" if os.getuid() == 0 else f"only root can change the user; this is {os.getuid()}"

    def start(
        self, words: Sequence[str], env: Mapping[str, str], view: View
    ) -> subprocess.Popen[bytes]:
        os.chown(view.scratch, self.uid, self.uid)
        self.python = words[0]
        return child.spawn(words, env, view.scratch, self.uid)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """The user exists for this program only: whatever it owns dies, daemons too.

        The user's own `kill(-1)` strikes all of them in one moment. A list of processes, read one
        by one, misses those that are forked meanwhile.
        """
        super().end(process)
        killer = child.spawn([self.python, "-I", "-S", "-c", KILL_ALL], {}, uid=self.uid)
        killer.communicate()
        self._sweep()

    def _sweep(self) -> None:
        """Remove what the user has left where every process may leave things."""
        for folder in {tempfile.gettempdir(), *OPEN_FOLDERS}:
            left = [path for path in _listed(folder) if _owner(path) == self.uid]
            for begin in range(0, len(left), AT_ONCE):
                words = ["rm", "-rf", "--", *left[begin : begin + AT_ONCE]]
                subprocess.run(words, stderr=subprocess.DEVNULL)


class Plain(Rung):
    """A child process under limits. It hides nothing."""

    name = "plain"
    hides = False

    def start(
        self, words: Sequence[str], env: Mapping[str, str], view: View
    ) -> subprocess.Popen[bytes]:
        return child.spawn(words, env, view.scratch)

    def tasks(self) -> int:
        return _tasks_of(os.getuid()) if hasattr(os, "getuid") else 0


LADDER: dict[str, type[Rung]] = {
    rung.name: rung for rung in (Bubblewrap, Namespaces, OtherUid, Plain)
}
"""The rungs by their names, strongest first."""
ISOLATION = (*LADDER, "none")
"""How a result says a submission was locked up; "none" if nothing of it was run."""


def choose(view: View, python: str, wanted: str = AUTO) -> tuple[type[Rung], dict[str, str]]:
    """The strongest rung that works here, and why each stronger one does not.

    Args:
        python: the interpreter that the program will need.
        wanted: "auto", or the name of one rung.

    Raises:
        ValueError: no such rung, or it does not work here.
    """
    if wanted not in (AUTO, *LADDER):
        raise ValueError(f"isolation is {wanted!r}; it must be one of {AUTO}, {', '.join(LADDER)}")
    reasons: dict[str, str] = {}
    for name, rung in LADDER.items():
        if wanted in (AUTO, name):
            reason = why_not(rung, view, python)
            if not reason:
                return rung, reasons
            reasons[name] = reason
    said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise ValueError(f"isolation {wanted!r} does not work here: {said}")


def spoken(name: str, unavailable: Mapping[str, str]) -> str:
    """A rung in words: a rung that hides nothing says so, and why there was no better one."""
    if name not in LADDER or LADDER[name].hides:
        return name
    said = "; ".join(f"{stronger}: {reason}" for stronger, reason in unavailable.items())
    return f"{name}, which hides nothing: for practice only" + (f" ({said})" if said else "")


def why_not(rung: type[Rung], view: View, python: str) -> str:
    """Why a rung does not hold on this machine, or "": found out by trying it."""
    trial = rung()
    if reason := trial.missing():
        return reason
    secret = [str(path) for path in view.secret] if trial.hides else []
    told = json.dumps({"scratch": str(view.scratch), "secret": secret, "shown": view.shown})
    words = [python, "-I", "-S", "-c", trial.prologue() + PROBE, told]
    try:
        process = trial.start(words, {}, view)
    except OSError as error:
        return str(error)
    patience = Patience(PROBE_SECONDS, process.pid)
    try:
        out, err = until_ended(lambda most: process.communicate(timeout=most), patience)
    except subprocess.TimeoutExpired:
        return f"the probe did not end in {patience.told()}"
    finally:
        trial.end(process)
    answer = out.decode("utf-8", "replace").strip()
    if answer == "ok":
        return ""
    last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
    return answer or (last or [f"the probe ended with code {process.returncode}"])[0]


def _listed(folder: str) -> list[str]:
    """What lies in a folder, as paths; [] if there is no such folder."""
    with contextlib.suppress(OSError):
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    return []


def _owner(path: str) -> int:
    """The user to whom a file, or a link itself, belongs; -1 if it has gone."""
    with contextlib.suppress(OSError):
        return os.lstat(path).st_uid
    return -1


def _processes_of(uid: int) -> list[int]:
    """Living processes of a user; [] where there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == uid and "\nState:\tZ" not in (folder / "status").read_text():
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


def _tasks_of(uid: int) -> int:
    """Threads of a user, as RLIMIT_NPROC counts them; 0 where there is no /proc."""
    total = 0
    for number in _processes_of(uid):
        try:
            total += len(os.listdir(f"/proc/{number}/task"))
        except OSError:
            continue
    return total
