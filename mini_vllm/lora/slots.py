"""Adapters in host memory, some of them in slots on the device.

::

    disk                     host: max_cpu_loras adapters                device: max_loras slots
    adapters/pirate  ─load─► pirate@61ee  json@0c03  polite@1373  ─copy─►   0: json@0c03
                                                                            1: pirate@61ee

An adapter is loaded from disk when a request needs it, and copied into a slot when a step needs it.
The scheduler ensures that no step needs more adapters than there are slots.

Source: vllm/lora/model_manager.py#L1163-L1247 (LRUCacheLoRAModelManager) @ v0.22.1
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mini_vllm.config import LoRAConfig
from mini_vllm.lora.checkpoint import LoRAModel, LoRATarget
from mini_vllm.lora.layers import LinearLoRA
from mini_vllm.lora.mapping import LoRAKernelMeta
from mini_vllm.model.layers import Linear, compute_dtype
from mini_vllm.platforms import platform_of


class LoRAModelManager:
    """The adapters of one rank, and the slots of all its layers.

    Args:
        model: the Linears of its decoder get slots; embedding and head do not.
        max_num_tokens: most tokens in a step.

    Attributes:
        cpu_cache: loaded adapters by key, the least recently used first.
        slots: key of the adapter in each slot, None for an empty one.
        last_used: keys of the adapters in slots, the least recently used first.
        pinned: keys of adapters that are never evicted.
        paths: folder of every adapter that may have to be loaded again.
        num_loads, num_activations: how often an adapter was read from disk, and copied to a slot.
    """

    def __init__(
        self, model: nn.Module, lora_config: LoRAConfig, max_num_tokens: int, device: torch.device
    ) -> None:
        self.config = lora_config
        self.max_cpu_loras = lora_config.max_cpu_loras or lora_config.max_loras
        self.dtype = slot_dtype(lora_config.lora_dtype, model.dtype, device)
        self.targets: dict[str, LoRATarget] = {}
        self.layers: dict[str, LinearLoRA] = {}
        self.meta = LoRAKernelMeta(lora_config.max_loras, max_num_tokens, device)
        self._wrap(model, device)
        self.cpu_cache: OrderedDict[str, LoRAModel] = OrderedDict()
        self.slots: list[str | None] = [None] * lora_config.max_loras
        self.last_used: OrderedDict[str, None] = OrderedDict()
        self.pinned: set[str] = set()
        self.elsewhere = tuple(f"{model.checkpoint_prefix(name)}." for name in model.absent)
        """Prefixes of modules on other pipeline stages."""
        self.paths: dict[str, str] = {}
        self.num_loads = self.num_activations = 0
        self._measured: tuple[Any, ...] = ()  # slots and num_activations of the last _measure
        self._step: tuple[Any, ...] | None = None  # inputs of the current mapping

    def _wrap(self, model: nn.Module, device: torch.device) -> None:
        """Give every Linear of the decoder its slots, and record its projections as targets."""
        for name, module in linears(model):
            layer = LinearLoRA(
                module.input_size,
                module.output_sizes,
                self.config.max_loras,
                self.config.max_lora_rank,
                self.meta,
                self.dtype,
                device,
            )
            self.layers[name] = module.adapters = layer
            block, _, last = name.rpartition(".")
            parts = model.stacked.get(last, [last])
            for index, part in enumerate(parts):
                whole, here = module.whole_parts[index], module.parts[index]
                target = LoRATarget(name, index, len(parts), whole, here)
                self.targets[model.checkpoint_prefix(f"{block}.{part}")] = target

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots on the device, used or not."""
        return sum(layer.num_bytes for layer in self.layers.values())

    # ------------------------------------------------------------ host memory
    def add_adapter(self, key: str, path: str, keep: Collection[str] = ()) -> None:
        """Make an adapter ready: load it into host memory, if it is not there already.

        It becomes the most recently used one. While there are more than ``max_cpu_loras`` then,
        the least recently used of the others goes, also from its slot, unless it is pinned or to
        be kept. It is loaded *before* another goes, so that a bad adapter costs no other its place.

        Args:
            key: its identity, ``name@digest``.
            path: its folder, which is remembered in ``paths``.
            keep: keys of adapters that must stay, for requests are using them.

        Raises:
            ValueError: see :meth:`LoRAModel.from_local_checkpoint`. Nothing has changed then.

        Source: vllm/lora/worker_manager.py#L273-L307 (LRUCacheWorkerLoRAManager.add_adapter)
        @ v0.22.1
        """
        if key not in self.cpu_cache:
            self.cpu_cache[key] = self._load(key, path)
        self.paths[key] = path
        self.cpu_cache.move_to_end(key)
        for old in list(self.cpu_cache)[:-1]:
            if len(self.cpu_cache) <= self.max_cpu_loras:
                break
            if old not in self.pinned and old not in keep:
                self.remove_adapter(old)

    def _load(self, key: str, path: str) -> LoRAModel:
        self.num_loads += 1
        return LoRAModel.from_local_checkpoint(
            key, path, self.targets, self.config, self.dtype, self.elsewhere
        )

    def remove_adapter(self, key: str) -> bool:
        """Remove an adapter from host memory and its slot, pinned or not; False if it is not
        loaded.

        For a request that still uses it, it is loaded again, unless :meth:`forget` was called.
        """
        if self.cpu_cache.pop(key, None) is None:
            return False
        self.pinned.discard(key)
        if key in self.slots:
            self._release(self.slots.index(key))
        return True

    def forget(self, in_use: Collection[str]) -> None:
        """Forget the folders of adapters that are neither loaded nor among ``in_use``."""
        self.paths = {k: p for k, p in self.paths.items() if k in self.cpu_cache or k in in_use}

    def pin_adapter(self, key: str) -> None:
        """Keep an adapter in host memory and in a slot until it is removed.

        Raises:
            ValueError: if it is not loaded, or every slot is pinned to another one.
        """
        if key not in self.cpu_cache:
            raise ValueError(f"adapter {key!r} is not loaded; add it before you pin it")
        if self.activate(key, needed=()) is None:
            raise ValueError(
                f"adapter {key!r} cannot be pinned: all {len(self.slots)} slots are pinned to "
                f"{', '.join(sorted(self.pinned))}; remove one of them, or raise max_loras"
            )
        self.pinned.add(key)

    # ------------------------------------------------------------ slots
    def _choose_slot(self, needed: Collection[str]) -> int | None:
        """The slot that the next adapter may have.

        An empty one, the first, if there is any. Else that of the adapter that was used least
        recently, of those that are neither ``needed`` in this step nor pinned. None if there is
        no such one.

        Args:
            needed: keys of the adapters that this step uses.

        Source: vllm/lora/model_manager.py#L1208-L1220
        (LRUCacheLoRAModelManager.activate_adapter) @ v0.22.1
        """
        if None in self.slots:
            return self.slots.index(None)
        for key in self.last_used:
            if key not in needed and key not in self.pinned:
                return self.slots.index(key)
        return None

    def activate(self, key: str, needed: Collection[str]) -> int | None:
        """The slot of an adapter, which is copied into one if it has none; None if none is free.

        A copy counts in ``num_activations``; where the adapter has a slot, no layer is written. The
        slot is free while it is written. *Every* layer
        of it is written: one that the adapter leaves alone is emptied, for the adapter before may
        have had something there.

        Args:
            key: of an adapter in ``cpu_cache``, whose order stays. In ``last_used`` it is now the
                last.
            needed: keys of the adapters that this step uses.

        Source: vllm/lora/model_manager.py#L285-L324 (LoRAModelManager.activate_adapter) @ v0.22.1
        """
        if key not in self.slots:
            slot = self._choose_slot(needed)
            if slot is None:
                return None
            self._release(slot)
            weights = self.cpu_cache[key].weights
            for name, layer in self.layers.items():
                if name in weights:
                    layer.set_lora(slot, weights[name])
                else:
                    layer.reset_lora(slot)
            self.slots[slot] = key
            self.num_activations += 1
        self.last_used[key] = None
        self.last_used.move_to_end(key)
        return self.slots.index(key)

    def _release(self, slot: int) -> None:
        """Mark a slot as free. Its content stays until the next adapter overwrites it."""
        key, self.slots[slot] = self.slots[slot], None
        if key is not None:
            self.last_used.pop(key, None)

    def empty_slots(self) -> None:
        """Mark all slots as free, then load pinned adapters again. Used after an interrupt, which
        may have left the slots inconsistent."""
        self.slots = [None] * len(self.slots)
        self.last_used.clear()
        for key in self.pinned:
            self.activate(key, needed=())

    # ------------------------------------------------------------ a step
    def prepare_capture(self) -> None:
        """Let the next steps launch the kernels although no token has an adapter.

        A CUDA graph repeats only kernels that were launched while it was recorded.
        """
        self._step = None
        self.meta.update(np.full(0, -1, dtype=np.int32))
        self.meta.no_lora = False

    def map(self, names: Sequence[str | None], num_tokens: Sequence[int]) -> dict[str, str]:
        """Give the adapters of a step their slots, and the step's tokens their mapping.

        Args:
            names: ``[R]``, the key of each request's adapter; None: the base.
            num_tokens: ``[R]``, tokens of each in this step; they lie one after another.

        Returns:
            Why an adapter cannot be served, by key. The tokens of its requests are computed with
            the base alone, and must be thrown away.

        Source: vllm/lora/worker_manager.py#L258-L271 (LRUCacheWorkerLoRAManager._apply_adapters)
        @ v0.22.1
        """
        if (names, num_tokens, self._state()) == self._step:
            return {}  # the same as in the previous step, as mostly in decodes
        needed = list(dict.fromkeys(name for name in names if name is not None))
        if not needed and self.meta.no_lora:
            return {}  # every token's slot is -1 already
        self._step = None  # until all is written, because Ctrl-C may interrupt it
        failed: dict[str, str] = {}
        slot_of: dict[str | None, int] = {None: -1}
        for key in needed:
            try:
                slot_of[key] = self._prepare(key, needed)
            except ValueError as error:
                slot_of[key], failed[key] = -1, str(error)
        slots = np.array([slot_of[name] for name in names], dtype=np.int32)
        self._measure()
        self.meta.update(np.repeat(slots, num_tokens))
        if not failed:
            self._step = [*names], [*num_tokens], self._state()
        return failed

    def _state(self) -> tuple[Any, ...]:
        """The adapters in both memories and their order: everything that `map` may change."""
        return [*self.cpu_cache], [*self.last_used], [*self.slots], self.num_activations

    def _measure(self) -> None:
        """Measure the ranks of the slots, if any was written since the last time."""
        written = [*self.slots], self.num_activations
        if written != self._measured and platform_of(self.meta.device).is_host:
            for layer in self.layers.values():
                for slot in range(len(self.slots)):
                    layer.measure(slot)
        self._measured = written

    def _prepare(self, key: str, needed: Collection[str]) -> int:
        """The slot of an adapter that the step needs; it is loaded again if it was evicted.

        Raises:
            ValueError: if it can no longer be loaded, or no slot is free.
        """
        if key not in self.cpu_cache and key not in self.paths:
            raise ValueError(f"adapter {key!r} was removed")
        self.add_adapter(key, self.paths[key], keep=needed)
        slot = self.activate(key, needed)
        if slot is None:
            taken = ", ".join(key for key in self.slots if key)
            raise ValueError(
                f"adapter {key!r} can have no slot: all {len(self.slots)} are taken by {taken}; "
                "raise max_loras"
            )
        return slot


def linears(model: nn.Module) -> list[tuple[str, Linear]]:
    """The layers that adapters may change, by name: every Linear of the decoder, except experts,
    whose rows differ in order and number from the step's tokens."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, Linear)
        and name.startswith("model.layers.")
        and ".experts." not in name
    ]


def bytes_of_slots(model: nn.Module, lora_config: LoRAConfig, device: torch.device) -> int:
    """Bytes of all slots of a rank."""
    per_rank = sum(
        len(layer.output_sizes) * layer.input_size + sum(layer.output_sizes)
        for _, layer in linears(model)
    )
    dtype = slot_dtype(lora_config.lora_dtype, model.dtype, device)
    return lora_config.max_loras * lora_config.max_lora_rank * per_rank * dtype.itemsize


def slot_dtype(name: str, model_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of slots: that of the activations for "auto", and always on a CPU."""
    is_free = name != "auto" and not platform_of(device).is_host
    wanted = getattr(torch, name) if is_free else model_dtype
    return compute_dtype(wanted, device)
