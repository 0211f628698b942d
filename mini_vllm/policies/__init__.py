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
from pathlib import Path
from types import ModuleType

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.policies.prefill_first import MinivLLM, NanoVLLM
from mini_vllm.policies.static import Static
from mini_vllm.policies.vllm_v0 import VllmV0, VllmV0Chunked

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
    if name in POLICIES:
        return POLICIES[name]
    path, colon, class_name = name.rpartition(":")
    if not colon:
        near = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(POLICIES)}"
        raise ValueError(f"no scheduler {name!r}; {hint} (or path/to/file.py:ClassName)")
    module = _load_file(Path(path))
    found = getattr(module, class_name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if _is_scheduler(value)]
        near = difflib.get_close_matches(class_name, classes, n=1) or classes
        hint = f"; did you mean {near[0]!r}?" if near else ", nor any other scheduler"
        raise ValueError(f"{path} has no class {class_name!r}{hint}")
    if not _is_scheduler(found):
        raise ValueError(
            f"{class_name} of {path} is no scheduler; make it a subclass of "
            "mini_vllm.core.scheduler.Scheduler"
        )
    scheduler: type[Scheduler] = found
    return scheduler


def _is_scheduler(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Scheduler)


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
