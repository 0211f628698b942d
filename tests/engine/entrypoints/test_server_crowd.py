"""A crowd of clients, many of them rude: nothing is lost, and the figures say what clients saw."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.engine.entrypoints.server import Server, running

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--max-num-seqs", "64", "--disable-uvicorn-access-log") as made:
        yield made


@dataclass
class Seen:
    """What clients saw of their requests that were answered whole."""

    texts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    answers: int = 0
    vanished: int = 0


def body_of(max_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0} | more


async def whole(http: httpx.AsyncClient, seen: Seen, rng: random.Random) -> None:
    """A polite client that wants its answer at once."""
    answer = await http.post("/v1/completions", json=body_of(20))
    body = answer.json()
    note(seen, body["choices"][0]["text"], body["usage"])


async def stream(http: httpx.AsyncClient, seen: Seen, rng: random.Random) -> None:
    """A polite client that reads on, sometimes slowly."""
    pause = rng.choice([0, 0, 0.005, 0.05])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    raw = ""
    async with http.stream("POST", "/v1/completions", json=body_of(20, **options)) as answer:
        async for part in answer.aiter_text():
            raw += part
            await asyncio.sleep(pause)
    *events, done, end = raw.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    note(seen, text, chunks[-1]["usage"])


def note(seen: Seen, text: str, usage: dict[str, int]) -> None:
    seen.texts[text] += 1
    seen.answers += 1
    seen.prompt_tokens += usage["prompt_tokens"]
    seen.completion_tokens += usage["completion_tokens"]


async def vanish(http: httpx.AsyncClient, seen: Seen, rng: random.Random) -> None:
    """A client that leaves: before it has sent all, before the first byte, or in the middle.

    On a slow machine it may come to that only when its answer is complete.
    """
    seen.vanished += 1
    body = json.dumps(body_of(200, stream=rng.random() < 0.5)).encode()
    lines = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json")
    head = "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
    message = head + body
    writer.write(message if rng.random() < 0.8 else message[: rng.randrange(len(message))])
    await writer.drain()
    if rng.random() < 0.5:
        await asyncio.sleep(rng.random() * 0.2)
    if rng.random() < 0.5:  # a hard end: the server learns of it by an error
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


RUBBISH = [
    (b'{"prompt": ', 400),
    (b'{"prompt": "\xff\xfe"}', 400),
    (b'{"prompt": "\\ud800"}', 400),
    (b"[]", 400),
    (b"", 400),
    (b"{" * 5_000, 400),
    (b'{"prompt": "a", "temperature": 1e999}', 400),
    (b'{"prompt": "a", "n": null, "stop": [1]}', 400),
    (b'{"prompt": ' + b"[1]" * 9 + b"}", 400),
    (b'{"prompt": "' + b"word " * 20_000 + b'"}', 400),
    (b" " * (33 * 2**20), 413),
]


async def rubbish(http: httpx.AsyncClient, seen: Seen, rng: random.Random) -> None:
    """A client that sends requests that cannot be served."""
    weights = [20] * (len(RUBBISH) - 1) + [1]
    content, status = rng.choices(RUBBISH, weights)[0]
    headers = {"content-type": "application/json"}
    answer = await http.post("/v1/completions", content=content, headers=headers)
    assert answer.status_code == status, (content[:40], answer.text)
    assert answer.json()["error"]["code"] == status
    seen.statuses[status] += 1


COUNTERS = (
    "prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
)  # fmt: skip


def figures(server: Server) -> dict[str, float]:
    found = {name: server.metric(name) for name in COUNTERS}
    for reason in ("length", "stop", "abort", "error"):
        found[reason] = server.metric("request_success_total", f'finished_reason="{reason}"')
    return found


def crowd(server: Server, kinds: list[Any], at_once: int, seed: int = 0) -> Seen:
    """Send a client of each kind; at most so many are there at once."""
    seen, rng = Seen(), random.Random(seed)

    async def go() -> None:
        gate = asyncio.Semaphore(at_once)
        limits = httpx.Limits(max_connections=at_once)

        async def one(kind: Any, http: httpx.AsyncClient) -> None:
            async with gate:
                await kind(http, seen, random.Random(rng.random()))

        async with httpx.AsyncClient(
            base_url=server.url, timeout=120, limits=limits, trust_env=False
        ) as http:
            await asyncio.gather(*(one(kind, http) for kind in kinds))

    asyncio.run(go())
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        server.until(name, 0)
    return seen


def kinds(polite: int, rude: int, seed: int = 0) -> list[Any]:
    rng = random.Random(seed)
    drawn = [rng.choice((whole, stream)) for _ in range(polite)]
    drawn += [rng.choice((vanish, rubbish)) for _ in range(rude)]
    rng.shuffle(drawn)
    return drawn


def check(server: Server, before: dict[str, float], seen: Seen, polite: int) -> None:
    assert seen.answers == polite, "an answer was lost"
    assert len(seen.texts) == 1, "greedy answers to one prompt differ"
    gained = {name: value - before[name] for name, value in figures(server).items()}
    assert gained["error"] == gained["stop"] == 0
    assert 0 <= gained["length"] - polite <= seen.vanished - gained["abort"], gained


def test_two_hundred_streams_and_the_figures_agree(server: Server) -> None:
    before = figures(server)
    seen = crowd(server, [stream] * 200, at_once=200)
    check(server, before, seen, polite=200)
    gained = {name: value - before[name] for name, value in figures(server).items()}
    assert gained["prompt_tokens_total"] == seen.prompt_tokens
    assert gained["generation_tokens_total"] == seen.completion_tokens == 200 * 20
    assert gained["time_to_first_token_seconds_count"] == 200
    assert gained["inter_token_latency_seconds_count"] == 200 * 19
    assert gained["abort"] == 0


def test_misbehaving_clients_do_not_harm_others(server: Server) -> None:
    before = figures(server)
    seen = crowd(server, kinds(polite=60, rude=60), at_once=60)
    check(server, before, seen, polite=60)
    gained = {name: value - before[name] for name, value in figures(server).items()}
    # What the vanished had got before they left is counted, too, and never less than the answers.
    assert gained["generation_tokens_total"] >= seen.completion_tokens
    assert gained["time_to_first_token_seconds_count"] <= gained["length"] + gained["abort"]
    assert 0 < gained["abort"] <= seen.vanished < 60 and seen.statuses[400] > 0


@pytest.mark.slow
@pytest.mark.serial
def test_ten_thousand_requests_leave_no_trace() -> None:
    """A soak. After the first thousand requests the memory of both processes stays flat."""
    with running("--max-num-seqs", "64", "--disable-uvicorn-access-log") as server:
        sizes = []
        for part in range(10):
            crowd(server, kinds(polite=700, rude=300, seed=part), at_once=64, seed=part)
            sizes.append(server.memory())
        growth = sizes[-1] - sizes[1]
        assert growth < 30, f"{growth:.0f} MiB more after 8,000 requests: {sizes}"
        assert server.client.get("/load").json() == {"server_load": 0}
