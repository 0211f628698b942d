"""The HTTP interface of a running server, asked by the clients that people use."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from mini_vllm.entrypoints.openai.api_server import build_app
from tests.engine.entrypoints.server import SLOW, Server, running

PROMPT = "Once upon a time"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    words = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    more = ("--enable-request-id-headers", "--enable-prompt-tokens-details", *SLOW)
    with running(*words, *more) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    http = httpx.Client(trust_env=False)
    return openai.OpenAI(base_url=server.url + "/v1", api_key="-", http_client=http, max_retries=0)


def events(text: str) -> list[Any]:
    """The events of a stream; the last must be [DONE]."""
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


# ---------------------------------------------------------------------- answers


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="storyteller", prompt=PROMPT, **GREEDY)
    chunks = list(
        client.completions.create(
            model="storyteller", prompt=PROMPT, stream=True,
            stream_options={"include_usage": True}, **GREEDY,
        )
    )  # fmt: skip
    *texts, last = chunks
    assert "".join(chunk.choices[0].text for chunk in texts) == whole.choices[0].text
    assert texts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage == whole.usage
    assert whole.usage is not None and whole.usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_streams_role_first_and_reason_last(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model="storyteller", messages=messages, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model="storyteller", messages=messages, stream=True, **GREEDY
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_parts_and_null_are_content(server: Server) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    one = server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": parts}], **GREEDY
    )
    two = server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "Hel\nlo"}], **GREEDY
    )
    assert one.json()["choices"][0]["message"] == two.json()["choices"][0]["message"]
    null = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]
    assert server.post("/v1/chat/completions", messages=null, **GREEDY).status_code == 200


def test_several_prompts_and_several_answers(server: Server) -> None:
    body = {"prompt": [PROMPT, "The sun"], "n": 2, "max_tokens": 4, "seed": 3}
    whole = server.post("/v1/completions", **body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"]["completion_tokens"] <= 16
    streamed = events(server.post("/v1/completions", stream=True, **body).text)
    texts = {i: "" for i in range(4)}
    for event in streamed:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_has_the_logprobs_of_the_whole_answer(server: Server, echo: bool) -> None:
    """Offsets go on from event to event."""
    body = {"prompt": PROMPT, "logprobs": 1, "echo": echo, "temperature": 0, "max_tokens": 150}
    whole = server.post("/v1/completions", **body).json()["choices"][0]["logprobs"]
    streamed = events(server.post("/v1/completions", stream=True, **body).text)
    pieces = [event["choices"][0]["logprobs"] for event in streamed]
    for name in ("text_offset", "tokens"):
        assert [value for piece in pieces for value in piece[name]] == whole[name]
    assert len(pieces) > 1 and pieces[-1]["text_offset"][0] > 0


def test_each_prompt_of_a_stream_has_its_own_ids_and_usage(server: Server) -> None:
    prompts = [PROMPT, "The sun"]
    ids = [server.post("/tokenize", prompt=prompt).json()["tokens"] for prompt in prompts]
    body = {"prompt": prompts, "stream": True, "return_token_ids": True, **GREEDY}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = events(server.post("/v1/completions", stream_options=options, **body).text)
    for index, prompt_ids in enumerate(ids):
        mine = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert {chunk["usage"]["prompt_tokens"] for chunk in mine} == {len(prompt_ids)}
        told = [chunk["choices"][0]["prompt_token_ids"] for chunk in mine]
        assert told == [prompt_ids] + [None] * (len(mine) - 1)
    assert last["usage"]["prompt_tokens"] == sum(map(len, ids))
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "return_token_ids": True, **GREEDY}
    whole = server.post("/v1/chat/completions", **body).json()
    chunks = events(server.post("/v1/chat/completions", stream=True, **body).text)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])


def test_echo_and_logprobs(server: Server) -> None:
    body = {"prompt": PROMPT, "echo": True, "logprobs": 2, "temperature": 0}
    choice = server.post("/v1/completions", max_tokens=3, **body).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert len(choice["prompt_logprobs"]) == len(logprobs["tokens"]) - 3
    assert choice["text"] == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]
    assert all(len(top) in (2, 3) for top in logprobs["top_logprobs"][1:])
    silent = server.post("/v1/completions", max_tokens=0, **body).json()
    assert silent["choices"][0]["text"] == PROMPT


def test_chat_logprobs_are_one_a_token(server: Server) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Hello"}],
        "logprobs": True,
        "top_logprobs": 2,
        **GREEDY,
    }
    whole = server.post("/v1/chat/completions", **body).json()
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == whole["usage"]["completion_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    streamed = events(server.post("/v1/chat/completions", stream=True, **body).text)
    pieces = [
        entry
        for event in streamed
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert [piece["token"] for piece in pieces] == [entry["token"] for entry in content]


def test_a_seed_repeats(server: Server) -> None:
    body = {"prompt": PROMPT, "seed": 5, "max_tokens": 8, "temperature": 1}
    texts = {server.post("/v1/completions", **body).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="storyteller", input="Hello", temperature=0)
    stream = list(
        client.responses.create(model="storyteller", input="Hello", temperature=0, stream=True)
    )
    assert [event.sequence_number for event in stream] == list(range(len(stream)))
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text != "" and whole.id.startswith("resp_")
    assert stream[-1].type == "response.completed"


def test_tokens_there_and_back(server: Server) -> None:
    tokens = server.post("/tokenize", prompt=PROMPT).json()
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == 256
    assert server.post("/detokenize", tokens=tokens["tokens"]).json() == {"prompt": PROMPT}


def test_the_models_and_the_version(server: Server, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["storyteller"]
    assert client.models.retrieve("storyteller").id == "storyteller"
    assert set(server.client.get("/version").json()) == {"version"}
    assert server.client.get("/ping").status_code == 200


def test_a_request_id_comes_back_and_need_not_be_unique(server: Server) -> None:
    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            body = {"prompt": PROMPT, **GREEDY}
            headers = {"x-request-id": "mine"}
            requests = [http.post("/v1/completions", json=body, headers=headers) for _ in range(4)]
            return list(await asyncio.gather(*requests))

    answers = asyncio.run(ask())
    assert {answer.json()["id"] for answer in answers} == {"cmpl-mine"}
    assert {answer.headers["x-request-id"] for answer in answers} == {"mine"}
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1


# ---------------------------------------------------------------------- refusals


BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "model": ("/v1/completions", {"model": "gpt", "prompt": "a"}, 404, "storyteller"),
    "empty prompt": ("/v1/completions", {"prompt": ""}, 400, "prompt is empty"),
    "no messages": ("/v1/chat/completions", {}, 400, "messages is missing"),
    "empty messages": ("/v1/chat/completions", {"messages": []}, 400, "messages is empty"),
    "no role": ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "role"),
    "too long": ("/v1/completions", {"prompt": [1] * 300}, 400, "maximum context length"),
    "too long to look at": (
        "/v1/completions", {"prompt": "so " * 10**6}, 400, "maximum context length is 256",
    ),
    "too long a chat": (
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "so " * 10**6}]}, 400,
        "maximum context length",
    ),
    "too large": (
        "/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "[a-z]{999999}"}}, 400,
        "regex needs more than",
    ),
    "too many": ("/v1/completions", {"prompt": ["a"] * 9000, "n": 2}, 400, "one request may ask"),
    "token": ("/v1/completions", {"prompt": [99999]}, 400, "99999"),
    "max_tokens": ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    "temperature": ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature"),
    "type": ("/v1/completions", {"prompt": "a", "n": "x"}, 400, "n is 'x'"),
    "greedy n": ("/v1/completions", {"prompt": "a", "n": 2, "temperature": 0}, 400, "n is 2"),
    "stops": ("/v1/completions", {"prompt": "a", "stop": ["x"] * 17}, 400, "at most 16"),
    "stream_options": (
        "/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, 400,
        "stream_options",
    ),
    "top_logprobs": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, 400, "logprobs",
    ),
    "logprobs": ("/v1/completions", {"prompt": "a", "logprobs": 21}, 400, "between 0 and 20"),
    "many top_logprobs": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": -1},
        400, "top_logprobs",
    ),
    "image": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400, "image_url",
    ),
    "tool_choice": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "tool_choice": "auto"}, 400, "tools",
    ),
    "detokenize": ("/detokenize", {"tokens": [-1]}, 400, "-1"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stream"),
    [(name, stream) for name in BAD for stream in (False, True) if name != "stream_options"]
    + [("stream_options", False)],
)
def test_a_bad_request_is_refused_before_the_first_byte(
    server: Server, name: str, stream: bool
) -> None:
    path, body, status, part = BAD[name]
    answer = server.post(path, **body, **({"stream": True} if stream else {}))
    error = answer.json()["error"]
    assert answer.status_code == status == error["code"], error
    assert part in error["message"] and set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "kind", "part"),
    [
        (b'{"prompt": ', "application/json", "line 1 column"),
        (b'{"prompt": "\xff"}', "application/json", "JSON"),
        (b"[1]", "application/json", "object"),
        (b'{"prompt": "a"}', "text/plain", "content-type"),
    ],
)
def test_a_body_that_is_no_json_object(server: Server, body: bytes, kind: str, part: str) -> None:
    answer = server.client.post("/v1/completions", content=body, headers={"content-type": kind})
    assert answer.status_code == 400 and part in answer.json()["error"]["message"]


def test_a_body_that_is_packed_is_named_as_such(server: Server) -> None:
    packed = gzip.compress(b'{"prompt": "a"}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = server.client.post("/v1/completions", content=packed, headers=headers)
    assert answer.status_code == 400
    assert "content-encoding is 'gzip'" in answer.json()["error"]["message"]


def test_monitors_ask_for_the_head_alone(server: Server) -> None:
    for path in ("/health", "/v1/models"):
        answer = server.client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_one_error_object_everywhere(server: Server) -> None:
    assert server.client.get("/nothing").json()["error"]["code"] == 404
    twice = server.client.post(server.url + "//v1/completions", json={}).json()["error"]
    assert (twice["code"], "POST //v1/completions;" in twice["message"]) == (404, True)
    for path, advice in (
        ("/sleep", "VLLM_SERVER_DEV_MODE=1"), ("/start_profile", "--profiler-config"),
        ("/invocations", "its own path"), ("/nothing", "see /docs"),
    ):  # fmt: skip
        error = server.client.post(path).json()["error"]
        assert (error["code"], advice in error["message"]) == (404, True), error
    wrong_way = server.client.get("/v1/completions")
    assert wrong_way.json()["error"]["code"] == 405 and wrong_way.headers["allow"] == "POST"
    big = server.client.post(
        "/v1/completions", content=b" " * (33 * 2**20), headers={"content-type": "application/json"}
    )
    assert big.status_code == 413 and big.json()["error"]["code"] == 413


def test_a_form_that_no_text_has_is_the_callers_mistake(server: Server) -> None:
    """It is found out when the grammar is compiled: a stream does not begin before."""
    body = {"prompt": "a", "structured_outputs": {"json": {"$ref": "#"}}}
    answer = server.post("/v1/completions", **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "structured_outputs")
    assert "cannot be satisfied" in error["message"]
    streamed = server.post("/v1/completions", stream=True, **body)
    assert (streamed.status_code, streamed.json()["error"]) == (400, error)


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/v1/completions", {"prompt": [1] * 10**6}, "maximum context length"),
        ("/v1/completions", {"prompt": ["a"] * 10**6}, "one request may ask"),
        ("/v1/completions", {"prompt": "a", "bad_words": [1] * 10**6}, "bad_words.0 is 1"),
        ("/v1/chat/completions", {"messages": [1] * 10**6}, "messages.0 is 1"),
    ],
)
def test_long_lists_are_refused_at_once(
    server: Server, path: str, body: dict[str, Any], part: str
) -> None:
    """An error for each item, or a look at each prompt, would delay all other requests."""
    data = json.dumps(body).encode()
    before = server.cpu_seconds()
    answer = server.client.post(path, content=data, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and part in answer.json()["error"]["message"]
    assert server.cpu_seconds() - before < 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("depth", [60, 150, 250, 400])
def test_a_schema_that_nests_deeply_is_served_or_refused(
    server: Server, depth: int, stream: bool
) -> None:
    """Wherever on its way it is found to be too deep, that is the caller's mistake."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    body = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": schema}}
    answer = server.post("/v1/completions", **body, stream=stream)
    if answer.status_code == 400:
        assert "too deeply" in answer.json()["error"]["message"]
    else:
        assert answer.status_code == 200 and '"error"' not in answer.text


def test_a_mistake_of_ours_costs_no_connection() -> None:
    """A server that raises on after its answer closes the connection, which the client would
    send its next request into."""

    def check_model(name: str | None) -> None:
        raise RuntimeError("unforeseen")

    engine = SimpleNamespace(request_refused=lambda params: None, profiler_config={})
    state = SimpleNamespace(
        engine=engine, check_model=check_model, num_in_flight=0, readers=set(),
        enable_request_id_headers=False, enable_tokenizer_info_endpoint=False,
        metrics=SimpleNamespace(registry=CollectorRegistry()),
    )  # fmt: skip
    client = TestClient(build_app(state), raise_server_exceptions=True)  # type: ignore[arg-type]
    answer = client.post("/detokenize", json={"tokens": [1]})
    assert answer.status_code == 500 == answer.json()["error"]["code"]


def test_every_answer_carries_the_id_of_its_request_once() -> None:
    def unforeseen(*args: Any) -> None:
        raise RuntimeError("unforeseen")

    engine = SimpleNamespace(request_refused=lambda params: None, profiler_config={}, errored=True)
    state = SimpleNamespace(
        engine=engine, check_model=unforeseen, num_in_flight=0, readers=set(), draining=False,
        enable_request_id_headers=True, enable_tokenizer_info_endpoint=False,
        metrics=SimpleNamespace(render=unforeseen, registry=CollectorRegistry()),
    )  # fmt: skip
    app = build_app(state, ["key"], ["http://there"])  # type: ignore[arg-type]
    client = TestClient(app, raise_server_exceptions=True)
    key = {"authorization": "Bearer key"}
    large = {**key, "content-length": str(2**40)}
    cors = {"origin": "http://elsewhere", "access-control-request-method": "POST"}
    for status, method, path, headers, body in (
        (200, "GET", "/version", {}, None),
        (400, "POST", "/v1/completions", key, b"{"),
        (401, "POST", "/v1/completions", {}, b"{}"),
        (404, "POST", "/nothing", {}, b"{}"),
        (405, "GET", "/v1/completions", key, None),
        (413, "POST", "/v1/completions", large, b"{}"),
        (500, "POST", "/detokenize", key, b'{"tokens":[1]}'),
        (500, "GET", "/metrics", {}, None),
        (503, "GET", "/health", {}, None),
        (400, "OPTIONS", "/v1/completions", cors, None),
    ):
        headers = {"content-type": "application/json", **headers}
        mine = client.request(method, path, headers={**headers, "X-Request-Id": "a"}, content=body)
        fresh = client.request(method, path, headers=headers, content=body)
        assert (mine.status_code, fresh.status_code) == (status, status), path
        assert mine.headers.get_list("x-request-id") == ["a"], path
        assert len(fresh.headers.get_list("x-request-id")) == 1 < len(fresh.headers["x-request-id"])
        if status >= 400 and method != "OPTIONS" and path != "/health":
            assert mine.json()["error"]["code"] == status


def test_what_is_cut_may_be_as_long_as_it_likes(server: Server) -> None:
    body = {"prompt": "so " * 10**5, "max_tokens": 1, "truncate_prompt_tokens": 8}
    assert server.post("/v1/completions", **body).json()["usage"]["prompt_tokens"] == 8
    assert server.post("/tokenize", prompt="so " * 10**5).json()["count"] > 10**5
    assert server.client.get("/v1/models/").json() == server.client.get("/v1/models").json()


def test_a_client_that_disconnects_while_sending_logs_no_error(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\n"
        sock.sendall(head + b'{"prompt":')
        time.sleep(0.2)
    server.until_idle()
    said = server.said()
    assert "Traceback" not in said and "ClientDisconnect" not in said


def test_errors_are_classes_of_the_client(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="storyteller"):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model="storyteller", prompt=[1] * 300)
    with server.slowly(), pytest.raises(openai.APITimeoutError):
        client.completions.create(
            model="storyteller", prompt=PROMPT, max_tokens=250, timeout=0.001,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
    server.until_idle()  # what was sent before the client gave up may be read only now


# ---------------------------------------------------------------------- many clients


def test_many_streams_lose_nothing_and_the_metrics_agree(server: Server) -> None:
    names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
    before = {name: server.metric(name) for name in names}

    async def one(http: httpx.AsyncClient, index: int) -> tuple[str, int, int]:
        body = {
            "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "ignore_eos": True,
        }  # fmt: skip
        text = ""
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            raw = ""
            async for part in answer.aiter_text():
                raw += part
                if index % 5 == 0:
                    await asyncio.sleep(0.01)  # a slow reader
        found = events(raw)
        text = "".join(choice["text"] for event in found for choice in event["choices"])
        usage = found[-1]["usage"]
        return text, usage["prompt_tokens"], usage["completion_tokens"]

    async def all_of_them() -> list[tuple[str, int, int]]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=server.url, timeout=60, limits=limits, trust_env=False
        ) as http:
            return list(await asyncio.gather(*(one(http, index) for index in range(120))))

    answers = asyncio.run(all_of_them())
    assert len({text for text, _, _ in answers}) == 1
    server.until("num_requests_running", 0)
    gained = {name: server.metric(name) - before[name] for name in names}
    assert gained["prompt_tokens_total"] == sum(prompt for _, prompt, _ in answers)
    assert gained["generation_tokens_total"] == sum(tokens for _, _, tokens in answers)
    assert gained["time_to_first_token_seconds_count"] == len(answers)


@pytest.mark.slow
def test_the_client_closes_first(server: Server) -> None:
    """httpx keeps an idle connection for 5 s: until then the server must not have closed it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for pause in (0.0, 7.0):
        time.sleep(pause)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200 and connection.sock is not None
    connection.close()
