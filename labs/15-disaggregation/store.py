"""A folder of KV blocks that several engines share: one file a block, over all layers.

::

    <root>/<namespace>/<first two digits>/<hash>.kv

    │ magic 8 │ namespace 32 │ block hash 32 │ length 8 │ crc32 4 │ payload ... │

Engines come and go at any moment, also in the middle of a write, and no engine asks another. So a
file appears whole or not at all, says itself what it is, and no engine trusts it before it has
checked it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

MAGIC = b"miniKV01"
HEADER = struct.Struct("<8s32s32sQI")
STALE_SECONDS = 60.0
"""After which an unfinished file's writer is taken for dead."""
SWEEP_EVERY = 64
"""Files written between two looks at what others have written."""


def pack_entry(namespace: bytes, block_hash: bytes, payload: bytes | memoryview) -> list[bytes]:
    """A header and the payload, to be written one after the other.

    The checksum covers the header's other fields and the payload. CRC-32 misses one random damage
    in 2^32, and is cheaper than SHA-256. It does not stop an attacker: a process that can write
    the store can write a right checksum, too.
    """
    head = HEADER.pack(MAGIC, namespace, block_hash, len(payload), 0)
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return [HEADER.pack(MAGIC, namespace, block_hash, len(payload), checksum), bytes(payload)]


def unpack_entry(namespace: bytes, block_hash: bytes, entry: bytes) -> bytes | None:
    """The payload of a file that should hold this block; None if it does not, whatever is wrong.

    Wrong can be: its length (cut off, or longer), the magic, the namespace (another model's), the
    hash (another block's, swapped by hand or by a bug), the checksum (a flipped bit anywhere).
    """
    # TODO 15.10
    raise NotImplementedError(
        "TODO 15.10: write unpack_entry in labs/15-disaggregation/store.py"
        " (phase 15, 02-mini-build.md#task-10)"
    )


class BlockStore:
    """Blocks in files.

    Args:
        root: folder of all stores; made if it is not there.
        namespace: 32 bytes; entries of other namespaces are never seen.
        max_bytes: of all files of this namespace together; None: no limit.

    Raises:
        ValueError: if the folder cannot be made or written to.
    """

    def __init__(self, root: str | Path, namespace: bytes, max_bytes: int | None = None) -> None:
        self.namespace = namespace
        self.max_bytes = max_bytes
        self.folder = Path(root) / namespace.hex()[:16]
        self.num_bytes: int | None = None
        """Of all files, as far as we know; None: not counted yet."""
        self._names = itertools.count()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"shared_storage_path is {str(root)!r}, which cannot be made: {error.strerror}; "
                "choose a folder that this process may write to"
            ) from None
        if not os.access(self.folder, os.W_OK):
            raise ValueError(f"shared_storage_path is {str(root)!r}, which cannot be written to")

    def path_of(self, block_hash: bytes) -> Path:
        """Where a block's file is, or would be."""
        name = block_hash.hex()
        return self.folder / name[:2] / f"{name}.kv"

    def contains(self, block_hash: bytes) -> bool:
        """Whether there is a file; only reading it tells whether it is sound."""
        return self.path_of(block_hash).exists()

    def put(self, block_hash: bytes, payload: bytes | memoryview) -> bool:
        """Write a block, if it is not there yet.

        Into a file of another name in the same folder (``self._temporary(path)``), which is then
        renamed with ``os.replace``: readers see all of it or nothing, also if this process is
        killed in between. Two writers of the same block write the same, and the later one wins.
        Never raises for what a disk may do: what cannot be stored is not stored. ``self._count``
        is told the bytes of each file that was written, its header included, and keeps the store
        small.

        Returns:
            Whether the block is there now.
        """
        # TODO 15.10
        raise NotImplementedError(
            "TODO 15.10: write BlockStore.put in labs/15-disaggregation/store.py"
            " (phase 15, 02-mini-build.md#task-10)"
        )

    def get(self, block_hash: bytes) -> bytes | None:
        """Read a block; None if it is not there, or not sound.

        An unsound file is deleted, so that it is not offered again. What cannot be read just now
        may be sound, and stays. A sound one is young again
        (``os.utime``): the oldest are the first to go. Never raises: a file may vanish at any
        moment, and a disk may refuse. What was read and is sound counts, also if the file cannot be
        made young: another user's, say.
        """
        # TODO 15.10
        raise NotImplementedError(
            "TODO 15.10: write BlockStore.get in labs/15-disaggregation/store.py"
            " (phase 15, 02-mini-build.md#task-10)"
        )

    def evict(self) -> int:
        """Delete the oldest blocks until all together take at most ``max_bytes``.

        ``self._scan()`` finds the files, in no particular order, each with its ``os.stat_result``;
        blocks end in ``.kv``, and the oldest are those with the smallest ``st_mtime_ns``.
        Others may delete at the same time: a file that has vanished is as good as deleted. Other
        files are unfinished, and not counted; those whose writer must have died, for they are older
        than ``STALE_SECONDS``, are deleted, too.

        Returns:
            Bytes of the blocks that are left, which ``self.num_bytes`` is from now on.
        """
        # TODO 15.11
        raise NotImplementedError(
            "TODO 15.11: write BlockStore.evict in labs/15-disaggregation/store.py"
            " (phase 15, 02-mini-build.md#task-11)"
        )

    def _temporary(self, path: Path) -> Path:
        return path.with_name(f".{path.stem}.{os.getpid()}.{next(self._names)}.tmp")

    def _count(self, num_bytes: int) -> None:
        """One more file; look after the others when there may be too many."""
        if self.max_bytes is None:
            return
        self.num_bytes = None if self.num_bytes is None else self.num_bytes + num_bytes
        too_many = self.num_bytes is None or self.num_bytes > self.max_bytes
        if too_many or next(self._names) % SWEEP_EVERY == 0:
            with contextlib.suppress(OSError):  # a disk may refuse to delete, too
                self.evict()

    def _scan(self) -> Iterable[tuple[Path, os.stat_result]]:
        for path in self.folder.glob("*/*"):
            try:
                yield path, path.stat()
            except FileNotFoundError:
                continue
