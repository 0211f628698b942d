"""Change request 1: which errors are reasons, and of what."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.attention import selector

CONFIG = selector.AttentionSelectorConfig()


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a backend is refused for whose module is this text."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = itertools.count()

    def reasons(text: str, *offered: str) -> Any:
        name = f"{tmp_path.name.replace('-', '_')}_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        monkeypatch.setattr(selector, "BACKENDS", {"theirs": f"{name}.Theirs"})
        platform: Any = SimpleNamespace(device_type="toy", attention_backends=offered)
        return selector.refusals("theirs", platform, CONFIG)

    return reasons


@pytest.mark.parametrize("kind", ["OSError", "FileNotFoundError", "PermissionError"])
def test_change_1_each_kind_of_it(ask: Any, kind: str) -> None:
    """Its own name is said, whatever it is derived from."""
    assert ask(f"raise {kind}('no such thing')", "theirs") == [f"{kind}: no such thing"]


def test_change_1_a_missing_package_as_before(ask: Any) -> None:
    (said,) = ask("import no_such_package_of_ours", "theirs")
    assert said.startswith("ImportError: ") and "no_such_package_of_ours" in said


@pytest.mark.parametrize("kind", ["RuntimeError", "TypeError", "AssertionError"])
def test_change_1_other_errors_are_raised(ask: Any, kind: str) -> None:
    with pytest.raises(getattr(__import__("builtins"), kind)):
        ask(f"raise {kind}('a mistake')", "theirs")


def test_change_1_validation_is_not_the_import(ask: Any) -> None:
    """The class is there; what it raises is its mistake."""
    text = (
        "class Theirs:\n    def validate_configuration(*given):\n        raise OSError('a file')\n"
    )
    with pytest.raises(OSError, match="a file"):
        ask(text, "theirs")
    head = "class Theirs:\n    def validate_configuration(*given):\n        "
    with pytest.raises(OSError, match="a file"):
        ask(f"{head}raise OSError('a file')\n", "theirs")
    assert ask(f"{head}return ['too old']\n", "theirs") == ["too old"]
    assert ask(f"{head}return ['too old']\n", "another")[1:] == ["too old"]
