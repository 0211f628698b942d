"""Questions and answers between two engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mini_vllm.kv_transfer.wire import BlockClient, BlockServer, Question

QUESTION = Question("read", "north", "ada", "lease", b"n" * 32, [1, 2])


@pytest.fixture
def client() -> Iterator[BlockClient]:
    client = BlockClient()
    yield client
    client.close()


def test_bytes_come_as_they_were_sent(client: BlockClient) -> None:
    asked: list[Question] = []
    payload = bytes(range(256)) * 40
    server = BlockServer("127.0.0.1", 0, lambda question: asked.append(question) or payload)
    assert client.read("127.0.0.1", server.port, QUESTION, 20.0) == payload
    assert asked == [QUESTION]
    server.close()


def test_bytes_that_were_damaged_on_their_way_are_refused(
    client: BlockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is sound, and the destination would not be (vllm #44238)."""
    server = BlockServer("127.0.0.1", 0, lambda _: b"keys and values")
    answer = server._answer
    monkeypatch.setattr(server, "_answer", lambda frames: [answer(frames)[0], b"keys and valuEs"])
    with pytest.raises(ValueError, match="was damaged on its way"):
        client.read("127.0.0.1", server.port, QUESTION, 20.0)
    server.close()


def test_nonsense_is_answered_and_the_server_goes_on(client: BlockClient) -> None:
    server = BlockServer("127.0.0.1", 0, lambda _: b"kv")
    for frames in ([b"\xc1"], [b""], [], [b"\x80"], [b"\x90", b"x"]):
        answer = server._answer(frames)
        assert answer is not None and answer[1] == b""
    assert client.read("127.0.0.1", server.port, QUESTION, 20.0) == b"kv"
    server.close()
