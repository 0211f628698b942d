"""Task 19.10: plugins are found and chosen, and one of them brings a platform."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm import plugins
from mini_vllm.plugins import (
    GENERAL_PLUGINS_GROUP,
    PLATFORM_PLUGINS_GROUP,
    load_plugins_by_group,
    plugged_platform,
    refuse_duplicates,
)


def names(group: str = PLATFORM_PLUGINS_GROUP) -> list[str]:
    """Those that were loaded."""
    return list(load_plugins_by_group(group))


def kind(platform: Any) -> str | None:
    """The device of a platform."""
    return None if platform is None else platform.device_type


def test_19_10_the_functions_of_the_group(plug: Any) -> None:
    """The group's functions by name, in the order in which they are installed."""
    plug(("b", "toy"), ("a", "other"))
    found = load_plugins_by_group(PLATFORM_PLUGINS_GROUP)
    expect(list(found), ["b", "a"], at="plugins b and a: loaded")
    expect(found["b"](), "made_up.Toy", at="what b's function returns")
    expect(names(GENERAL_PLUGINS_GROUP), [], at="the other group: loaded")


def test_19_10_the_choice_names_them(plug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MINI_VLLM_PLUGINS: two names, none, and not set."""
    plug(("a", "toy"), ("b", "other"), ("c", "absent"))
    for choice, right in (("a, c", ["a", "c"]), ("", []), ("z", [])):
        monkeypatch.setenv(plugins.CHOICE, choice)
        expect(names(), right, at=f"MINI_VLLM_PLUGINS={choice!r}: loaded")
    monkeypatch.delenv(plugins.CHOICE)
    expect(names(), ["a", "b", "c"], at="MINI_VLLM_PLUGINS is not set: loaded")


def test_19_10_what_is_not_chosen_is_not_imported(
    plug: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken package that was left out says nothing."""
    plug(("a", "toy"), ("broken", "no_such_package:f"))
    monkeypatch.setenv(plugins.CHOICE, "a")
    expect(names(), ["a"], at="a is chosen: loaded")
    expect(said(), [], at="warnings")


def test_19_10_a_failing_plugin_is_named_and_left_out(plug: Any, said: Any) -> None:
    """A package that is missing, and what is no function; the others go on."""
    plug(("gone", "no_such_package:f"), ("number", "number"), ("good", "toy"))
    expect(names(), ["good"], at="gone, number and good: loaded")
    warnings = said()
    expect(len(warnings), 2, at="warnings", said=warnings)
    assert "gone" in warnings[0] and "no_such_package" in warnings[0], warnings[0]
    assert "number" in warnings[1], warnings[1]


def test_19_10_two_of_one_name_are_refused(plug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are named; a choice without the name is fine."""
    plug(("same", "toy"), ("b", "absent"), ("same", "other"))
    with pytest.raises(ValueError, match=r"same.*made_up:toy.*made_up:other"):
        names()
    monkeypatch.setenv(plugins.CHOICE, "b")
    expect(names(), ["b"], at="b is chosen: loaded")


def test_19_10_duplicates_are_refused_before_anything_is_imported(plug: Any, said: Any) -> None:
    """So the message is the first that a user reads."""
    plug(("broken", "no_such_package:f"), ("same", "toy"), ("same", "other"))
    with pytest.raises(ValueError, match="same"):
        names()
    expect(said(), [], at="warnings before the refusal")


def test_19_10_other_names_are_no_duplicates(plug: Any) -> None:
    """Two names may call one function."""
    plug(("a", "toy"), ("b", "toy"))
    refuse_duplicates(plugins.installed())
    expect(names(), ["a", "b"], at="two names for one function: loaded")


def test_19_10_the_platform_of_the_plugin_that_finds_its_device(plug: Any) -> None:
    """One says that its device is absent, the other brings a class."""
    plug(("absent", "absent"), ("toy", "toy"))
    expect(kind(plugged_platform()), "toy", at="absent and toy: device of the platform")


def test_19_10_no_plugin_no_platform(plug: Any) -> None:
    """Without plugins, and where no device is there."""
    plug()
    expect(plugged_platform(), None, at="no plugin: platform")
    plug(("absent", "absent"))
    expect(plugged_platform(), None, at="a plugin without its device: platform")


def test_19_10_a_platform_that_fails_is_never_fatal(plug: Any, said: Any) -> None:
    """It raises, leads nowhere, or is no platform: each is named, and the next one is asked."""
    plug(("worse", "raises"), ("lost", "lost"), ("odd", "odd"), ("toy", "toy"))
    expect(kind(plugged_platform()), "toy", at="worse, lost, odd and toy: device of the platform")
    warnings = said()
    expect(len(warnings), 3, at="warnings", said=warnings)
    for warning, name, why in zip(
        warnings, ("worse", "lost", "odd"), ("no driver", "no_such_package", ""), strict=True
    ):
        assert name in warning and why in warning, f"name {name!r} and {why!r}: {warning}"


def test_19_10_two_platforms_are_refused_until_one_is_chosen(
    plug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names both, and the variable that chooses."""
    plug(("toy", "toy"), ("other", "other"))
    with pytest.raises(ValueError) as error:
        plugged_platform()
    for name in ("toy", "other", "MINI_VLLM_PLUGINS"):
        assert name in str(error.value), f"name {name}: {error.value}"
    monkeypatch.setenv(plugins.CHOICE, "other")
    expect(kind(plugged_platform()), "other", at="other is chosen: device of the platform")


def test_19_10_a_choice_that_no_package_brings_is_told(
    plug: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip of the pen would be silent otherwise."""
    plug(("toy", "toy"))
    monkeypatch.setenv(plugins.CHOICE, "tony")
    expect(plugged_platform(), None, at="tony is chosen, toy is there: platform")
    assert any("tony" in warning for warning in said()), f"tell of tony: {said()}"
