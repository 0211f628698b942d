"""What the proxy says by itself; a pair behind it runs in `kv_transfer/test_processes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mini_vllm.entrypoints.disagg_proxy import Proxy, Router, Worker, main, make_app
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--decode localhost:8000", "'localhost:8000' is no server; write http://HOST:PORT"),
        ("--decode http://a --block-size 0", "--block-size is 0; it must be at least 1"),
        ("--decode http://a --local-tokens -1", "--local-tokens is -1; it must be at least 0"),
        ("--decode http://a --prefill-timeout nan", "--prefill-timeout is nan; it must be seconds"),
        ("--decode http://a --promise 0 1", "--promise is [0.0, 1.0]; it must be two times"),
        ("--decode http://a --policy earliest-first-token", "--policy needs --prices FILE"),
    ],
)
def test_options_that_cannot_be_are_named(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(options.split())
    assert message in capsys.readouterr().err
