"""What is too large is refused by counting it, and a stream's status tells what is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import (
    MOST_COPIED,
    MOST_EXTRA,
    CompletionRequest,
    count_values,
)
from tests.engine.entrypoints.server import Server, running
from tests.engine.pace import cpu_seconds

VOCAB = 2048
LONG = 2**20
TOO_LONG = "prompt has 1,048,577 characters; at most 1,048,576 are tokenized at once"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--enable-auto-tool-choice", "--tool-call-parser", "hermes") as server:
        yield server


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"logit_bias": {str(i): 1 for i in range(200_000)}}, "':' 200,00"),
        ({"stop_token_ids": [1] * 1_100_000}, "',' 1,100,0"),
        ({"zz": [[]] * 200_000}, "'[' 200,00"),
        ({"zz": [{}] * 200_000}, "'{' 200,00"),
        ({"stop_token_ids": [1] * (VOCAB + 1)}, "stop_token_ids has 2,049 entries"),
        ({"logit_bias": {str(i): 1 for i in range(VOCAB + 1)}}, "logit_bias has 2,049 entries"),
        ({"stop": "x" * 70_000}, "stop has 70,000 characters; at most 65,536"),
        ({"bad_words": ["word " * 100] * 1000}, "bad_words has 500,000 characters"),
        ({"structured_outputs": {"grammar": "x" * 100_001}}, "grammar has 100,001 characters"),
        ({"n": 2049}, "n is 2,049; at most 2,048 completions of a prompt"),
        ({"cache_salt": "x" * 1025}, "cache_salt is 'xxx"),
        ({"n": 9, "vllm_xargs": {"a": "x" * 2**21}}, "n is 9 and strings, lists of tokens and v"),
        ({"vllm_xargs": {"x" * 2**23: ["x"]}}, "vllm_xargs has more than 65,536 values"),
        ({"n": 512, "stop": ["x" * 2**12] * 16}, "n is 512 and strings, lists of tokens and v"),
        ({"structured_outputs": {"json": {"enum": [*range(3000)]}}}, "enum has 3,000 values"),
        ({"request_id": "x" * 1025}, "request_id has 1,025 characters; at most 1,024"),
        ({"prompt": "x" * (LONG + 1), "truncate_prompt_tokens": 8}, TOO_LONG),
    ],
)
def test_what_is_too_large_is_refused_with_its_size(
    server: Server, body: dict[str, Any], words: str
) -> None:
    answer = server.post("/v1/completions", **{"prompt": "Once", "max_tokens": 1, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["param"] is None or error["param"] in body


def test_a_text_is_counted_or_cut_only_up_to_a_length(server: Server) -> None:
    """The tokenizer runs in one of few threads, and cannot be stopped: 16 MB that were only
    counted kept one busy for 16 seconds."""
    messages = [{"role": "user", "content": "x" * (LONG + 1)}]
    for path, body in (
        ("/tokenize", {"prompt": "x" * (LONG + 1)}),
        ("/tokenize", {"messages": messages}),
        ("/v1/chat/completions", {"messages": messages, "truncate_prompt_tokens": 8}),
        ("/v1/responses", {"input": messages, "truncation": "auto"}),
    ):
        answer = server.post(path, **body)
        assert answer.status_code == 400, path
        assert " characters; at most 1,048,576 are tokenized" in answer.json()["error"]["message"]
    assert server.post("/tokenize", prompt="so " * (LONG // 3)).status_code == 200


def test_a_long_name_is_not_sent_back(server: Server) -> None:
    answer = server.post("/v1/completions", model="x" * 10**6, prompt="Once")
    assert answer.status_code == 404
    assert len(answer.content) < 1000


def test_a_long_id_is_not_sent_back_in_every_event(server: Server) -> None:
    """As a header it may have four megabytes."""
    headers = {"X-Request-Id": "x" * 1025}
    for path, body in (("completions", {"prompt": "Once"}), ("responses", {"input": "Once"})):
        answer = server.client.post(f"/v1/{path}", json=body | {"stream": True}, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("X-Request-Id has 1,025 characters")


def test_many_tools_are_counted_not_compared_with_each_other(server: Server) -> None:
    """Each with each: 20,000 took minutes."""
    tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(20_000)]
    messages = [{"role": "user", "content": "hi"}]

    def refused() -> None:
        answer = server.post("/v1/chat/completions", messages=messages, tools=tools)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("tools has 20,000 tools; at most 1,024")

    assert cpu_seconds(refused, limit=2.0, clock=server.cpu_seconds) < 2
    twice = server.post("/v1/chat/completions", messages=messages, tools=[TOOL, TOOL])
    assert "two named 'f'" in twice.json()["error"]["message"]


def test_lists_count_once_for_each_completion() -> None:
    length = MOST_COPIED // 256
    CompletionRequest(n=256, stop_token_ids=[1] * length).check_fields(VOCAB)
    with pytest.raises(APIError, match="n is 257 and strings, lists of"):
        CompletionRequest(n=257, stop_token_ids=[1] * length).check_fields(VOCAB)
    with pytest.raises(APIError, match="vllm_xargs has more than"):
        CompletionRequest(vllm_xargs={"a": [1] * (MOST_EXTRA + 1)}).check_fields(VOCAB)


def test_values_are_counted_at_any_depth_and_no_further_than_needed() -> None:
    assert count_values({"a": [1, {"b": 2}], "c": 3}, 100) == 2 + 2 + 1
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert count_values(deep, 10_000) == 5000
    many = [[0] * 1_000_000]
    assert count_values(many, 10) > 10
    assert cpu_seconds(lambda: count_values(many, 10), limit=0.1) < 0.1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_a_constraint_that_nothing_satisfies_is_no_stream(server: Server, path: str) -> None:
    """It is known when it is compiled, which is before the first byte."""
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(1000)},
    }
    about: dict[str, Any] = {
        "/v1/completions": {"prompt": "Once"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/responses": {"input": "hi"},
    }[path]
    answer = server.post(path, stream=True, structured_outputs={"json": schema}, **about)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == 400
    assert answer.json()["error"]["param"] == "structured_outputs"
    fine = server.post(path, stream=True, structured_outputs={"choice": ["yes", "no"]}, **about)
    assert fine.status_code == 200
    assert fine.headers["content-type"].startswith("text/event-stream")
    server.until("num_requests_running", 0)


def test_a_mapping_without_a_prompt_is_told_what_it_holds() -> None:
    processor = InputProcessor(None, None, 16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"prompt_embeds is \[1.0\]; models read tokens"):
        processor.tokenize({"prompt_embeds": [1.0]})  # type: ignore[typeddict-unknown-key]
