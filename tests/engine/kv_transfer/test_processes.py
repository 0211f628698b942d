"""Engines in processes of their own, and what becomes of a request when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.engine.entrypoints.server import ROOT, Server, free_port
from tests.engine.pace import PACED_REMOTE_KV, eventually

PROMPT = "Once upon a time there was a little girl who lived near the sea. " * 4
PATH = "/v1/completions"
BODY = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
pytestmark = [pytest.mark.slow, pytest.mark.serial]


def p2p(role: str, policy: str = "recompute", timeout: float = 2.0) -> str:
    return json.dumps({
        "kv_connector": "P2pTcpConnector", "kv_role": role, "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"transfer_timeout_s": timeout, "kv_lease_duration": 3.0},
    })  # fmt: skip


@contextmanager
def servers(*configs: str, words: Sequence[str] = ()) -> Iterator[list[Server]]:
    started = [Server("--kv-transfer-config", config, *words) for config in configs]
    try:
        for server in started:
            server.wait()
        yield started
    finally:
        for server in started:
            for pid in children(server.process.pid):  # a stopped one notices no end
                os.kill(pid, signal.SIGKILL)
            server.process.kill()
            server.process.wait()


@contextmanager
def proxy(prefill: str, decode: str) -> Iterator[httpx.Client]:
    port = free_port()
    command = [sys.executable, "-m", "mini_vllm.entrypoints.disagg_proxy", "--port", str(port)]
    command += ["--prefill", prefill, "--decode", decode, "--prefill-timeout", "3"]
    process = subprocess.Popen(command, cwd=ROOT)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    try:

        def is_up() -> bool:
            with suppress(httpx.TransportError):
                return client.get("/health").status_code == 200
            return False

        eventually(is_up, "the proxy did not come up")
        yield client
    finally:
        process.kill()
        process.wait()


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_a_pair_behind_a_proxy_says_what_one_engine_says() -> None:
    with servers(p2p("kv_producer"), p2p("kv_consumer")) as (prefill, decode):
        alone = text_of(prefill.client.post("/v1/completions", json=BODY))
        with proxy(prefill.url, decode.url) as client:
            answer = client.post("/v1/completions", json=BODY)
            assert text_of(answer) == alone
            cached = answer.json()["usage"]
            assert cached["completion_tokens"] == 8
            with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as stream:
                events = [line[6:] for line in stream.iter_lines() if line.startswith("data: {")]
            assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == alone
            chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
            assert client.post("/v1/chat/completions", json=chat).status_code in (200, 400)
            bad = client.post("/v1/completions", json=BODY | {"temperature": -1})
            assert bad.status_code == 400
            prefill.process.kill()
            prefill.process.wait()
            assert text_of(client.post("/v1/completions", json=BODY)) == alone


def held_by(prefill: Server) -> dict[str, Any]:
    asked = BODY | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    return prefill.client.post("/v1/completions", json=asked).json()["kv_transfer_params"]


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_silent_prefill_side_costs_its_deadline(policy: str, blow: int) -> None:
    with servers(p2p("kv_producer"), p2p("kv_consumer", policy)) as (prefill, decode):
        told = held_by(prefill)
        for pid in (prefill.process.pid, *children(prefill.process.pid)):
            os.kill(pid, blow)
        start = time.monotonic()
        answer = decode.client.post("/v1/completions", json=BODY | {"kv_transfer_params": told})
        assert time.monotonic() - start < 20
        if policy == "recompute":
            assert text_of(answer)
        else:
            assert "did not arrive" in answer.text
        after = decode.client.post("/v1/completions", json=BODY)
        assert text_of(after)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_decode_side_that_never_fetches_costs_the_lease(blow: int) -> None:
    with servers(p2p("kv_producer"), p2p("kv_consumer")) as (prefill, decode):
        held_by(prefill)
        for pid in (decode.process.pid, *children(decode.process.pid)):
            os.kill(pid, blow)

        def is_free() -> bool:
            text_of(prefill.client.post("/v1/completions", json=BODY | {"max_tokens": 1}))
            return usage_of(prefill) == 0

        eventually(is_free, "the lease never ends, or its blocks are not free")


REFUSED: list[dict[str, Any]] = [
    {"temperature": -1},
    {"max_tokens": 0},
    {"max_tokens": "many"},
    {"model": "another"},
    {"prompt": "Once upon a time there was another prompt."},
    {"prompt": PROMPT * 40},
    {"echo": True, "stream": True, "prompt_logprobs": 1},
]


def usage_of(server: Server) -> float:
    metrics = server.client.get("/metrics").text
    line = next(x for x in metrics.splitlines() if x.startswith("vllm:kv_cache_usage_perc"))
    return float(line.split()[-1])


def test_a_decode_side_that_refuses_says_so() -> None:
    """However a request ends before it fetches, its prompt's KV is held no longer (vllm #41269)."""
    long_lease = p2p("kv_producer").replace('"kv_lease_duration": 3.0', '"kv_lease_duration": 600')
    one_at_a_time = ("--max-num-seqs", "1", "--scheduler", PACED_REMOTE_KV)
    with servers(long_lease, p2p("kv_consumer"), words=one_at_a_time) as (prefill, decode):
        for mistake in REFUSED:
            told = held_by(prefill)
            assert usage_of(prefill) > 0
            asked = BODY | {"kv_transfer_params": told} | mistake
            assert decode.client.post("/v1/completions", json=asked).status_code in (400, 404)
            eventually(lambda: usage_of(prefill) == 0, f"held in spite of {mistake}")
        payload = json.dumps(BODY | {"kv_transfer_params": held_by(prefill)}).encode()
        lines = (f"POST {PATH} HTTP/1.1", "host: x", f"content-length: {len(payload)}", "", "")
        with ThreadPoolExecutor(1) as others, decode.slowly():
            long = BODY | {"prompt": "Once", "max_tokens": 200}
            busy = others.submit(decode.client.post, PATH, json=long)
            decode.until("num_requests_running", 1)
            with socket.create_connection(("127.0.0.1", decode.port)) as sock:
                sock.sendall("\r\n".join(lines).encode() + payload)
                decode.until("num_requests_waiting", 1)
            eventually(lambda: usage_of(prefill) == 0, "KV is held for a client that disconnected")
            assert not busy.done()


def children(pid: int) -> list[int]:
    text = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True)
    found = [int(word) for word in text.stdout.split()]
    return found + [grand for child in found for grand in children(child)]
