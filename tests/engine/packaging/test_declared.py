"""The engine runs with what `pyproject.toml` declares, and says what installs the rest."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

from labkit.course.root import find_root
from mini_vllm import __version__
from mini_vllm.extras import DISTRIBUTION, from_extra, install_command
from tests.engine.packaging.fence import EXTRAS, PROJECT, Fence, canonical, declared

WALK = str(Path(__file__).with_name("walk.py"))
SMALL = ("--max-model-len", "256", "--num-gpu-blocks", "64", "--dtype", "float32")


EXTRA_OF = {
    "anthropic": "serve",
    "openai": "serve",
    "launcher": "serve",
    "connection": "serve",
    "disagg_proxy": "serve",
    "pooling": "serve",
    "pictures": "vision",
}
"""Parts that need an extra to be imported; all other modules need none."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Fence:
    """The engine without any extra."""
    return Fence(tmp_path_factory.mktemp("bare"))


def modules_of(names: Iterable[str]) -> set[str]:
    """What the modules of these distributions are called; as they are if not installed here."""
    wanted = set(map(canonical, names))
    owners = {
        module: set(map(canonical, owners))
        for module, owners in metadata.packages_distributions().items()
    }
    found = {module for module, names in owners.items() if names & wanted}
    absent = wanted.difference(*owners.values())
    return found | {name.replace("-", "_") for name in absent}


def imported() -> dict[str, str]:
    """Every module of others that the engine imports anywhere -> a file that does."""
    found: dict[str, str] = {}
    for file in sorted((find_root() / "mini_vllm").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                found.setdefault(name.partition(".")[0], file.name)
    return {name: file for name, file in found.items() if name not in sys.stdlib_module_names}


def test_every_package_that_the_engine_imports_is_declared_by_name() -> None:
    """A package that only comes with another is gone when the other lets go of it."""
    known = {"mini_vllm"} | modules_of(need.name for need in declared(EXTRAS))
    assert {name: file for name, file in imported().items() if name not in known} == {}


def test_every_module_can_be_imported_or_says_what_installs_the_rest(bare: Fence) -> None:
    """The issue's `ModuleNotFoundError: msgspec`, `orjson`, and all others of their kind."""
    code, out, err = bare.run(WALK)
    assert code == 0, err
    said = json.loads(out)
    for name, text in said.items():
        (extra,) = (EXTRA_OF[part] for part in name.split(".") if part in EXTRA_OF)
        assert text.startswith("MissingExtraError: "), (name, text)
        assert f"run: pip install -e '.[{extra}]'" in text, (name, text)


@pytest.mark.slow
def test_with_every_extra_every_module_can_be_imported(tmp_path: Path) -> None:
    code, out, err = Fence(tmp_path, EXTRAS).run(WALK)
    assert code == 0, err
    assert json.loads(out) == {}


def test_the_front_door_opens(bare: Fence) -> None:
    code, out, err = bare.run("-c", "from mini_vllm import LLM; print(LLM.__name__)")
    assert (code, out) == (0, "LLM\n"), err


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_version(bare: Fence, option: str) -> None:
    assert bare.run("-m", "mini_vllm", option)[:2] == (0, f"{__version__}\n")


COMMANDS = {
    "help": ("--help",),
    "help of serve": ("serve", "--help"),
    "help of bench serve": ("bench", "serve", "--help"),
    "info": ("info",),
    "generate": ("generate", "Once upon a time", "--max-tokens", "4", *SMALL),
}
LONGER = {
    "chat": ("chat", "--max-tokens", "4", *SMALL),
    "bench": ("bench", "--num-prompts", "2", "--input-len", "8", "--output-len", "4", *SMALL),
    "demo": ("demo",),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_needs_no_extra(bare: Fence, words: tuple[str, ...]) -> None:
    code, out, err = bare.run("-m", "mini_vllm", *words, given="Hello!\n")
    assert code == 0, err
    assert out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("words", LONGER.values(), ids=LONGER)
def test_a_longer_command_needs_no_extra(bare: Fence, words: tuple[str, ...]) -> None:
    test_a_command_needs_no_extra(bare, words)


LACKING = {
    "serve": ("serve", ("serve", "--port", "0", *SMALL)),
    "bench serve": ("serve", ("bench", "serve", "--port", "1")),
    "a picture": (
        "vision",
        ("generate", "x", "--image", "cat.png", "--model", "storyteller-vision"),
    ),
}
LACKING_LATER = {
    "xgrammar": (
        "structured",
        ("generate", "x", "--structured-outputs", '{"regex": "a+"}', *SMALL)
        + ("--structured-outputs-config", '{"backend": "xgrammar"}'),
    ),
    "ray": ("distributed", ("generate", "x", "--distributed-executor-backend", "ray", *SMALL)),
    "redis": (
        "redis",
        ("generate", "x", *SMALL, "--kv-transfer-config")
        + (
            '{"kv_connector": "SharedStorageConnector", "kv_role": "kv_both", '
            '"kv_connector_extra_config": {"shared_storage_path": "redis://127.0.0.1:1"}}',
        ),
    ),
}


@pytest.mark.parametrize(("extra", "words"), LACKING.values(), ids=LACKING)
def test_a_command_that_needs_more_says_what(
    bare: Fence, extra: str, words: tuple[str, ...]
) -> None:
    code, _, err = bare.run("-m", "mini_vllm", *words)
    assert code != 0
    assert "Traceback" not in err, err
    assert len(err.strip().splitlines()) == 1, err
    assert f"run: pip install -e '.[{extra}]'" in err


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "words"), LACKING_LATER.values(), ids=LACKING_LATER)
def test_an_option_that_needs_more_says_what(
    bare: Fence, extra: str, words: tuple[str, ...]
) -> None:
    test_a_command_that_needs_more_says_what(bare, extra, words)


def test_a_program_that_needs_more_says_what(bare: Fence) -> None:
    """The proxy has no command of its own; `python -m` runs its module."""
    words = ("-m", "mini_vllm.entrypoints.disagg_proxy", "--decode", "http://127.0.0.1:1")
    code, _, err = bare.run(*words)
    assert code == 1
    assert len(err.strip().splitlines()) == 1, err
    assert "run: pip install -e '.[serve]'" in err


def test_a_plot_is_asked_for_where_none_can_be_drawn(tmp_path: Path) -> None:
    """It is said before the load, not after an hour of it."""
    fence = Fence(tmp_path, ["serve"])
    code, _, err = fence.run("-m", "mini_vllm", "bench", "serve", "--port", "1", "--plot", "a.png")
    assert code == 2
    assert "run: pip install -e '.[bench]'" in err and "Traceback" not in err


def test_the_command_is_that_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1")
    assert install_command("serve") == f"pip install '{DISTRIBUTION}[serve]'"
    assert PROJECT["name"] == DISTRIBUTION


def test_a_missing_package_is_an_import_error_and_a_bad_value() -> None:
    said = r"a page needs .*'nothing_there'.*, or use paper$"
    for kind in (ImportError, ValueError):
        with pytest.raises(kind, match=said), from_extra("serve", "a page", "use paper"):
            import nothing_there  # noqa: F401
