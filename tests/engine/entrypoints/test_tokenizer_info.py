"""What `GET /tokenizer_info` tells; the rest is in the report of lm-eval (22)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from tokenizers import AddedToken

from mini_vllm.entrypoints.openai.api_server import build_app


def state(**more: Any) -> Any:
    tokenizer = SimpleNamespace(
        init_kwargs={
            "vocab_file": "/home/me/vocab.json", "eos_token": AddedToken("<eos>"),
            "added_tokens_decoder": {1: AddedToken("<pad>")}, "clean": False,
        },
        chat_template="its own",
    )  # fmt: skip
    plain = {
        "engine": SimpleNamespace(tokenizer=tokenizer, profiler_config=None),
        "enable_request_id_headers": False,
        "metrics": SimpleNamespace(registry=CollectorRegistry()),
        "enable_tokenizer_info_endpoint": True, "chat_template": None, "num_in_flight": 0,
    }  # fmt: skip
    return SimpleNamespace(**plain | more)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(build_app(state(), ["key"])) as made:
        yield made


def test_tokens_are_told_as_they_are_spelled(client: TestClient) -> None:
    answer = client.get("/tokenizer_info", headers={"authorization": "Bearer key"})
    assert answer.json() == {
        "eos_token": "<eos>", "added_tokens_decoder": {"1": "<pad>"}, "clean": False,
        "tokenizer_class": "SimpleNamespace", "chat_template": "its own",
    }  # fmt: skip
    assert "/home" not in json.dumps(answer.json())


def test_it_needs_the_key(client: TestClient) -> None:
    assert client.get("/tokenizer_info").status_code == 401


def test_the_servers_template_is_the_one_that_is_used() -> None:
    client = TestClient(build_app(state(chat_template="given")))
    assert client.get("/tokenizer_info").json()["chat_template"] == "given"


def test_without_the_option_there_is_no_such_path() -> None:
    client = TestClient(build_app(state(enable_tokenizer_info_endpoint=False)))
    answer = client.get("/tokenizer_info")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, 404)


def test_without_a_tokenizer_it_says_so() -> None:
    client = TestClient(
        build_app(state(engine=SimpleNamespace(tokenizer=None, profiler_config=None)))
    )
    answer = client.get("/tokenizer_info")
    assert answer.status_code == 400 and "no tokenizer" in answer.json()["error"]["message"]
