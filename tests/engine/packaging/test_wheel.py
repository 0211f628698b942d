"""What `pip` installs: built, put into empty environments with each extra, and used there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.course.root import find_root
from labkit.setup.venv import TORCH, TORCH_CPU_INDEX, Step, Venv, create, install_torch
from mini_vllm import __version__
from mini_vllm.extras import DISTRIBUTION
from tests.engine.entrypoints.server import free_port
from tests.engine.packaging.fence import EXTRAS

pytestmark = pytest.mark.slow

WALK = str(Path(__file__).with_name("walk.py"))
SMALL = ("--max-model-len", "256", "--num-gpu-blocks", "64", "--dtype", "float32")
BUILD = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
CAT = "from PIL import Image; Image.new('RGB', (32, 32), 'red').save('cat.png')"


@dataclass(frozen=True)
class Built:
    """The engine's files in git, and what is built of them."""

    tracked: frozenset[str]
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy, for a build leaves folders behind. The wheel is made of the sdist."""
    folder, root = tmp_path_factory.mktemp("built"), find_root()
    command = ["git", "ls-files", "mini_vllm", "pyproject.toml", "README.md", "LICENSE"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in names.stdout.split():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / "source" / name)
    run([sys.executable, "-c", BUILD, str(folder)], folder / "source")
    (sdist,) = folder.glob("*.tar.gz")
    words = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    run([sys.executable, *words, str(sdist)], folder)
    (wheel,) = folder.glob("*.whl")
    tracked = frozenset(name for name in names.stdout.split() if "/" in name)
    return Built(tracked, sdist, wheel)


def run(command: Sequence[str], folder: Path, given: str = "") -> str:
    """What a command writes to standard output; it must succeed."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=plain | {"HF_HUB_OFFLINE": "1"},
        input=given,
        capture_output=True,
        text=True,
        timeout=1800,  # `pip` on a busy machine
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_it_holds_the_engine_and_nothing_else(built: Built) -> None:
    inside = zipfile.ZipFile(built.wheel)
    names = {name for name in inside.namelist() if ".dist-info/" not in name}
    assert names == built.tracked
    assert "mini_vllm/bundled/storyteller/model.safetensors" in names
    (scripts,) = (name for name in inside.namelist() if name.endswith("entry_points.txt"))
    lines = inside.read(scripts).decode().split("\n")
    assert [line for line in lines if "=" in line] == ["mini-vllm = mini_vllm.__main__:main"]
    with tarfile.open(built.sdist) as source:
        held = {name.partition("/")[2] for name in source.getnames()}
    assert built.tracked | {"pyproject.toml", "README.md", "LICENSE"} <= held


def test_its_name_and_version_are_those_that_the_engine_says(built: Built) -> None:
    name = DISTRIBUTION.replace("-", "_")
    assert built.wheel.name == f"{name}-{__version__}-py3-none-any.whl"
    assert built.sdist.name == f"{name}-{__version__}.tar.gz"


# ---------------------------------------------------------------- environments
@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """An environment that has torch alone, in the build that set-up takes."""
    venv = Venv(tmp_path_factory.mktemp("base"))
    create(sys.executable, venv)
    install_torch(Step("torch", "", (TORCH_CPU_INDEX,)), venv)
    return venv


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and an empty folder to work in."""

    path: Path
    work: Path

    def python(self, *words: str) -> str:
        return run([str(self.path / "bin/python"), *words], self.work)

    def engine(self, *words: str, given: str = "") -> str:
        return run([str(self.path / "bin/mini-vllm"), *words], self.work, given)


def install(base: Venv, built: Built, extra: str, folder: Path) -> Installed:
    """A copy of the base, whose files are links, and the wheel with an extra ("": none)."""
    path, work = folder / "venv", folder / "work"
    shutil.copytree(base.path, path, symlinks=True, copy_function=os.link)
    work.mkdir()
    words = ["-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    what = f"{built.wheel}[{extra}]" if extra else str(built.wheel)
    (folder / "constraint.txt").write_text(f"torch=={TORCH}\n")
    run([str(path / "bin/python"), *words, "-c", "constraint.txt", what], folder)
    return Installed(path, work)


def use(there: Installed) -> None:
    """What every installation can do."""
    assert there.engine("--version") == f"{__version__}\n"
    assert there.python("-m", "mini_vllm", "--version") == f"{__version__}\n"
    assert there.python("-c", "import mini_vllm; print(mini_vllm.__version__)") == (
        f"{__version__}\n"
    )
    assert not (there.path / "bin/labkit").exists()
    assert there.engine("generate", "Once upon a time", "--max-tokens", "8", *SMALL).strip()
    assert there.engine("chat", "--max-tokens", "8", *SMALL, given="Hello!\n").strip()
    said = json.loads(there.python(WALK))
    assert all("run: pip install 'mini-vllm-engine[" in text for text in said.values()), said


@contextmanager
def serving(there: Installed) -> Iterator[str]:
    """The server of an installation; its address."""
    port = free_port()
    command = [str(there.path / "bin/mini-vllm"), "serve", "--port", str(port), *SMALL]
    server = subprocess.Popen(command, cwd=there.work, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = iter(server.stderr.readline, "")
        assert any(re.match(r"mini_vllm: \S+ at http", line) for line in lines)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


def use_serve(there: Installed) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 4}).encode()
    headers = {"Content-Type": "application/json"}
    with serving(there) as address:
        request = urllib.request.Request(f"{address}/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        words = ("--num-prompts", "2", "--random-input-len", "8", "--random-output-len", "4")
        told = there.engine("bench", "serve", "--base-url", address, *words, "--json")
    assert json.loads(told)["completed"] == 2


def use_vision(there: Installed) -> None:
    there.python("-c", CAT)
    words = ("--model", "storyteller-vision", "--image", "cat.png", "--max-tokens", "4", *SMALL)
    told = json.loads(there.engine("generate", "What is this?", "--json", *words))
    assert len(told["outputs"][0]["token_ids"]) > 0


def use_structured(there: Installed) -> None:
    words = ("--structured-outputs", '{"choice": ["yes"]}', *SMALL)
    backend = ("--structured-outputs-config", '{"backend": "xgrammar"}')
    assert there.engine("generate", "Is it?", *words, *backend).strip() == "yes"


def use_bench(there: Installed) -> None:
    there.python("-c", "from mini_vllm.entrypoints.bench_plots import pyplot; pyplot()")


def use_distributed(there: Installed) -> None:
    there.python("-c", "from mini_vllm.executor.ray import import_ray; import_ray()")


def use_redis(there: Installed) -> None:
    there.python("-c", "import redis")


USES = {
    "serve": use_serve,
    "vision": use_vision,
    "structured": use_structured,
    "bench": use_bench,
    "distributed": use_distributed,
    "redis": use_redis,
}


@pytest.mark.serial
@pytest.mark.parametrize("extra", ["", *EXTRAS], ids=lambda extra: extra or "none")
def test_an_extra_is_what_its_part_needs(
    extra: str, base: Venv, built: Built, tmp_path: Path
) -> None:
    there = install(base, built, extra, tmp_path)
    if extra:
        USES[extra](there)
    else:
        use(there)
