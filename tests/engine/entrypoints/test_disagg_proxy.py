"""What the proxy says by itself; a pair behind it runs in `kv_transfer/test_processes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mini_vllm.entrypoints.disagg_proxy import Proxy, Router, Worker, make_app
from tests.engine.entrypoints.server import free_port


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    """Bodies that the prefill side was asked with."""
    return []


@pytest.fixture
def client(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    async def prefill(self: Proxy, worker: Worker, path: str, body: Any, headers: Any) -> None:
        asked.append(body)

    monkeypatch.setattr(Proxy, "_prefill", prefill)
    nobody = [Worker(f"http://127.0.0.1:{free_port()}") for _ in range(2)]
    with TestClient(make_app(Proxy(Router(nobody[:1], nobody[1:])))) as client:
        yield client


@pytest.mark.parametrize(("body", "message"), [(b"{", "not JSON"), (b"[1]", "is a list")])
def test_a_body_that_is_none_is_refused(client: TestClient, body: bytes, message: str) -> None:
    answer = client.post("/v1/completions", content=body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_servers_that_are_gone_are_named(client: TestClient) -> None:
    for answer in (client.get("/v1/models"), client.post("/v1/completions", json={"prompt": "a"})):
        assert answer.status_code == 502
        assert "http://127.0.0.1:" in answer.json()["error"]["message"]


def test_several_prompts_stay_with_the_decode_server(
    client: TestClient, asked: list[dict[str, Any]]
) -> None:
    """An answer has one place to say where KV is held: of several prompts it would be lost."""
    for prompt in (["a", "b"], [[1, 2], [3]]):
        client.post("/v1/completions", json={"prompt": prompt})
    assert not asked
    for one in ("a", ["a"], [1, 2], [[1, 2]]):
        client.post("/v1/completions", json={"prompt": one})
    assert len(asked) == 4
