"""The engine's side of adapters: from what requests name to keys, and down to the workers.

A worker gets an adapter when a request brings it, before the request is queued. So an adapter that
cannot be served is refused before its request is queued, and no other request is affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.executor.base import Executor
from mini_vllm.lora.registry import Adapter, AdapterRegistry
from mini_vllm.lora.request import LoRARequest
from mini_vllm.lora.scheduling import LoRASchedulerExtension
from mini_vllm.request import Request


class EngineAdapters:
    """Which adapters there are, on all ranks.

    Args:
        executor: reaches the workers, each of which has a
            :class:`~mini_vllm.lora.slots.LoRAModelManager`.
        scheduler: its gate has the adapters that unfinished requests use.

    Source: vllm/v1/engine/llm_engine.py#L394-L408 (LLMEngine.add_lora) @ v0.22.1
    """

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self.executor = executor
        self.registry = AdapterRegistry()
        self.pinned: set[str] = set()
        self.attach(scheduler)

    def attach(self, scheduler: Scheduler) -> None:
        """Work with the gate of this scheduler, which may be a new one."""
        gates = (e for e in scheduler.extensions if isinstance(e, LoRASchedulerExtension))
        self.gate = next(gates)
        self.gate.pinned = self.pinned

    def resolve(self, request: LoRARequest) -> str:
        """The key of a request's adapter, which is loaded if it is not.

        An adapter that is loaded is not read again, unless ``load_inplace`` asks for it.

        Raises:
            ValueError: if it cannot be served. Nothing has changed then.
        """
        known = self.registry.find(request, self.in_use)
        if known is not None and all(self.executor.call("has_lora", known.key)):
            return known.key
        adapter = self.registry.read(request)
        self._load(adapter)
        old = self.registry.adapters.get(request.lora_int_id)
        self.registry.adapters[request.lora_int_id] = adapter
        if old is not None and old.key not in self.registry.keys:
            self._replace(old, adapter)
        return adapter.key

    @property
    def in_use(self) -> set[str]:
        """Keys of the adapters of unfinished requests."""
        return set(self.gate.names.values())

    def count(self, running: Iterable[Request]) -> tuple[dict[str, int], dict[str, int]]:
        """Requests by the name of their adapter: those that run, and those that wait."""
        if not self.gate.names:
            return {}, {}
        runs = Counter(one.lora_name for one in running if one.lora_name is not None)
        return _by_name(runs), _by_name(Counter(self.gate.names.values()) - runs)

    def add(self, request: LoRARequest) -> bool:
        """Load an adapter before a request asks for it; True."""
        self.resolve(request)
        return True

    def remove(self, lora_id: int) -> bool:
        """Forget an adapter and free its slot; False if there is none of that number.

        Unfinished requests go on with it: it is loaded again for them alone.
        """
        adapter = self.registry.adapters.pop(lora_id, None)
        if adapter is None:
            return False
        if adapter.key not in self.registry.keys:
            self._forget(adapter)
        return True

    def list(self) -> set[int]:
        """Numbers of the adapters that are loaded: in host memory, perhaps in a slot, too."""
        loaded = set(self.executor.call("list_loras")[0])
        return {n for n, adapter in self.registry.adapters.items() if adapter.key in loaded}

    def pin(self, lora_id: int) -> bool:
        """Keep an adapter in host memory and in a slot until it is removed; True.

        Raises:
            ValueError: if there is none of that number, or every slot is pinned already.
        """
        adapter = self.registry.adapters.get(lora_id)
        if adapter is None:
            known = ", ".join(map(str, sorted(self.registry.adapters))) or "none"
            raise ValueError(f"there is no adapter {lora_id}; known are {known}; add it first")
        self._load(adapter)
        self._call("pin_lora", adapter.key)
        self.pinned.add(adapter.key)
        return True

    def _load(self, adapter: Adapter) -> None:
        self._call("add_lora", adapter.key, adapter.path, sorted(self.in_use))

    def _call(self, method: str, *args: object) -> None:
        """Call a method of all workers that answers with a reason if it could not be done."""
        for reason in self.executor.call(method, *args):
            if reason is not None:
                raise ValueError(reason)

    def _replace(self, old: Adapter, new: Adapter) -> None:
        """An adapter has new weights; a pin stays with its number."""
        pinned = old.key in self.pinned
        if pinned or old.key not in self.in_use:
            self._forget(old)
        if pinned:
            self._call("pin_lora", new.key)
            self.pinned.add(new.key)

    def _forget(self, adapter: Adapter) -> None:
        self.pinned.discard(adapter.key)
        self.executor.call("remove_lora", adapter.key)


def _by_name(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts of keys, by what callers call the adapters: one that was replaced has several keys."""
    found: Counter[str] = Counter()
    for key, count in counts.items():
        found[key.rpartition("@")[0]] += count
    return dict(found)
