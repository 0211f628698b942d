"""``use_beam_search`` by HTTP: the texts of ``LLM.beam_search``, in the shape of other answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from mini_vllm import LLM
from mini_vllm.sampling_params import BeamSearchParams
from tests.engine.entrypoints.server import SLOW, Server, running

PROMPTS = ["Once upon a time", "Tom and Mia went to the"]
HELLO = [{"role": "user", "content": "What is 4 + 5?"}]
BEAMS: dict[str, Any] = {"use_beam_search": True, "n": 3}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM("storyteller", dtype="float32", max_model_len=256, num_gpu_blocks=256)
    yield made
    made.shutdown()


def offline(llm: LLM, prompt: Any, **params: Any) -> list[tuple[list[int], str | None]]:
    """Each beam's new tokens without the one that ends it, and why it has ended."""
    (output,) = llm.beam_search(prompt, BeamSearchParams(beam_width=3, **params))
    start = len(llm.get_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt)
    return [
        (s.tokens[start : len(s.tokens) - (s.finish_reason == "stop")], s.finish_reason)
        for s in output.sequences
    ]


def test_a_completion_has_the_beams_of_each_prompt(server: Server, llm: LLM) -> None:
    answer = server.post(
        "/v1/completions", prompt=PROMPTS, max_tokens=8, temperature=0.7, logprobs=2,
        return_token_ids=True, length_penalty=0.5, **BEAMS,
    ).json()  # fmt: skip
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    found = [(choice["token_ids"], choice["finish_reason"]) for choice in choices]
    assert found == [
        beam
        for prompt in PROMPTS
        for beam in offline(llm, prompt, max_tokens=8, length_penalty=0.5)
    ]
    for choice in choices:
        assert choice["text"] == llm.get_tokenizer().decode(choice["token_ids"])
        assert len(choice["logprobs"]["tokens"]) == 8
        assert all(2 <= len(tops) <= 3 for tops in choice["logprobs"]["top_logprobs"])
    num_prompt = sum(len(llm.get_tokenizer().encode(prompt)) for prompt in PROMPTS)
    assert answer["usage"]["prompt_tokens"] == num_prompt
    assert answer["usage"]["completion_tokens"] == 48


def test_a_chat_has_them_too_whole_and_streamed(server: Server, llm: LLM) -> None:
    """A beam that has ended is told without its last token, unless that is asked for."""
    ask = {"messages": HELLO, "max_tokens": 12, "return_token_ids": True, **BEAMS}
    answer = server.post("/v1/chat/completions", **ask).json()
    choices = answer["choices"]
    wanted = offline(llm, answer["prompt_token_ids"], max_tokens=12)
    assert [(choice["token_ids"], choice["finish_reason"]) for choice in choices] == wanted
    assert choices[0]["finish_reason"] == "stop" and choices[0]["stop_reason"] is not None
    assert choices[0]["message"]["content"].endswith("9")
    again = server.post("/v1/chat/completions", include_stop_str_in_output=True, **ask).json()
    first = again["choices"][0]
    assert first["token_ids"] == [*wanted[0][0], first["stop_reason"]]
    assert first["message"] == choices[0]["message"]
    http = httpx.Client(trust_env=False)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="-", http_client=http)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(
        model="storyteller", messages=HELLO, max_tokens=12, n=3, stream=True,  # type: ignore[arg-type]
        extra_body={"use_beam_search": True},
    ):  # fmt: skip
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice["message"]["content"] for choice in choices]


@pytest.mark.parametrize(
    ("path", "change", "param", "part"),
    [
        ("completions", {"stream": True}, "stream", "no text is certain before the search is over"),
        ("completions", {"n": 11}, "n", "n is the number of beams, and beam_width is 11; a beam"),
        ("completions", {"n": 0}, None, "beam_width is 0; it must be between 1 and"),
        ("completions", {"length_penalty": 11}, None, "length_penalty is 11.0; it must be between"),
        ("completions", {"stop": ["."]}, "stop", "stop is ['.'] and use_beam_search is true"),
        ("chat/completions", {"repetition_penalty": 1.1}, "repetition_penalty", "is 1.1 and use_"),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "response_format",
         "ranked by the model's own probabilities"),
        ("responses", {"input": "Hi"}, "use_beam_search", "use_beam_search is not supported here"),
    ],
)  # fmt: skip
def test_what_a_search_cannot_do_is_refused(
    server: Server, path: str, change: dict[str, Any], param: str | None, part: str
) -> None:
    body = {"messages": HELLO} if path == "chat/completions" else {"prompt": "Once"}
    body = {} if path == "responses" else body
    answer = server.post(f"/v1/{path}", **{**body, "max_tokens": 4, **BEAMS, **change})
    assert answer.status_code == 400, answer.text
    assert part in answer.json()["error"]["message"]
    if param is not None:
        assert answer.json()["error"]["param"] == param
    neutral = {"stop": [], "presence_penalty": 0, "repetition_penalty": 1.0, "seed": 3}
    assert server.post("/v1/completions", prompt="Once", **BEAMS, **neutral).status_code == 200


def test_a_disconnected_client_ends_its_beam_search() -> None:
    with running(*SLOW) as server, server.slowly():
        body = json.dumps({"prompt": "Once", "max_tokens": 200, **BEAMS}).encode()
        lines = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json")
        head = "\r\n".join((*lines, f"content-length: {len(body)}", "", ""))
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(head.encode() + body)
            server.until("request_success_total", 4)  # a beam's step, and the three beams' next
        server.until_idle()  # long before 200 steps of half a second
        server.until("kv_cache_usage_perc", 0)
