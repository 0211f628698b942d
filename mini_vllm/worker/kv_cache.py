"""The tensors behind the blocks: how many fit, where they live, and copies between them.

One tensor per layer, ``[2, num_blocks, block_size, num_kv_heads, head_dim]`` (0: keys, 1: values).
Layers that remember differently share them: see :mod:`mini_vllm.worker.cache_layout`.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mini_vllm.config import EngineConfig
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.model.interface import KVCacheSpec
from mini_vllm.platforms import platform_of
from mini_vllm.worker.cache_layout import CacheLayout
from mini_vllm.worker.capacity import bytes_per_token, num_blocks_in


def bytes_per_block(spec: KVCacheSpec, block_size: int) -> int:
    """Bytes of ``block_size`` tokens over all layers that keep keys and values."""
    return block_size * bytes_per_token(spec)


def available_memory(device: torch.device, utilization: float) -> int:
    """Bytes that a KV cache may take: ``utilization`` of the device, less what is in use now."""
    return platform_of(device).available_memory(device, utilization)


def reclaimable_memory(device: torch.device) -> int:
    """The most bytes that can be allocated: all free memory, without a reserve for other
    programs."""
    return platform_of(device).reclaimable_memory(device)


def check_sizes(config: EngineConfig, block_bytes: int, device: torch.device) -> None:
    """Refuse numbers that no memory holds, before anything is allocated.

    Raises:
        ValueError: that names the number, what it would take and what there is.
    """
    cache, limits = config.cache, config.scheduler
    row_bytes = 8 * limits.max_model_len + 4 * cdiv(limits.max_model_len, cache.block_size)
    cpu = torch.device("cpu")
    for name, count, each, where in (
        ("num_gpu_blocks", cache.num_gpu_blocks or 0, block_bytes, device),
        ("num_cpu_blocks", cache.num_cpu_blocks, block_bytes, cpu),
        ("max_num_seqs", limits.max_num_seqs, row_bytes, cpu),
    ):
        free = reclaimable_memory(where)
        if count * each > free:
            raise ValueError(
                f"{name} is {count}, which takes {count * each / 2**20:.0f} MiB; {where} has "
                f"{free / 2**20:.0f} MiB free; lower it to at most {free // each}"
            )


def given_memory(config: EngineConfig, device: torch.device) -> int | None:
    """Bytes for the KV cache of one worker, as the user says; None: nothing is said.

    Raises:
        ValueError: for a VLLM_CPU_KVCACHE_SPACE that is no number.
    """
    given = config.cache.kv_cache_memory_bytes
    return platform_of(device).kv_cache_space() if given is None else given


def choose_num_blocks(
    config: EngineConfig,
    spec: KVCacheSpec,
    device: torch.device,
    drafter: KVCacheSpec | None = None,
    memory: int | None = None,
) -> int:
    """The number of blocks to allocate, the null block included.

    A number in the configuration is taken as it is. Otherwise: as many as fit the memory, but
    no more than all running requests could fill at full length. A drafter with a cache of its own
    has as many blocks as the model. What a request needs is counted as its layers remember: a
    window needs blocks for itself and a step's tokens, however long the text.

    Args:
        memory: bytes for the cache; None: what the user gives, or what is free on the device now.

    Raises:
        ValueError: if memory does not suffice for one request of full length (of one block, if the
            length was left open), or for a number that the configuration gives.

    Source: vllm/v1/core/kv_cache_utils.py#L691-L728 (_check_enough_kv_cache_memory) @ v0.22.1
    """
    layout = CacheLayout.of(spec, config)
    block_bytes = layout.block_bytes
    if drafter is not None:
        block_bytes += bytes_per_block(drafter, config.cache.block_size)
    check_sizes(config, block_bytes, device)
    if config.cache.num_gpu_blocks is not None:
        return config.cache.num_gpu_blocks
    given = given_memory(config, device)
    if given is not None:
        memory = given
    elif memory is None:
        memory = shared_memory(
            config, device, available_memory(device, config.cache.gpu_memory_utilization)
        )
    wanted = config.scheduler.max_model_len
    most_useful = 1 + layout.most_blocks(config)
    num_blocks = min(num_blocks_in(memory, block_bytes), most_useful)
    length = layout.longest_sequence(layout.peak_blocks(1, config), config)
    length = min(wanted, length) if config.fits_max_model_len else wanted
    needed = 1 + layout.peak_blocks(length, config)
    if num_blocks < needed:
        longest = layout.longest_sequence(max(num_blocks - 1, 0), config)
        lower = f"lower max_model_len to at most {longest}, or " if longest > 0 else ""
        whose = "were given for" if given is not None else "are free for"
        raise ValueError(
            f"{memory / 2**20:.2f} MiB {whose} the KV cache on {device}, but one request of "
            f"max_model_len={length} needs {needed * block_bytes / 2**20:.2f} MiB; {lower}"
            f"{how_to_hold(config, device, block_bytes, needed)}"
        )
    free = shared_memory(config, device, reclaimable_memory(device))
    if num_blocks * block_bytes > free:
        raise ValueError(
            f"the KV cache was given {memory} bytes and could use {num_blocks * block_bytes} of "
            f"them; {device} has {free} bytes free; set kv_cache_memory_bytes to at most {free}"
        )
    return num_blocks


def shared_memory(config: EngineConfig, device: torch.device, num_bytes: int) -> int:
    """One worker's share of a device's memory; on CPUs all workers of an engine share main
    memory."""
    is_shared = platform_of(device).is_host
    return num_bytes // config.parallel.num_workers if is_shared else num_bytes


def how_to_hold(
    config: EngineConfig, device: torch.device, block_bytes: int, num_blocks: int
) -> str:
    """Advice on how to give the KV cache so many blocks, where it is possible."""
    cache, needed = config.cache, num_blocks * block_bytes
    free = shared_memory(config, device, reclaimable_memory(device))
    if needed > free:
        return (
            f"take a device with more memory: {needed / 2**20:.0f} MiB are needed and {device} has "
            f"{free / 2**20:.0f} MiB free; or quantize the model or the cache (kv_cache_dtype)"
        )
    if cache.num_gpu_blocks is not None:
        return f"set num_gpu_blocks to at least {num_blocks}"
    info = platform_of(device).mem_get_info(device)
    if given_memory(config, device) is not None or info is None:
        return f"set kv_cache_memory_bytes to at least {needed}"
    unused, total = info
    utilization = math.ceil(100 * (1.0 - (unused - needed) / total)) / 100
    return f"set gpu_memory_utilization to at least {min(utilization, 1.0)}"


SCRUBBED_AT_ONCE = 2**20
"""Numbers of the cache that are looked at together for one that is not finite."""


class KVCache:
    """The KV tensors of all layers on the device, and of swapped-out blocks on the host.

    In main memory a block takes room from its first use on: the system hands out a page, zeroed,
    when it is first written. A large pool costs nothing at the start.

    Args:
        spec: the model's KV shape.
        num_blocks: blocks on the device, the null block included.
        num_host_blocks: blocks in host memory to swap to; V1 needs none.
        layout: how layers share the tensors; None: each has its own.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        num_host_blocks: int = 0,
        layout: CacheLayout | None = None,
    ) -> None:
        layout = layout or CacheLayout.single(spec, block_size)
        self.is_mixed = spec.keeps_states
        """Whether a page may hold a state, in numbers of another kind."""
        cpu = torch.device("cpu")
        self._pages: list[mmap.mmap] = []
        self.tensors = self._make(layout, num_blocks, device)
        self.layers = layout.views(self.tensors)
        self.host_tensors = self._make(layout, num_host_blocks, cpu)

    def _make(self, layout: CacheLayout, num_blocks: int, device: torch.device) -> list[Tensor]:
        """A tensor for each position, in the shape that attention takes."""
        spec, dtype = layout.spec, layout.spec.dtype
        token = spec.num_kv_heads * spec.width * dtype.itemsize
        shape: tuple[int, ...] = (layout.plane_bytes // token, spec.num_kv_heads, spec.width)
        if all(layer.kind == "mamba" for layer in spec.layers) and spec.layers:
            dtype, shape = torch.int8, (layout.plane_bytes,)
        shape = (spec.planes, num_blocks, *shape)
        return [self._zeros(shape, dtype, device) for _ in range(layout.num_positions)]

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Zeros; in main memory pages of a private mapping, for `torch.zeros` writes each."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if not platform_of(device).is_host or num_bytes == 0:
            return torch.zeros(shape, dtype=dtype, device=device)
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._pages.append(pages)
        return torch.frombuffer(pages, dtype=dtype).view(shape)

    def release(self) -> None:
        """Give the memory back until :meth:`restore`; what the cache held is lost.

        Tensors and their addresses stay, so code that holds one need not be told.
        """
        for pages in self._pages:
            pages.madvise(mmap.MADV_DONTNEED)  # the next use finds zeros in a new page
        for tensor in self._on_device():
            tensor.untyped_storage().resize_(0)

    def restore(self) -> None:
        """Take the memory again, zeroed."""
        for tensor in self._on_device():
            tensor.untyped_storage().resize_(tensor.numel() * tensor.itemsize)
            tensor.zero_()

    def _on_device(self) -> Iterator[Tensor]:
        return (tensor for tensor in self.tensors if not platform_of(tensor.device).is_host)

    def scrub(self) -> None:
        """Replace NaN and infinities by 0.

        A masked slot counts for nothing only while it is finite (-inf + NaN is NaN), so NaN that a
        broken request left in its blocks would break the next request that gets them. Finite
        numbers are only read: a write would allocate memory for every page of the pool.

        Where a page may hold a state nothing is done: a block is zeroed when it is handed out.
        """
        if self.is_mixed:
            return
        for tensor in (*self.tensors, *self.host_tensors):
            if not tensor.is_floating_point():  # bytes, of which none means such a number
                continue
            for part in tensor.view(-1).split(SCRUBBED_AT_ONCE):
                if not part.sum(dtype=torch.float32).isfinite():
                    part.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def zero(self, block_ids: Sequence[int]) -> None:
        """Make blocks new: what a state has left there may be NaN as a key or a value, and a masked
        slot counts for nothing only while it is finite."""
        if block_ids:
            ids = torch.tensor(block_ids)
            for tensor in self.tensors:
                tensor[:, ids.to(tensor.device)] = 0

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(device block, host block)`` pairs to the host."""
        _copy_blocks(self.tensors, self.host_tensors, pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(host block, device block)`` pairs to the device."""
        _copy_blocks(self.host_tensors, self.tensors, pairs)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(source, destination)`` pairs on the device."""
        _copy_blocks(self.tensors, self.tensors, pairs)


def _copy_blocks(
    sources: list[Tensor], targets: list[Tensor], pairs: Sequence[tuple[int, int]]
) -> None:
    if not pairs:
        return
    source_ids, target_ids = (torch.tensor(ids) for ids in zip(*pairs, strict=True))
    for source, target in zip(sources, targets, strict=True):
        blocks = source[:, source_ids.to(source.device)]
        target[:, target_ids.to(target.device)] = blocks.to(target.device)
