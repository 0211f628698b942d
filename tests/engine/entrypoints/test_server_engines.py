"""Several engines behind one port: which of them serves whom, and what is told of each."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.engine.entrypoints.server import SLOW, Server, running

HEADER = "X-data-parallel-rank"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--data-parallel-size", "2", *SLOW) as server:
        yield server


def ask(server: Server, rank: object, **body: object) -> httpx.Response:
    headers = {} if rank is None else {HEADER: str(rank)}
    body = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True, **body}
    return server.client.post("/v1/completions", headers=headers, json=body)


def by_engine(server: Server, name: str, label: str = "") -> list[float]:
    lines = [
        line
        for line in server.client.get("/metrics").text.splitlines()
        if line.startswith(f"vllm:{name}{{") and label in line
    ]
    assert len(lines) == 2, lines
    found = {'engine="1"' in line: float(line.split()[-1]) for line in lines}
    return [found[False], found[True]]


def test_a_client_may_choose_the_engine_and_figures_say_which_it_was(server: Server) -> None:
    for name in ("prompt_tokens_total", "num_requests_running", "engine_sleep_state"):
        label = 'sleep_state="weights_offloaded"' if name.startswith("engine") else ""
        assert by_engine(server, name, label) == [0, 0]
    assert by_engine(server, "cache_config_info") == [1, 1]
    for _ in range(3):
        assert ask(server, 1, n=2).status_code == 200
    assert by_engine(server, "generation_tokens_total") == [0, 24]
    assert by_engine(server, "request_success_total", 'reason="length"') == [0, 6]
    assert by_engine(server, "request_params_n_count") == [0, 3]
    assert ask(server, 0).status_code == 200
    assert by_engine(server, "generation_tokens_total") == [4, 24]
    for _ in range(4):  # without a rank the engines take turns
        assert ask(server, None).status_code == 200
    assert by_engine(server, "generation_tokens_total") == [12, 32]


def test_an_abort_is_counted_by_the_engine_of_its_request(server: Server) -> None:
    before = by_engine(server, "request_success_total", 'reason="abort"')
    body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with server.slowly():
        for rank in (0, 1, 1):
            with server.client.stream(
                "POST", "/v1/completions", json=body, headers={HEADER: str(rank)}
            ) as answer:
                next(answer.iter_lines())
                assert by_engine(server, "num_requests_running") == [rank == 0, rank == 1]
            server.until("num_requests_running", 0)
            server.until_idle()
    ask(server, 0)
    ask(server, 1)
    after = by_engine(server, "request_success_total", 'reason="abort"')
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (2, "data_parallel_rank is 2; it must be from 0 to 1"),
        (-1, "X-data-parallel-rank is '-1'; it must be the number of an engine"),
        ("one", "X-data-parallel-rank is 'one'; it must be the number of an engine"),
    ],
)
def test_an_engine_that_is_not_there_is_refused(
    server: Server, rank: object, words: str, stream: bool
) -> None:
    answer = ask(server, rank, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "data_parallel_rank")
    assert words in error["message"]
