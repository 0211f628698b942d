"""Plugins, backends and measurements that are made up, for the hidden tests of phase 19.

`Table` stands for a measurement and remembers what it was asked. A backend's class is named after
what it says: `labkit.inside.plugging.Says_a_b` refuses for the reasons "a" and "b", and `Plain`
validates nothing. `plugins` and `backends` ask the engine's functions where those are all there is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

HERE = "labkit.inside.plugging"


class Table:
    """A measurement that looks its answers up: `(config, requests)` -> figures."""

    def __init__(self, figures: dict[tuple[Any, int], tuple[float, float]]) -> None:
        self.figures = figures
        self.asked: list[tuple[Any, int]] = []

    def __call__(self, config: Any, requests: int) -> tuple[float, float]:
        self.asked.append((config, requests))
        return self.figures[config, requests]


def by_seats(scale: float, config: dict[str, int], requests: int) -> tuple[float, float]:
    """A measurement of configurations that cannot be hashed: more seats, less strain."""
    return scale / config["seats"], 0.0


# ---------------------------------------------------------------- backends

ASKED: list[str] = []
"""Backends that were asked what speaks against them, in order."""


def __getattr__(name: str) -> type:
    if name == "Plain":
        return type(name, (), {})
    if not name.startswith("Says"):
        raise AttributeError(name)

    def validate(platform: Any, config: Any) -> list[str]:
        ASKED.append(name)
        return [f"{reason} on {platform.device_type}" for reason in name.split("_")[1:]]

    return type(name, (), {"validate_configuration": staticmethod(validate)})


def backends(
    table: dict[str, str], offered: Sequence[str], question: str, *name: str | None
) -> dict[str, Any]:
    """What a function of the selector answers, whom it has asked, and what it raises."""
    from mini_vllm.attention import selector

    before, selector.BACKENDS = selector.BACKENDS, dict(table)
    ASKED.clear()
    platform: Any = SimpleNamespace(device_type="toy", attention_backends=tuple(offered))
    config = selector.AttentionSelectorConfig()
    calls: dict[str, Callable[[], Any]] = {
        "refusals": lambda: selector.refusals(str(name[0]), platform, config),
        "valid": lambda: selector.get_valid_backends(platform, config),
        "class": lambda: selector.get_attn_backend_cls(platform, name[0], config).__name__,
    }
    try:
        return {"answer": calls[question](), "asked": list(ASKED)}
    except ValueError as error:
        return {"error": str(error), "asked": list(ASKED)}
    finally:
        selector.BACKENDS = before


# ---------------------------------------------------------------- plugins

LOADED: list[str] = []
"""Plugins that were imported, in order."""


class Plugin(EntryPoint):
    """An entry point that tells when it is imported."""

    def load(self) -> Any:
        LOADED.append(self.name)
        return super().load()


def toy() -> str:
    return f"{HERE}:make_toy"


def other() -> str:
    return f"{HERE}:make_other"


def absent() -> None:
    return None


def lost() -> str:
    return "no_such_package.Platform"


def odd() -> str:
    return f"{HERE}.Plain"


def fails() -> str:
    raise RuntimeError("no driver")


number = 3


def make_toy() -> Any:
    from mini_vllm.platforms.interface import UnspecifiedPlatform

    return UnspecifiedPlatform("toy")


def make_other() -> Any:
    from mini_vllm.platforms.interface import UnspecifiedPlatform

    return UnspecifiedPlatform("other")


class Heard(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def plugins(
    installed: Sequence[tuple[str, str, str]], chosen: str | None, group: str = ""
) -> dict[str, Any]:
    """What is loaded of a group, or "" for the platform that is plugged in: with the warnings, the
    plugins that were imported, and what was raised.

    Args:
        installed: `(name, value, group)`; a value without a colon is a function of this module.
    """
    from mini_vllm import plugins as own

    LOADED.clear()
    found = tuple(
        Plugin(name, value if ":" in value else f"{HERE}:{value}", f"mini_vllm.{kind}_plugins")
        for name, value, kind in installed
    )
    before, own.installed = own.installed, lambda: found  # type: ignore[assignment]
    variable = os.environ.pop(own.CHOICE, None)
    if chosen is not None:
        os.environ[own.CHOICE] = chosen
    heard = Heard()
    logging.getLogger("mini_vllm.plugins").addHandler(heard)
    answer: dict[str, Any] = {}
    try:
        if group:
            functions = own.load_plugins_by_group(f"mini_vllm.{group}_plugins")
            answer["answer"] = [(name, function.__name__) for name, function in functions.items()]
        else:
            platform = own.plugged_platform()
            answer["answer"] = None if platform is None else platform.device_type
    except ValueError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("mini_vllm.plugins").removeHandler(heard)
        own.installed = before
        os.environ.pop(own.CHOICE, None)
        if variable is not None:
            os.environ[own.CHOICE] = variable
    return answer | {"said": heard.said, "loaded": list(LOADED)}
