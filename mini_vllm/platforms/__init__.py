"""The device of an engine, and everything that depends on it.

A :class:`~mini_vllm.platforms.interface.Platform` has all properties of a device: its dtypes, its
attention backends, its free memory, and whether steps can be recorded as graphs. No other file of
the engine depends on the type of a device. So a package can add or change a device without changes
here: see :mod:`mini_vllm.plugins`.

    interface.py                Platform, with its defaults
    cpu.py, cuda.py, mps.py     the built-in platforms

Source: vllm/platforms/__init__.py#L212-L252 (resolve_current_platform_cls_qualname) @ v0.22.1.
Difference: vLLM has one platform in a process; here engines may use different devices.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from mini_vllm.import_utils import resolve_obj_by_qualname
from mini_vllm.plugins import plugged_platform

if TYPE_CHECKING:
    import torch

    from mini_vllm.platforms.interface import Platform

    current_platform: Platform

BUILTIN = {
    "cuda": "mini_vllm.platforms.cuda.CudaPlatform",
    "cpu": "mini_vllm.platforms.cpu.CpuPlatform",
    "mps": "mini_vllm.platforms.mps.MpsPlatform",
}
"""By type of device. "auto" takes the first that is available. A CPU always is, so "mps" is never
chosen automatically."""


@functools.cache
def platform_of(device: torch.device | str) -> Platform:
    """The platform of a device such as "cuda:1"; "auto": the current one.

    Raises:
        ValueError: if plugins have more than one platform.
    """
    kind = (device if isinstance(device, str) else device.type).partition(":")[0]
    plugged = out_of_tree_platform()
    if plugged is not None and kind in (plugged.device_type, "auto"):
        return plugged
    if kind == "auto":
        return next(one for one in map(platform_of, BUILTIN) if one.is_available())
    return make_platform(kind)


@functools.cache
def make_platform(kind: str) -> Platform:
    """A built-in platform; `UnspecifiedPlatform` for other types of devices."""
    from mini_vllm.platforms.interface import UnspecifiedPlatform

    if kind not in BUILTIN:
        return UnspecifiedPlatform(kind)
    made: Platform = resolve_obj_by_qualname(BUILTIN[kind])()
    return made


@functools.cache
def out_of_tree_platform() -> Platform | None:
    """:func:`mini_vllm.plugins.plugged_platform`, called once."""
    return plugged_platform()


def pick_device(name: str, index: int | None = None) -> torch.device:
    """The device `name`; "auto": the current platform's. Raises ValueError if it does not exist.

    If each worker has its own device, a name without a number gets number `index`.
    """
    import torch

    platform = platform_of(name)
    if name == "auto":
        name = platform.device_type
    platform.check_device(name)
    if index is not None and ":" not in name and platform.device_count() > 0:
        name = f"{name}:{index}"
    return torch.device(name)


def forget() -> None:
    """Clear the caches, for tests that change the platforms."""
    for each in (platform_of, make_platform, out_of_tree_platform):
        each.cache_clear()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "current_platform":  # not on import: plugins import `Platform` from here
            return platform_of("auto")
        raise AttributeError(f"module 'mini_vllm.platforms' has no attribute {name!r}")
