"""Which device an engine runs on, and all that follows from it.

A :class:`~mini_vllm.platforms.interface.Platform` answers every question about a device: which
dtypes it computes in, which attention backends it offers, how much memory there is, whether steps
can be recorded. No other file of the engine asks a device what kind it is. So a package can add a
device, or change one, without an edit here: see :mod:`mini_vllm.plugins`.

    interface.py   Platform, the questions and their usual answers
    cpu.py, cuda.py, mps.py     the platforms that come with the engine

Source: vllm/platforms/__init__.py#L212-L252 (resolve_current_platform_cls_qualname) @ v0.22.1.
Difference: vLLM has one platform in a process; here an engine may ask for another device than that.
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
"""By type of device. "auto" takes the first that is there; a CPU always is, so "mps" is taken only
where it is asked for."""


@functools.cache
def platform_of(device: torch.device | str) -> Platform:
    """The platform of a device such as "cuda:1"; of "auto": the current one.

    Raises:
        ValueError: if plugins bring more than one platform.
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
    """A platform of the engine's own; for another kind of device one that promises nothing."""
    from mini_vllm.platforms.interface import UnspecifiedPlatform

    if kind not in BUILTIN:
        return UnspecifiedPlatform(kind)
    made: Platform = resolve_obj_by_qualname(BUILTIN[kind])()
    return made


@functools.cache
def out_of_tree_platform() -> Platform | None:
    """See :func:`mini_vllm.plugins.plugged_platform`; looked for once."""
    return plugged_platform()


def pick_device(name: str, index: int | None = None) -> torch.device:
    """The device called `name`; "auto": the current platform's. ValueError if there is none.

    Where each worker has a device of its own, one without a number is that of number `index`.
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
    """Look for platforms anew, for tests that change which are there."""
    for each in (platform_of, make_platform, out_of_tree_platform):
        each.cache_clear()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "current_platform":  # not sooner: plugins import `Platform` from here
            return platform_of("auto")
        raise AttributeError(f"module 'mini_vllm.platforms' has no attribute {name!r}")
