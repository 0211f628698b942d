"""The tensors behind the blocks: how many fit, where they live, and copies between them.

One tensor per layer, ``[2, num_blocks, block_size, num_kv_heads, head_dim]`` (0: keys, 1: values).
"""

from __future__ import annotations

import gc
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mini_vllm.config import EngineConfig
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.model.interface import KVCacheSpec

CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's name for the GiB of a worker's KV cache on a CPU; `kv_cache_memory_bytes` goes first."""


def bytes_per_block(spec: KVCacheSpec, block_size: int) -> int:
    """Bytes of one block over all layers: keys and values of ``block_size`` tokens."""
    per_token = 2 * spec.num_kv_heads * spec.width * spec.dtype.itemsize
    return spec.num_layers * block_size * per_token


def available_memory(device: torch.device, utilization: float) -> int:
    """Bytes that a KV cache may take: ``utilization`` of the device, less what is in use now.

    On a CPU, where the rest of the machine needs memory too, half of what is free at most.
    """
    if device.type == "cuda":
        free, total = free_on_gpu(device)
        return int(free - (1.0 - utilization) * total)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(free * min(utilization, 0.5))


def reclaimable_memory(device: torch.device) -> int:
    """Bytes that could be had at most: all that is free, without a reserve for others."""
    if device.type == "cuda":
        return free_on_gpu(device)[0]
    return max(host_memory(), os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def free_on_gpu(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that are free, and all it has.

    What torch keeps of an engine that is gone counts as used, and would be missing here: so the
    objects that nobody holds any more are collected, and torch gives back what it keeps.

    Source: vllm/v1/worker/gpu_worker.py#L294-L296 (Worker.init_device) @ v0.22.1
    """
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)


def host_memory() -> int:
    """Bytes of main memory that programs may still take, the file cache's too; all of it where
    nobody tells."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
    space = os.environ.get(CPU_SPACE)
    if config.cache.kv_cache_memory_bytes is not None or device.type != "cpu" or not space:
        return config.cache.kv_cache_memory_bytes
    try:
        num_bytes = int(float(space) * 2**30)
    except (ValueError, OverflowError):
        num_bytes = 0
    if num_bytes < 1:
        raise ValueError(f"{CPU_SPACE} is {space!r}; it must be a number of GiB above 0, such as 4")
    return num_bytes


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
    has as many blocks as the model.

    Args:
        memory: bytes for the cache; None: what the user gives, or what is free on the device now.

    Raises:
        ValueError: if memory does not suffice for one request of full length (of one block, if the
            length was left open), or for a number that the configuration gives.

    Source: vllm/v1/core/kv_cache_utils.py#L691-L728 (_check_enough_kv_cache_memory) @ v0.22.1
    """
    specs = [spec] if drafter is None else [spec, drafter]
    block_bytes = sum(bytes_per_block(one, config.cache.block_size) for one in specs)
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
    blocks_per_request = cdiv(config.scheduler.max_model_len, config.cache.block_size)
    most_useful = 1 + blocks_per_request * config.scheduler.max_num_seqs
    num_blocks = min(memory // block_bytes, most_useful)
    needed = 2 if config.fits_max_model_len else 1 + blocks_per_request
    if num_blocks < needed:
        longest = (num_blocks - 1) * config.cache.block_size
        length = min(config.scheduler.max_model_len, (needed - 1) * config.cache.block_size)
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
    """One worker's share of a device's memory; all of an engine's live in the same main memory."""
    return num_bytes // config.parallel.num_workers if device.type == "cpu" else num_bytes


def how_to_hold(
    config: EngineConfig, device: torch.device, block_bytes: int, num_blocks: int
) -> str:
    """What gives the KV cache so many blocks. It is advice only where it helps."""
    cache, needed = config.cache, num_blocks * block_bytes
    free = shared_memory(config, device, reclaimable_memory(device))
    if needed > free:
        return (
            f"take a device with more memory: {needed / 2**20:.0f} MiB are needed and {device} has "
            f"{free / 2**20:.0f} MiB free; or quantize the model or the cache (kv_cache_dtype)"
        )
    if cache.num_gpu_blocks is not None:
        return f"set num_gpu_blocks to at least {num_blocks}"
    if given_memory(config, device) is not None or device.type == "cpu":
        return f"set kv_cache_memory_bytes to at least {needed}"
    unused, total = free_on_gpu(device)
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
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        shape = (block_size, spec.num_kv_heads, spec.width)
        layers = range(spec.num_layers)
        self._pages: list[mmap.mmap] = []
        self.layers = [self._zeros((2, num_blocks, *shape), spec.dtype, device) for _ in layers]
        cpu = torch.device("cpu")
        self.host_layers = [
            self._zeros((2, num_host_blocks, *shape), spec.dtype, cpu) for _ in layers
        ]

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Zeros; in main memory pages of a private mapping, for `torch.zeros` writes each."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if device.type != "cpu" or num_bytes == 0:
            return torch.zeros(shape, dtype=dtype, device=device)
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._pages.append(pages)
        return torch.frombuffer(pages, dtype=dtype).view(shape)

    def release(self) -> None:
        """Give the memory back until :meth:`restore`; what the cache held is lost.

        Tensors and their addresses stay, so a holder of one needs not know.
        """
        for pages in self._pages:
            pages.madvise(mmap.MADV_DONTNEED)  # the next use finds zeros in a new page
        for layer in self._on_device():
            layer.untyped_storage().resize_(0)

    def restore(self) -> None:
        """Take the memory again, zeroed."""
        for layer in self._on_device():
            layer.untyped_storage().resize_(layer.numel() * layer.itemsize)
            layer.zero_()

    def _on_device(self) -> Iterator[Tensor]:
        return (layer for layer in self.layers if layer.device.type != "cpu")

    def scrub(self) -> None:
        """Replace NaN and infinities by 0.

        A masked slot counts for nothing only while it is finite (-inf + NaN is NaN), so what a
        broken request has left in its blocks would break their next owner too. What is finite is
        read only, since writing would give every page of the pool its memory.
        """
        for layer in (*self.layers, *self.host_layers):
            if not layer.is_floating_point():  # bytes, of which none means such a number
                continue
            for part in layer.view(-1).split(SCRUBBED_AT_ONCE):
                if not part.sum(dtype=torch.float32).isfinite():
                    part.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(device block, host block)`` pairs to the host."""
        _copy_blocks(self.layers, self.host_layers, pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(host block, device block)`` pairs to the device."""
        _copy_blocks(self.host_layers, self.layers, pairs)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(source, destination)`` pairs on the device."""
        _copy_blocks(self.layers, self.layers, pairs)


def _copy_blocks(
    sources: list[Tensor], targets: list[Tensor], pairs: Sequence[tuple[int, int]]
) -> None:
    if not pairs:
        return
    source_ids, target_ids = (torch.tensor(ids) for ids in zip(*pairs, strict=True))
    for source, target in zip(sources, targets, strict=True):
        blocks = source[:, source_ids.to(source.device)]
        target[:, target_ids.to(target.device)] = blocks.to(target.device)
