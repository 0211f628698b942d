"""Blocks in a real Redis or Valkey server, which may lie, stop and come back."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from mini_vllm.kv_transfer import redis_store
from mini_vllm.kv_transfer.redis_store import RedisStore, without_password
from mini_vllm.kv_transfer.store import HEADER
from tests.engine.entrypoints.server import free_port
from tests.engine.kv_transfer.test_connectors import config, make_llm, plain, run, tokens
from tests.engine.pace import PATIENCE, eventually

OURS, THEIRS = b"o" * 32, b"t" * 32
KEY, OTHER = bytes(32), bytes([1]) * 32
PAYLOAD = bytes(range(256)) * 4
BINARY = shutil.which("valkey-server") or shutil.which("redis-server")


class Server:
    """A server in a process of its own, without files."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"redis://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        words = ("--port", str(self.port), "--save", "", "--appendonly", "no")
        self.process = subprocess.Popen([str(BINARY), *words], stdout=subprocess.DEVNULL)
        eventually(self._is_up, "the server did not come up")

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pytest.importorskip("redis", reason="the package redis is not installed")
    if BINARY is None:
        pytest.skip("there is neither valkey-server nor redis-server here")
    monkeypatch.setattr(redis_store, "ANSWER_SECONDS", PATIENCE)
    started = Server()
    yield started
    started.stop()


def test_what_was_put_can_be_had(server: Server) -> None:
    store = RedisStore(server.address, OURS)
    assert not store.contains(KEY) and store.get(KEY) is None
    assert store.put(KEY, PAYLOAD) and store.contains(KEY)
    assert store.put(KEY, PAYLOAD), "it is there already"
    assert RedisStore(server.address.replace("redis", "valkey"), OURS).get(KEY) == PAYLOAD
    foreign = RedisStore(server.address, THEIRS)
    assert not foreign.contains(KEY) and foreign.get(KEY) is None


@pytest.mark.parametrize("wrong", ["flipped", "cut off", "swapped", "foreign"])
def test_an_unsound_entry_is_found_and_goes(server: Server, wrong: str) -> None:
    store, foreign = RedisStore(server.address, OURS), RedisStore(server.address, THEIRS)
    store.put(KEY, PAYLOAD)
    store.put(OTHER, PAYLOAD[::-1])
    foreign.put(KEY, PAYLOAD)
    key = store.prefix + KEY.hex().encode()
    entry = bytearray(store.client.get(key))
    entry[HEADER.size + 5] ^= 16
    changed = {
        "flipped": bytes(entry),
        "cut off": bytes(entry)[:50],
        "swapped": store.client.get(store.prefix + OTHER.hex().encode()),
        "foreign": store.client.get(foreign.prefix + KEY.hex().encode()),
    }
    store.client.set(key, changed[wrong])
    assert store.get(KEY) is None
    assert not store.contains(KEY), "it is not offered again"


def test_a_server_that_is_down_has_no_blocks_and_causes_no_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(server.address, OURS)
    store.put(KEY, PAYLOAD)
    server.stop()
    monkeypatch.setattr(redis_store, "PAUSE_SECONDS", 3600.0)
    ask = Mock(wraps=store.client.execute_command)
    monkeypatch.setattr(store.client, "execute_command", ask)
    for _ in range(50):
        assert not store.contains(KEY) and store.get(KEY) is None
        assert not store.put(OTHER, PAYLOAD)
    assert ask.call_count == 1, "asked once, and then not for a while"
    server.start()
    assert not store.contains(KEY), "not yet asked again"
    monkeypatch.setattr(store, "quiet_until", 0.0)
    assert store.put(KEY, PAYLOAD) and store.get(KEY) == PAYLOAD


def test_engines_share_a_server(server: Server) -> None:
    settings = config("SharedStorageConnector", shared_storage_path=server.address)
    writer = make_llm(settings)
    assert tokens(run(writer)) == plain()
    writer.shutdown()
    reader = make_llm(settings)
    outputs = run(reader)
    assert tokens(outputs) == plain()
    assert [output.num_cached_tokens for output in outputs][:2] == [40, 32]
    server.stop()
    reader.reset_prefix_cache()
    assert tokens(run(reader)) == plain(), "computed again"
    reader.shutdown()


def test_what_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**extra: object) -> str:
        with pytest.raises(ValueError) as error:
            make_llm(config("SharedStorageConnector", **extra))
        return str(error.value)

    told = refused(shared_storage_path="http://host/kv")
    assert "http://host/kv" in told and "redis://" in told
    told = refused(shared_storage_path="redis://127.0.0.1:1", max_bytes=10**6)
    assert "max_bytes is 1000000" in told and "maxmemory" in told
    monkeypatch.setitem(sys.modules, "redis", None)  # as if it were not installed
    told = refused(shared_storage_path="redis://127.0.0.1:1")
    assert "[redis]" in told


def test_an_unreachable_server_is_named_without_its_password() -> None:
    pytest.importorskip("redis", reason="the package redis is not installed")
    with pytest.raises(ValueError, match="no Redis or Valkey server") as error:
        RedisStore("redis://me:secret@127.0.0.1:1/0", OURS)
    assert "secret" not in str(error.value) and "***@127.0.0.1:1/0" in str(error.value)
    assert without_password("redis://host:6379") == "redis://host:6379"
