"""Where should a prompt go? To the worker that has its beginning already, unless it is busy.

::

    prompt     [b0][b1][b2][b3]
    worker 0   [b0][b1]            2 blocks known,  900 tokens in its queue
    worker 1   [b0]                1 block known,     0 tokens in its queue     done first: here

What workers have, they tell by their events (:mod:`~mini_vllm.kv_transfer.events`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mini_vllm.core.block_hash import hash_block
from mini_vllm.kv_transfer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent


class PrefixIndex:
    """What a router knows about the caches of several workers.

    ``{worker: {block hash: copies}}``. Copies are counted: a worker may hold the same contents in
    two blocks, and still hold them when one of the two is removed.
    """

    def __init__(self) -> None:
        self.copies: dict[str, dict[bytes, int]] = {}

    def apply(self, worker: str, events: Iterable[KVEvent]) -> None:
        """Take in the events of a worker, in their order.

        A BlockStored is one more copy of each of its hashes, a BlockRemoved one less; a hash
        without a copy is forgotten, and one that no event has named is ignored. AllBlocksCleared
        empties the worker's part.
        """
        # TODO 15.14
        raise NotImplementedError(
            "TODO 15.14: write PrefixIndex.apply in labs/15-disaggregation/routing.py"
            " (phase 15, 02-mini-build.md#task-14)"
        )

    def forget(self, worker: str) -> None:
        """Forget all blocks of a worker that has ended, or whose events have a gap."""
        self.copies.pop(worker, None)

    def score(self, worker: str, block_hashes: Sequence[bytes]) -> int:
        """How many of a prompt's blocks, from its beginning, the worker has.

        A block after a gap is worth nothing: its hash covers all before it, but its KV can be used
        only if all before it is there, too. Each block is looked up once at most.
        """
        # TODO 15.14
        raise NotImplementedError(
            "TODO 15.14: write PrefixIndex.score in labs/15-disaggregation/routing.py"
            " (phase 15, 02-mini-build.md#task-14)"
        )


def choose_worker(
    scores: Sequence[int],
    queued_tokens: Sequence[int],
    num_prompt_tokens: int,
    block_size: int,
) -> int:
    """Which worker should compute a prompt: the one that is done with it first.

    A worker's cost is the tokens queued before it, plus those of the prompt that it does not have:
    ``queued_tokens[i] + num_prompt_tokens - scores[i] * block_size``. Of equal ones the first
    counts. By the prefix alone, a popular one goes to a single worker for ever; by the queue alone,
    it is computed everywhere.

    Args:
        scores: per worker, blocks of the prompt that it has (:meth:`PrefixIndex.score`).
        queued_tokens: per worker, tokens that it has still to compute.

    Returns:
        The worker's index.

    Raises:
        ValueError: if there is no worker.
    """
    # TODO 15.14
    raise NotImplementedError(
        "TODO 15.14: write choose_worker in labs/15-disaggregation/routing.py"
        " (phase 15, 02-mini-build.md#task-14)"
    )


ROOT = bytes(32)


def content_hashes(token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Names of a prompt's full blocks by their tokens alone, the same for every engine."""
    hashes: list[bytes] = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = hashes[-1] if hashes else ROOT
        hashes.append(hash_block(parent, token_ids[end - block_size : end]))
    return hashes


class ContentIndex:
    """A :class:`PrefixIndex` for a router that cannot compute the engines' hashes.

    Each engine hashes blocks in its own way, but its events also have the tokens of each new block.
    So the router hashes them itself, and remembers which of its hashes belongs to an engine's.
    """

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.names: dict[str, dict[bytes, bytes]] = {}
        """By worker: the router's hash of each of the worker's hashes."""

    def apply(self, worker: str, events: Iterable[KVEvent]) -> None:
        """Take in the events of a worker. A block with an unknown parent is left out."""
        names = self.names.setdefault(worker, {})
        for event in events:
            if isinstance(event, AllBlocksCleared):
                names.clear()
                self.index.apply(worker, [event])
            elif isinstance(event, BlockRemoved):
                gone = [h for h in event.block_hashes if h in names]
                self.index.apply(worker, [BlockRemoved([names[h] for h in gone])])
                left = self.index.copies.get(worker, {})
                for block_hash in gone:  # of another copy, the name is still needed
                    if names.get(block_hash) not in left:
                        names.pop(block_hash, None)
            else:
                self.index.apply(worker, [self._renamed(names, event)])

    def _renamed(self, names: dict[bytes, bytes], event: BlockStored) -> BlockStored:
        parent = event.parent_block_hash
        ours = ROOT if parent is None else names.get(parent)
        renamed: list[bytes] = []
        is_plain = event.lora_name is None and not event.extra_keys  # else other KV, same tokens
        for index, block_hash in enumerate(event.block_hashes):
            if ours is None or not is_plain:
                break
            start = index * event.block_size
            ours = hash_block(ours, event.token_ids[start : start + event.block_size])
            names[block_hash] = ours
            renamed.append(ours)
        return BlockStored(renamed, None, event.token_ids, event.block_size)

    def forget(self, worker: str) -> None:
        """See :meth:`PrefixIndex.forget`."""
        self.names.pop(worker, None)
        self.index.forget(worker)

    def score(self, worker: str, token_ids: Sequence[int], block_size: int) -> int:
        """How many blocks of a prompt's beginning the worker has."""
        return self.index.score(worker, content_hashes(token_ids, block_size))
