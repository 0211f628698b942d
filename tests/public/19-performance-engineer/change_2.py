"""Change request 2: routes of the server only by invitation."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm import plugins


def names() -> list[str]:
    """Endpoint plugins that were loaded."""
    return list(plugins.load_plugins_by_group("mini_vllm.endpoint_plugins"))


def test_change_2_the_group_is_there() -> None:
    """`installed` reads the groups that it stands among."""
    group = getattr(plugins, "ENDPOINT_PLUGINS_GROUP", None)
    expect(group, "mini_vllm.endpoint_plugins", at="ENDPOINT_PLUGINS_GROUP")
    expect(plugins.GROUPS[-1], group, at="the last of GROUPS")


def test_change_2_nothing_without_a_choice(plug: Any, said: Any) -> None:
    """Two are there, one of them broken: none is imported, and one warning names both."""
    plug(("admin", "toy"), ("debug", "no_such_package:f"), group="endpoint")
    expect(names(), [], at="MINI_VLLM_PLUGINS is not set: loaded")
    (warning,) = said()
    assert all(word in warning for word in ("admin", "debug", plugins.CHOICE)), warning


def test_change_2_what_is_named_is_loaded(
    plug: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two, and none of two."""
    plug(("admin", "toy"), ("debug", "other"), group="endpoint")
    for choice, right in (("debug", ["debug"]), ("", [])):
        monkeypatch.setenv(plugins.CHOICE, choice)
        expect(names(), right, at=f"MINI_VLLM_PLUGINS={choice!r}: loaded")
    expect(said(), [], at="warnings")
