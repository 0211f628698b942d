"""The project's own environment `.venv`: made, filled by pip, and stamped when it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.course.root import ROOT
from labkit.setup import by_hand
from labkit.setup.pythons import probe
from labkit.setup.requirements import SetupError, requirements

TORCH = "2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


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
        for packages in self.path.glob("lib/python3.*/site-packages"):
            by_hand.install(str(packages))

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


@dataclass(frozen=True)
class Step:
    """One thing to do: `use`, `remove`, `create`, `torch` or `install`."""

    kind: str
    text: str
    words: tuple[str, ...] = ()


def do(step: Step, venv: Venv) -> None:
    """Carry out one step."""
    if step.kind == "remove" and venv.path.is_symlink():
        venv.path.unlink()  # what it leads to may be another checkout's
    elif step.kind == "remove":
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
