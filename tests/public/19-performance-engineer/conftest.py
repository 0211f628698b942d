"""Builders for the tests of phase 19: numbers that are nearly equal, backends and plugins that are
made up."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from labkit.testing import expect


@pytest.fixture(scope="session")
def near() -> Callable[..., None]:
    """Compares two numbers, to nine digits."""
    return nearly


def nearly(yours: float, right: float, at: str, **state: Any) -> None:
    """Fail unless two numbers agree to nine digits."""
    if not (isinstance(yours, int | float) and math.isclose(yours, right, rel_tol=1e-9)):
        expect(yours, right, at=at, **state)


# ------------------------------------------------------------------ 19.9


def backend(*reasons: str) -> type:
    """A backend's class that refuses for these reasons."""

    class Backend:
        @classmethod
        def validate_configuration(cls, platform: Any, config: Any) -> list[str]:
            return [reason.format(device=platform.device_type) for reason in reasons]

    return Backend


@pytest.fixture()
def backends(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers backends that are made up, and says which platform offers which of them."""
    from mini_vllm.attention import selector  # needs torch, which 19.1 to 19.8 do without

    made = {
        "quick": backend("float64 is too wide for it", "it has no graphs on {device}"),
        "steady": backend(),
        "old": type("Old", (), {}),
    }
    module = ModuleType("made_up")
    for name, cls in made.items():
        setattr(module, name.title(), cls)
    monkeypatch.setitem(sys.modules, "made_up", module)
    table = {name: f"made_up.{name.title()}" for name in made}
    monkeypatch.setattr(selector, "BACKENDS", table | {"gone": "no_such_package.Gone"})

    def platform(*names: str) -> SimpleNamespace:
        return SimpleNamespace(device_type="toy", attention_backends=names)

    config = selector.AttentionSelectorConfig()
    return SimpleNamespace(platform=platform, config=config, **made)


# ------------------------------------------------------------------ 19.10


def raises() -> str:
    """A plugin whose driver is missing."""
    raise RuntimeError("no driver")


@pytest.fixture()
def plug(monkeypatch: pytest.MonkeyPatch) -> Iterable[Callable[..., None]]:
    """Installs plugins that are made up: `plug(general={"name": "function"})`."""
    from mini_vllm import plugins
    from mini_vllm.platforms.interface import Platform  # needs torch

    module: Any = ModuleType("made_up")
    module.Toy = type("ToyPlatform", (Platform,), {"device_type": "toy"})
    module.Other = type("OtherPlatform", (Platform,), {"device_type": "other"})
    module.number = 3
    module.toy, module.other = lambda: "made_up.Toy", lambda: "made_up.Other"
    module.absent, module.lost = lambda: None, lambda: "no_such_package.Platform"
    module.odd, module.raises = lambda: "made_up.number", raises
    monkeypatch.setitem(sys.modules, "made_up", module)
    monkeypatch.delenv(plugins.CHOICE, raising=False)

    def put(*pairs: tuple[str, str], group: str = "platform") -> None:
        found = tuple(
            EntryPoint(
                name, value if ":" in value else f"made_up:{value}", f"mini_vllm.{group}_plugins"
            )
            for name, value in pairs
        )
        monkeypatch.setattr(plugins, "installed", lambda: found)

    return put


@pytest.fixture()
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings so far."""
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]
