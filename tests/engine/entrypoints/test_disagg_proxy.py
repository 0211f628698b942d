"""What the proxy says by itself; a pair behind it runs in `kv_transfer/test_processes.py`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest
from fastapi.testclient import TestClient

from mini_vllm.entrypoints import disagg_proxy
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
    with TestClient(make_app(Proxy(Router([unreachable()], [unreachable()])))) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "message"), [(b"{", "not JSON"), (b"[1]", "is a list"), (b"[" * 100_000, "not JSON")]
)
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
        (
            "--decode localhost:8000",
            "'localhost:8000' is not the address of a server; write http://HOST:PORT",
        ),
        ("--decode http://a,here", "'here' is not an address of KV events; write tcp://HOST:PORT"),
        ("--decode http://a --port 99999", "--port is 99999; it must be above 0 and below"),
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


@contextmanager
def server(content: bytes, hangs_on: str = "") -> Iterator[Worker]:
    """A server that answers everything with ``content``, or never."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == hangs_on:
                is_over.wait()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Worker(f"http://127.0.0.1:{http.server_port}")
    finally:
        is_over.set()
        http.shutdown()
        http.server_close()


def unreachable() -> Worker:
    return Worker(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize("answer", [b"no JSON", b"[1]", b"7", b"\xff\xfe"])
def test_a_prefill_server_that_talks_nonsense_counts_as_one_that_has_failed(answer: bytes) -> None:
    with server(answer) as prefill, server(b'{"text": "right"}') as decode:
        router = Router([prefill], [decode])
        with TestClient(make_app(Proxy(router))) as client:
            told = client.post("/v1/completions", json={"prompt": [1, 2]})
        assert told.json() == {"text": "right"}
        assert prefill.queued_tokens == decode.running == 0


def test_a_decode_server_that_is_gone_is_left_to_itself_for_a_while() -> None:
    """It answers nothing, so it is idle, and would be the router's first choice."""
    gone = unreachable()
    with server(b'{"text": "right"}') as decode:
        router = Router([], [gone, decode])
        with TestClient(make_app(Proxy(router))) as client:
            for _ in range(3):
                told = client.post("/v1/completions", json={"prompt": [1, 2]})
                assert told.json() == {"text": "right"}
        assert gone.down_until > 0 and decode.down_until == 0
        assert gone.running == decode.running == 0


def test_a_server_whose_tokenize_hangs_delays_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disagg_proxy, "ASIDE", aiohttp.ClientTimeout(total=0.2))
    with server(b'{"text": "right"}', hangs_on="/tokenize") as decode:
        with TestClient(make_app(Proxy(Router([], [decode])))) as client:
            told = client.post("/v1/completions", json={"prompt": "Once"})
        assert told.json() == {"text": "right"}


def test_a_client_that_has_gone_before_the_answer_began_is_not_counted_for_ever() -> None:
    async def ask(router: Router) -> None:
        async with aiohttp.ClientSession() as session:
            proxy = Proxy(router)
            proxy.session = session
            body: dict[str, Any] = {"prompt": [1]}
            answer = await proxy._decode(router.decode[0], "/v1/completions", body, {}, [1])
            assert router.decode[0].running == 1
            scope = {"type": "http", "asgi": {"spec_version": "2.3"}}

            async def gone() -> dict[str, Any]:
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                await asyncio.sleep(60)  # the client does not read

            await answer(scope, gone, send)  # type: ignore[arg-type]

    with server(b"{}") as decode:
        asyncio.run(ask(Router([], [decode])))
        assert (decode.running, decode.queued_tokens) == (0, 0)
