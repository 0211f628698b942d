"""Change request 2: any choice of any plugins of all groups."""

from __future__ import annotations

import logging
import random
import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from mini_vllm import plugins

GROUPS = ("general", "platform", "endpoint")


@pytest.mark.parametrize("seed", range(20))
def test_change_2_any_choice(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(seed)
    module: Any = ModuleType("made_up_routes")
    module.function = lambda: None
    monkeypatch.setitem(sys.modules, "made_up_routes", module)
    there = {group: draw.sample("abcdefgh", draw.randint(0, 4)) for group in GROUPS}
    found = tuple(
        EntryPoint(name, "made_up_routes:function", f"mini_vllm.{group}_plugins")
        for group in GROUPS
        for name in there[group]
    )
    monkeypatch.setattr(plugins, "installed", lambda: found)
    chosen = draw.choice([None, set(draw.sample("abcdefghxyz", draw.randint(0, 6)))])
    if chosen is None:
        monkeypatch.delenv(plugins.CHOICE, raising=False)
    else:
        monkeypatch.setenv(plugins.CHOICE, ",".join(sorted(chosen)))
    for group in GROUPS:
        caplog.clear()
        loaded = list(plugins.load_plugins_by_group(f"mini_vllm.{group}_plugins"))
        wanted = there[group] if chosen is None else [n for n in there[group] if n in chosen]
        closed = group == "endpoint" and chosen is None
        assert loaded == ([] if closed else wanted), group
        warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(warned) == bool(closed and there[group])
        assert all(repr(name) in warned[0] for name in there[group] if warned)


def test_change_2_duplicates_that_were_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two endpoint plugins of one name, and no choice: there is nothing to refuse."""
    one = EntryPoint("same", "made_up_routes:first", "mini_vllm.endpoint_plugins")
    other = EntryPoint("same", "made_up_routes:second", "mini_vllm.endpoint_plugins")
    monkeypatch.setattr(plugins, "installed", lambda: (one, other))
    monkeypatch.delenv(plugins.CHOICE, raising=False)
    assert plugins.load_plugins_by_group("mini_vllm.endpoint_plugins") == {}
    monkeypatch.setenv(plugins.CHOICE, "same")
    with pytest.raises(ValueError, match="same"):
        plugins.load_plugins_by_group("mini_vllm.endpoint_plugins")


def test_change_2_what_is_installed_is_found() -> None:
    """The list of what is installed asks for the new group."""
    assert "mini_vllm.endpoint_plugins" in plugins.GROUPS
