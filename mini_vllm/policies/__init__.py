"""Other schedulers on the core's interface, to run the same work under different rules.

::

    static            batches that run to their end, one after the other
    minivllm          MinivLLM: prompts first, whole prompts
    nano-vllm         nano-vLLM: prompts first, the first of a step may be cut
    vllm-v0           vLLM V0: prompts first, swapping, priorities that preempt, forks
    vllm-v0-chunked   the same with tokens first and prompts in chunks
    vllm-v1           vLLM V1, the core's own: no phases, one budget for all tokens

``LLM(..., scheduler_cls=load_scheduler("static"))``, ``--scheduler static`` on the command line.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import show
from mini_vllm.policies.prefill_first import MinivLLM, NanoVLLM
from mini_vllm.policies.static import Static
from mini_vllm.policies.vllm_v0 import VllmV0, VllmV0Chunked

if TYPE_CHECKING:
    from mini_vllm.policies.fleet import FleetPolicy

T = TypeVar("T")
POLICIES: dict[str, type[Scheduler]] = {
    "static": Static,
    "minivllm": MinivLLM,
    "nano-vllm": NanoVLLM,
    "vllm-v0": VllmV0,
    "vllm-v0-chunked": VllmV0Chunked,
    "vllm-v1": Scheduler,
}


def load_scheduler(name: str) -> type[Scheduler]:
    """A policy by its name, or a class of your own as ``path/to/file.py:ClassName``.

    Raises:
        ValueError: if there is no such policy, file or class, if the file cannot be imported, or
            if the class is no :class:`~mini_vllm.core.scheduler.Scheduler`.
    """
    return _load(name, POLICIES, Scheduler, "scheduler")


def scheduler_class(given: type[Scheduler] | str | None) -> type[Scheduler]:
    """A class, or what :func:`load_scheduler` finds; None, as in vLLM: the scheduler. Raises
    ValueError for anything else."""
    if isinstance(given, str):
        return load_scheduler(given)
    if given is None:
        return Scheduler
    if not isinstance(given, type):
        raise ValueError(
            f"scheduler_cls is {show(given)}; it must be a class, a policy's name, or "
            "'path/to/file.py:ClassName'"
        )
    return given


def load_fleet_policy(name: str) -> type[FleetPolicy]:
    """As :func:`load_scheduler`, for the policy of a fleet
    (:class:`~mini_vllm.policies.fleet.FleetPolicy`)."""
    from mini_vllm.policies.fleet import FLEET_POLICIES, FleetPolicy  # an engine has none

    return _load(name, FLEET_POLICIES, FleetPolicy, "fleet policy")


def _load(name: str, known: Mapping[str, type[T]], base: type[T], what: str) -> type[T]:
    if name in known:
        return known[name]
    path, colon, class_name = name.rpartition(":")
    if not colon:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ValueError(f"no {what} {name!r}; {hint} (or path/to/file.py:ClassName)")
    module = _load_file(Path(path))

    def fits(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, base)

    found = getattr(module, class_name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if fits(value)]
        near = difflib.get_close_matches(class_name, classes, n=1) or classes
        hint = f"; did you mean {near[0]!r}?" if near else f", nor any other {what}"
        raise ValueError(f"{path} has no class {class_name!r}{hint}")
    if not fits(found):
        raise ValueError(
            f"{class_name} of {path} is no {what}; make it a subclass of "
            f"{base.__module__}.{base.__qualname__}"
        )
    fitting: type[T] = found
    return fitting


def _load_file(path: Path) -> ModuleType:
    """Import a Python file under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"_scheduler_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"there is no Python file {path}; write path/to/file.py:ClassName")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
