"""The same store in a Redis or Valkey server, for machines that share no folder.

An entry has the bytes that a file would have, with header and checksum: a network and another
program's memory are trusted no more than a disk. The server decides how much is kept and what is
evicted first (``maxmemory``, and ``maxmemory-policy allkeys-lru``).
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

from mini_vllm.extras import from_extra
from mini_vllm.kv_transfer.store import pack_entry, unpack_entry

SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
ANSWER_SECONDS = 1.0
"""The longest that a step waits for an answer; what is not there by then is computed."""
PAUSE_SECONDS = 5.0
"""After a failure the store is not used for so long: a step must not wait again and again."""


def is_address(path: str) -> bool:
    """Whether a ``shared_storage_path`` names a server and not a folder."""
    return "://" in path


def check_address(path: str) -> None:
    """Raises ValueError for a kind of server that is not known."""
    scheme = path.partition("://")[0]
    if scheme not in SCHEMES:
        raise ValueError(
            f"shared_storage_path is {without_password(path)!r}; a server's address begins with "
            f"one of {', '.join(f'{name}://' for name in SCHEMES)}; a folder has no ://"
        )


def without_password(address: str) -> str:
    """An address as it may stand in a message or a log."""
    login, at, rest = urlsplit(address).netloc.rpartition("@")
    return address.replace(f"{login}@", "***@", 1) if at and login and rest else address


class RedisStore:
    """Blocks under keys ``miniKV:<namespace>:<hash>``. A server that fails counts as empty.

    Args:
        address: such as ``redis://host:6379/0``; ``rediss://`` encrypts, ``unix://`` is a socket.
        namespace: 32 bytes; entries of other namespaces are never seen.

    Raises:
        ValueError: if no server answers there, or the package ``redis`` is missing.
    """

    def __init__(self, address: str, namespace: bytes) -> None:
        with from_extra("redis", "a server as shared_storage_path", "give a folder"):
            import redis
        self.namespace = namespace
        self.prefix = f"miniKV:{namespace.hex()[:16]}:".encode()
        self.errors: type[Exception] = redis.RedisError
        self.quiet_until = 0.0
        """On the monotonic clock; see ``PAUSE_SECONDS``."""
        try:
            self.client: Any = redis.Redis.from_url(
                address.replace("valkey", "redis", 1) if address.startswith("valkey") else address,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=ANSWER_SECONDS,
            )
            self.client.ping()
        except (self.errors, OSError, ValueError) as error:
            raise ValueError(
                f"shared_storage_path is {without_password(address)!r}, and no Redis or Valkey "
                f"server can be used there: {error}; start one, or give a folder"
            ) from None

    def contains(self, block_hash: bytes) -> bool:
        """Whether there is an entry: one round trip. Only reading tells whether it is sound."""
        return bool(self._ask("exists", self.prefix + block_hash.hex().encode()))

    def put(self, block_hash: bytes, payload: bytes | memoryview) -> bool:
        """Store a block, if it is not there yet; readers see all of it or nothing.

        Returns:
            Whether the block is there now.
        """
        entry = b"".join(pack_entry(self.namespace, block_hash, payload))
        key = self.prefix + block_hash.hex().encode()
        return bool(self._ask("set", key, entry, nx=True)) or self.contains(block_hash)

    def get(self, block_hash: bytes) -> bytes | None:
        """Read a block; None if it is not there, or not sound. An unsound one is deleted."""
        key = self.prefix + block_hash.hex().encode()
        entry = self._ask("get", key)
        if entry is None:
            return None
        payload = unpack_entry(self.namespace, block_hash, entry)
        if payload is None:
            self._ask("delete", key)
        return payload

    def evict(self) -> int:
        """Nothing to do: the server looks after its memory. 0 bytes are ours."""
        return 0

    def _ask(self, command: str, *args: Any, **options: Any) -> Any:
        """The server's answer; None for a while if there was none."""
        if time.monotonic() < self.quiet_until:
            return None
        try:
            return getattr(self.client, command)(*args, **options)
        except (self.errors, OSError):
            self.quiet_until = time.monotonic() + PAUSE_SECONDS
            return None
