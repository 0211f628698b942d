"""Plugins: packages that extend the engine, found by their entry points.

A package declares a function in its `pyproject.toml`::

    [project.entry-points."mini_vllm.platform_plugins"]
    my_device = "my_package:platform"       # returns "my_package.platform.MyPlatform", or None

    [project.entry-points."mini_vllm.general_plugins"]
    my_models = "my_package:register"       # registers models, quantisations, attention backends

The environment variable MINI_VLLM_PLUGINS selects plugins by name: "a,b" loads these two, "" loads
none; if it is not set, all are loaded. A plugin that fails is skipped with a warning.

Source: vllm/plugins/__init__.py#L28-L82 (load_plugins_by_group, load_general_plugins) @ v0.22.1.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from mini_vllm.import_utils import resolve_obj_by_qualname

if TYPE_CHECKING:
    from mini_vllm.platforms.interface import Platform

GENERAL_PLUGINS_GROUP = "mini_vllm.general_plugins"
"""Functions that are called once in each process, before a model class is chosen."""
PLATFORM_PLUGINS_GROUP = "mini_vllm.platform_plugins"
"""Functions that return the path of a :class:`~mini_vllm.platforms.interface.Platform`."""
GROUPS = (GENERAL_PLUGINS_GROUP, PLATFORM_PLUGINS_GROUP)
CHOICE = "MINI_VLLM_PLUGINS"

logger = logging.getLogger(__name__)


def load_plugins_by_group(group: str) -> dict[str, Callable[[], Any]]:
    """The function of each plugin of `group` that is chosen and can be imported, by name.

    :func:`installed` lists the plugins of all groups, in the order in which their functions stand
    here; :func:`chosen_plugins` says which are wanted. Two of one name are refused before anything
    of them is imported, and what is not chosen is never imported. A plugin whose `load()` raises
    is named in a warning and left out (:func:`attempt`), and so is one that is no function.

    Raises:
        ValueError: if two packages give a chosen plugin of the group the same name.

    Source: vllm/plugins/__init__.py#L28-L68 (load_plugins_by_group) @ v0.22.1.
    """
    # TODO 19.10
    raise NotImplementedError(
        "TODO 19.10: write load_plugins_by_group in labs/19-performance-engineer/plugins.py"
        " (phase 19, 02-mini-build.md#task-10)"
    )


def plugged_platform() -> Platform | None:
    """The platform of the plugin that finds its device here; None without one.

    The function of a plugin of the platforms' group returns the path of a class; None says that its
    device is not in this machine. A function that raises, a path that leads nowhere, and what is no
    :class:`~mini_vllm.platforms.interface.Platform`: each is named in a warning and left out
    (:func:`attempt`), and the others are asked all the same.

    Raises:
        ValueError: if there are two, with the names of both and of MINI_VLLM_PLUGINS: one of them
            must be chosen.

    Source: vllm/platforms/__init__.py#L212-L252 (resolve_current_platform_cls_qualname) @ v0.22.1.
    """
    # TODO 19.10
    raise NotImplementedError(
        "TODO 19.10: write plugged_platform in labs/19-performance-engineer/plugins.py"
        " (phase 19, 02-mini-build.md#task-10)"
    )


def make_plugged(function: Callable[[], Any]) -> Platform | None:
    """The platform whose path a plugin's function returns; None where it returns None."""
    from mini_vllm.platforms.interface import Platform

    qualname = function()
    if qualname is None:
        return None
    platform = resolve_obj_by_qualname(qualname)()
    if not isinstance(platform, Platform):
        raise TypeError(f"{qualname} is no mini_vllm.platforms.interface.Platform")
    return platform


@functools.cache
def load_general_plugins() -> None:
    """Call the function of each general plugin, once in a process."""
    for name, register in load_plugins_by_group(GENERAL_PLUGINS_GROUP).items():
        attempt(f"plugin {name!r}", register)


def chosen_plugins() -> frozenset[str] | None:
    """The names in MINI_VLLM_PLUGINS; None if all plugins are selected."""
    names = os.environ.get(CHOICE)
    if names is None:
        return None
    return frozenset(name.strip() for name in names.split(",") if name.strip())


@functools.cache
def installed() -> tuple[EntryPoint, ...]:
    """The plugins of all installed packages, read once because that takes milliseconds."""
    everything = entry_points()
    return tuple(one for group in GROUPS for one in everything.select(group=group))


def warn_of_missing() -> None:
    """Log a warning for names in MINI_VLLM_PLUGINS that are not installed."""
    wanted = chosen_plugins()
    if not wanted:
        return
    there = {one.name for one in installed()}
    if missing := sorted(wanted - there):
        logger.warning("%s names %s; installed are %s", CHOICE, missing, sorted(there))


def refuse_duplicates(plugins: Iterable[EntryPoint]) -> None:
    """Raises ValueError that names both plugins (:func:`describe`), for two of one name."""
    # TODO 19.10
    raise NotImplementedError(
        "TODO 19.10: write refuse_duplicates in labs/19-performance-engineer/plugins.py"
        " (phase 19, 02-mini-build.md#task-10)"
    )


def attempt(what: str, action: Callable[[], Any]) -> Any:
    """The result of `action`; None and a warning that names `what` if it raises."""
    try:
        return action()
    except Exception as error:
        logger.warning("%s is left out: %s: %s", what, type(error).__name__, error)
        logger.debug("the traceback of it", exc_info=error)
        return None


def describe(plugin: EntryPoint) -> str:
    """Name, function and package of a plugin, for a message."""
    package = f" of {plugin.dist.name} {plugin.dist.version}" if plugin.dist else ""
    return f"{plugin.name!r} ({plugin.value}{package})"
