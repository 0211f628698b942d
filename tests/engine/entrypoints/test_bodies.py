"""Bodies and heads of requests that are too large or too slow, sent by hand to a real server."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from mini_vllm.entrypoints import connection
from mini_vllm.entrypoints.connection import PromptConnection
from mini_vllm.entrypoints.openai import bodies
from mini_vllm.entrypoints.openai.bodies import DropTheRest, read_body
from mini_vllm.entrypoints.openai.errors import APIError, json_response
from tests.engine.pace import PATIENCE, eventually

MIB = 2**20
POST = "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Says how many values a body has; only "/" takes one."""
    request = Request(scope, receive)
    try:
        if scope["path"] != "/":
            raise APIError("nothing is here", 404)
        answer = json_response({"values": len(await read_body(request))})
    except APIError as error:
        answer = error.response()
    await answer(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            DropTheRest(app), http=PromptConnection, lifespan="off", ws="none",
            log_level="critical", h11_max_incomplete_event_size=2**16,
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        eventually(lambda: server.started, "the server did not come up")
        yield sock.getsockname()[1]
        server.should_exit = True
        thread.join(PATIENCE)


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        yield sock


def rest(sock: socket.socket) -> tuple[int, Any]:
    """The last answer until the server hangs up: its status, and its body as JSON."""
    data = b""
    while chunk := sock.recv(2**16):
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("path", ["/", "/nothing"])
@pytest.mark.parametrize("how", ["length", "chunked"])
@pytest.mark.parametrize("keeps", ["close", "keep-alive"])
def test_a_client_that_sends_all_before_it_reads_gets_the_answer(
    port: int, path: str, how: str, keeps: str
) -> None:
    """With `Connection: close` it was a reset connection."""
    head = POST.replace("/", path, 1) + f"Connection: {keeps}\r\n"
    with connected(port) as sock:
        if how == "length":
            sock.sendall(f"{head}Content-Length: {33 * MIB}\r\n\r\n".encode())
            for _ in range(33):
                sock.sendall(b" " * MIB)
        else:
            sock.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(33):
                sock.sendall(b"100000\r\n" + b" " * MIB + b"\r\n")
            sock.sendall(b"0\r\n\r\n")
        time.sleep(0.05)
        status, body = rest(sock)
    assert status == body["error"]["code"] == (413 if path == "/" else 404)


def test_a_length_that_is_too_large_is_refused_before_it_is_sent(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks first sends nothing more, and the server waits for nothing more."""
    monkeypatch.setattr(bodies, "REST_SECONDS", 10 * PATIENCE)
    for length in (32 * MIB + 1, 10**15):
        with connected(port) as sock:
            head = f"{POST}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
            sock.sendall(head.encode())
            assert rest(sock)[0] == 413
    with connected(port) as sock:
        sock.sendall(f"{POST}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"{}")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head", [f"{POST}Content-Length: 50\r\n\r\n", f"{POST}Transfer-Encoding: chunked\r\n\r\n2\r\n"]
)
def test_a_body_that_does_not_come_is_not_waited_for(
    port: int, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)
    with connected(port) as sock:
        sock.sendall(head.encode() + b"{}")
        status, body = rest(sock)
    assert status == 408
    assert body["error"]["message"].startswith("2 bytes of the body had arrived when its time")
    assert body["error"]["type"] == "RequestTimeoutError"


def test_a_large_body_has_more_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(bodies, "BYTES_A_SECOND", 2**10)
    head = f"{POST}Connection: close\r\nContent-Length: {2 * MIB}\r\n\r\n".encode()
    body = b"{}" + b" " * (2 * MIB - 2)
    with connected(port) as sock:
        for start in range(0, 2 * MIB, MIB // 4):  # a second, in all
            sock.sendall((head if start == 0 else b"") + body[start : start + MIB // 4])
            time.sleep(0.125)
        assert rest(sock) == (200, {"values": 0})


def test_a_head_must_come_whole_in_time_first_and_later(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = f"{POST}Content-Length: 2\r\n\r\n{{}}".encode()
    for is_first in (True, False):
        # The first one's time begins before it has sent a byte.
        monkeypatch.setattr(connection, "HEAD_SECONDS", 4.0 if is_first else PATIENCE)
        with connected(port) as sock:
            if not is_first:
                sock.sendall(answered)
                assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
                monkeypatch.setattr(connection, "HEAD_SECONDS", 0.5)
                time.sleep(0.7)  # between two requests no limit holds
            end = time.monotonic() + PATIENCE
            with contextlib.suppress(OSError):  # it has hung up
                sock.sendall(b"POST / HTTP/1.1\r\nx: ")
                while not select.select([sock], [], [], 0.05)[0]:
                    assert time.monotonic() < end, "a byte is as good as a head"
                    sock.sendall(b"y")  # one after the other, and no end
            assert rest(sock)[0] == 408


def test_a_connection_that_says_nothing_is_closed_without_a_word(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.5)
    with connected(port) as sock:
        assert sock.recv(100) == b""


def test_a_head_has_a_size(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(POST.encode())
        with contextlib.suppress(OSError):
            for i in range(200):
                sock.sendall(f"x{i}: {'y' * 1000}\r\n".encode())
                time.sleep(0.001)
        with contextlib.suppress(ConnectionResetError):  # it may still have been sending
            assert rest(sock)[0] == 431
    with connected(port) as sock:
        sock.sendall(f"{POST}x: {'y' * 40_000}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_what_is_no_request_gets_the_error_object(port: int) -> None:
    for text in ("hello\r\n\r\n", f"{POST}Content-Length: -5\r\n\r\n{{}}"):
        with connected(port) as sock:
            sock.sendall(text.encode())
            assert rest(sock)[1]["error"]["code"] == 400


@pytest.mark.parametrize("is_apart", [False, True])
def test_an_offer_of_http_2_is_answered_in_http_1(port: int, is_apart: bool) -> None:
    offer = "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    with connected(port) as sock:
        for name in ("Upgrade", "UPGRADE"):
            head = f"{POST}Content-Length: 13\r\n{offer}{name}: h2c\r\n\r\n"
            sock.sendall(head.encode())
            if is_apart:
                time.sleep(0.05)
            sock.sendall(b'{"a": "h2c" }')
            assert sock.recv(1000).endswith(b'{"values":1}')


def test_a_mark_of_the_byte_order_may_stand_before_a_body(port: int) -> None:
    body = b'\xef\xbb\xbf{"a": 1, "b": 2}'
    with connected(port) as sock:
        sock.sendall(f"{POST}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert sock.recv(1000).endswith(b'{"values":2}')
