"""A second tier of KV blocks: which contents are where in it, and which are evicted first.

::

    prepare_store ──► being written (ref_cnt -1) ──► complete_store ──► ready (0) ◄─┐
                              │ failed                                    │         │ complete_load
                              ▼                              prepare_load ▼         │
                            gone                                 being read (> 0) ──┘

Pure bookkeeping: the worker copies the bytes, and that takes several steps. So a
block has a state in between, and what is in between is neither found nor evicted.

Source: vllm/v1/kv_offload/cpu/manager.py#L23-L240 (CPUOffloadingManager) @ v0.22.1
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class BlockStatus:
    """A block of the tier.

    Source: vllm/v1/kv_offload/cpu/policies/base.py#L10-L39 (BlockStatus) @ v0.22.1
    """

    block_id: int
    """Where in the tier it lies."""
    ref_cnt: int = -1
    """-1 while it is written, 0 when it is ready, and one more for each reader."""

    @property
    def is_ready(self) -> bool:
        return self.ref_cnt >= 0


Evicted = list[tuple[bytes, BlockStatus]]


class LRUCachePolicy:
    """Least recently used first.

    Source: vllm/v1/kv_offload/cpu/policies/lru.py#L10-L49 (LRUCachePolicy) @ v0.22.1
    """

    def __init__(self, capacity: int) -> None:
        self.blocks: OrderedDict[bytes, BlockStatus] = OrderedDict()
        """Oldest first."""

    def get(self, key: bytes) -> BlockStatus | None:
        return self.blocks.get(key)

    def insert(self, key: bytes, block: BlockStatus) -> None:
        self.blocks[key] = block

    def remove(self, key: bytes) -> None:
        del self.blocks[key]

    def clear(self) -> None:
        self.blocks.clear()

    def __len__(self) -> int:
        return len(self.blocks)

    def touch(self, keys: Sequence[bytes]) -> None:
        """These blocks of a prompt were asked for, in its order: they are young again.

        The *last* is touched first, so that the first becomes the youngest: without its beginning
        a prompt's rest is worth nothing, so the rest has to go before it. Unknown keys are passed
        over.

        Source: vllm/v1/kv_offload/cpu/policies/lru.py#L26-L29 (LRUCachePolicy.touch) @ v0.22.1
        """
        for key in reversed(keys):
            if key in self.blocks:
                self.blocks.move_to_end(key)

    def evict(self, num_blocks: int, protected: Collection[bytes]) -> Evicted | None:
        """Take out the ``num_blocks`` oldest that may go: ready, without a reader, not protected.

        The blocks are gone through once, from the oldest.

        Returns:
            Keys and blocks, oldest first; or None, with nothing changed, if there are too few.

        Source: vllm/v1/kv_offload/cpu/policies/lru.py#L34-L49 (LRUCachePolicy.evict) @ v0.22.1
        """
        victims: Evicted = []
        for key, block in self.blocks.items():
            if len(victims) == num_blocks:
                break
            if block.ref_cnt == 0 and key not in protected:
                victims.append((key, block))
        if len(victims) < num_blocks:
            return None
        for key, _ in victims:
            del self.blocks[key]
        return victims


class ARCCachePolicy:
    """Adaptive replacement: blocks that were used once (t1), blocks that were used again (t2), and
    a target for the size of t1.

    Keys that were evicted lately are remembered as ghosts. A lookup of a ghost of t1 shows that t1
    is too small, a lookup of a ghost of t2 that t1 is too large.

    Source: vllm/v1/kv_offload/cpu/policies/arc.py#L10-L163 (ARCCachePolicy) @ v0.22.1
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        """Blocks that t1 should have."""
        self.t1: OrderedDict[bytes, BlockStatus] = OrderedDict()
        self.t2: OrderedDict[bytes, BlockStatus] = OrderedDict()
        self.ghosts1: OrderedDict[bytes, None] = OrderedDict()
        self.ghosts2: OrderedDict[bytes, None] = OrderedDict()

    def get(self, key: bytes) -> BlockStatus | None:
        return self.t1.get(key) or self.t2.get(key)

    def insert(self, key: bytes, block: BlockStatus) -> None:
        self.t1[key] = block
        self.ghosts1.pop(key, None)
        self.ghosts2.pop(key, None)

    def remove(self, key: bytes) -> None:
        if self.t1.pop(key, None) is None:
            self.t2.pop(key, None)

    def clear(self) -> None:
        for each in (self.t1, self.t2, self.ghosts1, self.ghosts2):
            each.clear()
        self.target = 0.0

    def __len__(self) -> int:
        return len(self.t1) + len(self.t2)

    def touch(self, keys: Sequence[bytes]) -> None:
        """A second use moves a block to t2; asking for a ghost moves the target."""
        for key in reversed(keys):
            if key in self.t1:
                block = self.t1.pop(key)
                (self.t2 if block.is_ready else self.t1)[key] = block
            elif key in self.t2:
                self.t2.move_to_end(key)
            elif key in self.ghosts1:
                change = max(1, len(self.ghosts2) / len(self.ghosts1))
                self.target = min(self.target + change, self.capacity)
                self.ghosts1.move_to_end(key)
            elif key in self.ghosts2:
                change = max(1, len(self.ghosts1) / len(self.ghosts2))
                self.target = max(self.target - change, 0)
                self.ghosts2.move_to_end(key)

    def evict(self, num_blocks: int, protected: Collection[bytes]) -> Evicted | None:
        """See :meth:`LRUCachePolicy.evict`; from t1 while it is larger than its target."""
        once = self._candidates(self.t1, protected)
        often = self._candidates(self.t2, protected)
        size1 = len(self.t1)
        victims: Evicted = []
        for _ in range(num_blocks):
            if once and size1 >= int(self.target):
                size1 -= 1
                victims.append(once.pop(0))
            elif often:
                victims.append(often.pop(0))
            else:
                return None
        for key, _ in victims:
            ghosts = self.ghosts1 if self.t1.pop(key, None) else self.ghosts2
            self.t2.pop(key, None)
            ghosts[key] = None
        for ghosts in (self.ghosts1, self.ghosts2):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return victims

    def _candidates(
        self, blocks: OrderedDict[bytes, BlockStatus], protected: Collection[bytes]
    ) -> Evicted:
        return [(k, b) for k, b in blocks.items() if b.ref_cnt == 0 and k not in protected]


POLICIES: dict[str, type[LRUCachePolicy] | type[ARCCachePolicy]] = {
    "lru": LRUCachePolicy,
    "arc": ARCCachePolicy,
}


@dataclass(frozen=True, slots=True)
class PrepareStoreOutput:
    """What is to be written, and where to.

    Source: vllm/v1/kv_offload/base.py#L68-L72 (PrepareStoreOutput) @ v0.22.1
    """

    keys_to_store: list[bytes]
    block_ids: list[int]
    """Of the tier, one for each key."""
    evicted_keys: list[bytes]


class CPUOffloadingManager:
    """A tier of ``num_blocks`` blocks with a policy.

    Args:
        policy: "lru" or "arc".

    Source: vllm/v1/kv_offload/cpu/manager.py#L23-L240 (CPUOffloadingManager) @ v0.22.1
    """

    def __init__(self, num_blocks: int, policy: str = "lru") -> None:
        self.num_blocks = num_blocks
        self.policy = POLICIES[policy](num_blocks)
        self.free_ids = list(reversed(range(num_blocks)))
        """Blocks of the tier that hold nothing; the last is taken first."""

    def lookup(self, key: bytes) -> bool | None:
        """Whether the tier has a block: True; False; or None, while it is still being written.

        Source: vllm/v1/kv_offload/cpu/manager.py#L97-L111 (CPUOffloadingManager.lookup) @ v0.22.1
        """
        block = self.policy.get(key)
        if block is None:
            return False
        return True if block.is_ready else None

    def touch(self, keys: Sequence[bytes]) -> None:
        """Blocks of a prompt were asked for, in its order."""
        self.policy.touch(keys)

    def prepare_load(self, keys: Iterable[bytes]) -> list[int]:
        """These ready blocks will be read: they stay until :meth:`complete_load`.

        Returns:
            Where in the tier they lie.
        """
        blocks = [self.policy.get(key) for key in keys]
        ids = []
        for block in blocks:
            assert block is not None and block.is_ready, "only a ready block can be read"
            block.ref_cnt += 1
            ids.append(block.block_id)
        return ids

    def complete_load(self, keys: Iterable[bytes]) -> None:
        """They have been read."""
        for key in keys:
            block = self.policy.get(key)
            assert block is not None and block.ref_cnt > 0, "it was not being read"
            block.ref_cnt -= 1

    def prepare_store(self, keys: Sequence[bytes]) -> PrepareStoreOutput | None:
        """Make room for blocks, and take those in that the tier does not have.

        Known keys are left out, and become no younger. For the others as many blocks are evicted
        as there are too few free, and not one more; never one of ``keys``, for a block that was
        there must be there afterwards. The new ones are being written: no lookup finds them.

        Returns:
            What is to be written, an empty output if all are known; None, with nothing changed, if
            there cannot be room for all.

        Source: vllm/v1/kv_offload/cpu/manager.py#L139-L194 (CPUOffloadingManager.prepare_store)
        @ v0.22.1
        """
        new_keys = [key for key in dict.fromkeys(keys) if self.policy.get(key) is None]
        num_to_evict = max(len(new_keys) - len(self.free_ids), 0)
        evicted = self.policy.evict(num_to_evict, set(keys))
        if evicted is None:
            return None
        self.free_ids += [block.block_id for _, block in evicted]
        block_ids = [self.free_ids.pop() for _ in new_keys]
        for key, block_id in zip(new_keys, block_ids, strict=True):
            self.policy.insert(key, BlockStatus(block_id))
        return PrepareStoreOutput(new_keys, block_ids, [key for key, _ in evicted])

    def complete_store(self, keys: Iterable[bytes], success: bool = True) -> None:
        """Blocks have been written, or could not be: those are gone, and their place is free.

        A key that is not being written is left alone.

        Source: vllm/v1/kv_offload/cpu/manager.py#L196-L224 (CPUOffloadingManager.complete_store)
        @ v0.22.1
        """
        for key in keys:
            block = self.policy.get(key)
            if block is None or block.is_ready:
                continue
            if success:
                block.ref_cnt = 0
            else:
                self.policy.remove(key)
                self.free_ids.append(block.block_id)

    def reset(self) -> None:
        """Forget everything."""
        self.policy.clear()
        self.free_ids = list(reversed(range(self.num_blocks)))

    def check_integrity(self) -> None:
        """Raise AssertionError unless each block of the tier is free or known, and not both."""
        assert len(set(self.free_ids)) == len(self.free_ids), "a block is free twice"
        assert len(self.free_ids) + len(self.policy) == self.num_blocks, "blocks were lost"
