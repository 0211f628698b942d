"""Every field of a request of vLLM's is obeyed, refused by name, or means nothing here."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from mini_vllm import bundled
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.entrypoints.anthropic.protocol import MessagesRequest
from mini_vllm.entrypoints.openai.completion import _token_ids
from mini_vllm.entrypoints.openai.protocol import (
    REFUSED,
    ChatCompletionRequest,
    CompletionRequest,
    Lenient,
    TokenizeRequest,
)
from mini_vllm.entrypoints.pooling.protocol import EmbeddingRequest
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.multimodal.chat import part_text
from tests.engine.entrypoints.server import ROOT, Server, running

UPSTREAM = ROOT / ".upstream" / "vllm-0.22.1" / "vllm" / "entrypoints" / "openai"
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    http = httpx.Client(trust_env=False)
    return openai.OpenAI(base_url=server.url + "/v1", api_key="-", http_client=http, max_retries=0)


def example(annotation: Any) -> Any:
    """The first of some values that a field takes."""
    for value in ("a", 1, [1], [{}]):
        with contextlib.suppress(ValidationError):
            return TypeAdapter(annotation).validate_python(value)
    raise AssertionError(annotation)


def test_null_says_nothing() -> None:
    """Of every body that a route reads."""
    bodies, rest = set(), [Lenient]
    while rest:
        rest += (more := rest.pop().__subclasses__())
        bodies |= set(more)
    assert {ChatCompletionRequest, EmbeddingRequest, MessagesRequest, TokenizeRequest} < bodies
    for body in bodies:
        fields = body.model_fields
        given = {n: example(f.annotation) for n, f in fields.items() if f.is_required()}
        optional = {name: None for name in fields if name not in given}
        assert body(**given, **optional) == body(**given), body
        for name in given:
            with pytest.raises(ValidationError):
                body(**given | {name: None})


NO_EFFECT = {"user": "of the caller's own books"}


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("folder", "name", "ours"),
    [
        ("completion", "CompletionRequest", CompletionRequest),
        ("chat_completion", "ChatCompletionRequest", ChatCompletionRequest),
    ],
)
def test_no_field_of_upstreams_is_dropped_in_silence(
    folder: str, name: str, ours: type[BaseModel]
) -> None:
    path = UPSTREAM / folder / "protocol.py"
    if not path.is_file():
        pytest.skip("vLLM's source is not unpacked; `make upstream` does it")
    tree = ast.parse(path.read_text())
    (theirs,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    fields = {n.target.id for n in theirs.body if isinstance(n, ast.AnnAssign)}  # type: ignore[union-attr]
    fields = {field for field in fields if not field.startswith("_")}
    assert fields <= ours.model_fields.keys() | REFUSED.keys() | NO_EFFECT.keys()


def test_null_is_what_is_not_given(server: Server) -> None:
    nulls = dict.fromkeys(("stream", "n", "seed", "stop", "return_token_ids", "stream_options"))
    answer = server.post("/v1/completions", prompt="Once", echo=None, **GREEDY, **nulls)
    assert answer.status_code == 200, answer.text
    assert server.post("/v1/chat/completions", messages=HELLO, **nulls).status_code == 200
    assert server.post("/v1/completions", prompt="Once", stream_options={}).status_code == 200
    long = server.post("/v1/completions", prompt="Once", ignore_eos=True, max_tokens=None)
    assert long.json()["usage"]["completion_tokens"] == 16
    zero: dict[str, Any] = GREEDY | {"logprobs": False, "top_logprobs": 0}
    (choice,) = server.post("/v1/chat/completions", messages=HELLO, **zero).json()["choices"]
    assert choice["logprobs"] is None


SEVEN = {"begin": "<a>", "schema": {"const": 7}, "end": "</a>"}
TAGS: list[dict[str, Any]] = [
    {"type": "structural_tag", "structures": [SEVEN], "triggers": ["<a>"]},
    {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "end": "</a>",
     "content": {"type": "json_schema", "json_schema": {"const": 7}}}},
]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_structural_tag_is_followed(server: Server, path: str, tag: dict[str, Any]) -> None:
    """Behind a trigger only the tag's own text may stand; a tag alone is all of the text."""
    prompt: dict[str, Any] = {"messages": HELLO} if "chat" in path else {"prompt": "Once"}
    form = {"response_format": tag}, {"structured_outputs": {"structural_tag": tag}}
    for change in form:
        answer = server.post(f"/v1/{path}", **prompt, **change, max_tokens=20, temperature=0)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        assert ("<a>" not in text) if "triggers" in tag else (text == "<a>7</a>"), text


FORM: dict[str, Any] = {"type": "json_schema", "name": "x", "schema": {"const": 7}}


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("completions", {"structured_outputs": {"choice": ["7"]}}),
        ("completions", {"response_format": {"type": "json_schema", "json_schema": FORM}}),
        ("completions", {"response_format": {"type": "json_object", "schema": FORM["schema"]}}),
        ("chat/completions", {"response_format": {**FORM, "type": "json_object"}}),
        ("chat/completions", {"structured_outputs": {"choice": ["7"]}}),
        ("responses", {"structured_outputs": {"choice": ["7"]}}),
        ("responses", {"text": {"format": FORM}}),
    ],
)
@pytest.mark.parametrize("name", ["json", "regex", "choice", "grammar", "decoding_backend"])
def test_of_two_forms_the_newer_counts(
    server: Server, path: str, change: dict[str, Any], name: str
) -> None:
    """Clients that know old servers, too, send `guided_...` beside what replaced it."""
    prompts: dict[str, dict[str, Any]] = {
        "completions": {"prompt": "Once"}, "chat/completions": {"messages": HELLO},
        "responses": {"input": "Hello"},
    }  # fmt: skip
    answer = server.post(f"/v1/{path}", **prompts[path], **change, **{f"guided_{name}": "nonsense"})
    assert answer.status_code == 200, answer.text
    assert '"7"' in answer.text


FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "change", "part"),
    [
        ("completions", {"prompt_embeds": "AAAA"}, "prompt_embeds is not supported; "),
        ("completions", {"guided_choice": ["yes", "no"]}, "structured_outputs={'choice': ...}"),
        ("chat/completions", {"guided_json": {}}, "structured_outputs={'json': ...}"),
        ("responses", {"guided_regex": "a"}, "structured_outputs={'regex': ...}"),
        ("responses", {"guided_json": {}, "text": {}}, "guided_json is not supported"),
        ("completions", {"bad_words": ["x"] * 1025}, "bad_words has 1025 strings; at most 1024"),
        ("completions", {"stream": "perhaps"}, "stream is 'perhaps'"),
        ("completions", {"seed": 2**63}, f"seed is {2**63}"),
        ("completions", {"truncate_prompt_tokens": 5000}, "cannot be greater than max_model_len"),
        ("completions", {"truncation_side": "up"}, "truncation_side is 'up'"),
        ("completions", {"stream": True, "prompt_logprobs": 1}, "prompt_logprobs is 1 and stream"),
        ("chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens is 0"),
        ("chat/completions", {"media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
        ("completions", {"structured_outputs": {"regex": "["}}, "regex '[': unterminated"),
        ("completions", {"structured_outputs": {"choice": []}}, "choice is empty"),
        ("completions", {"structured_outputs": {}}, "has none of json, regex, choice"),
        ("completions", {"structured_outputs": {"regex": "a", "whitespace_pattern": 0}}, "=0; use"),
        ("chat/completions", {"structured_outputs": {"json": None}}, "has none of json, regex"),
        ("chat/completions", {"reasoning_effort": "huge"}, "reasoning_effort is 'huge'; it must"),
        ("responses", {"reasoning": {"effort": "huge"}}, "reasoning.effort is 'huge'; it must"),
        ("responses", {"response_format": {"type": "json_object"}}, "send text={'format': ...}"),
        ("responses", {"n": 2}, "n is 2; a response is one answer"),
        ("responses", {"background": True}, "background is not supported"),
        ("responses", {"conversation": {"id": "c"}}, "conversation is not supported"),
        ("responses", {"input": []}, "input is empty"),
        ("responses", {"text": {"format": {"type": "x"}}}, "text.format.type is 'x'"),
        ("responses", {"text": {"format": "json"}}, "text.format.type is 'json'"),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, "but no schema"),
        ("responses", {"input": [{"type": "web_search_call"}]}, "input[0] is of type"),
        ("responses", {"input": [{"type": "function_call_output"}]}, "input[0].output is None"),
        ("responses", {"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "'x', which is not kept"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools[0] has type 'web_search'"),
        ("responses", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "has no name"),
        ("responses", {"tool_choice": "required"}, "tool_choice is given but tools is not"),
        ("responses", {"tools": [FLAT], "tool_choice": {"type": "mcp"}}, "{'type': 'mcp'}"),
        ("responses", {"tools": [FLAT], "tool_choice": {"type": "function", "name": "g"}}, "'g'"),
        ("responses", {"reasoning": {"effort": 5}}, "reasoning.effort is 5"),
        ("responses", {"include": ["x"]}, "include.0 is 'x'"),
        ("responses", {"context_management": [{"type": "compaction"}]}, "send fewer items"),
        ("responses/input_tokens", {"conversation": "c"}, "conversation is not supported"),
        ("responses/input_tokens", {"personality": "friendly"}, "personality is not supported"),
        ("responses/input_tokens", {"input": None}, "input is empty"),
        ("chat/completions", {"tools": [{"type": "custom", "custom": {}}]}, "has type 'custom'"),
        ("chat/completions", {"functions": [{"name": "f"}]}, "functions is not supported; send to"),
    ],
)
def test_fields_that_cannot_be_obeyed(
    server: Server, path: str, change: dict[str, Any], part: str
) -> None:
    body = {"prompt": "Once", "messages": HELLO, "input": "Hello"}
    body = {k: v for k, v in body.items() if (k == "prompt") == (path == "completions")}
    answer = server.post(f"/v1/{path}", **(body | change))
    error = answer.json()["error"]
    assert answer.status_code == 400 and part in error["message"]
    assert error["param"] in change


def test_what_clients_send_by_themselves(client: openai.OpenAI) -> None:
    more: Any = {"text": {"verbosity": "low"}, "top_logprobs": 2}
    response = client.responses.create(model="storyteller", input="Hi", max_output_tokens=2, **more)
    (item,) = response.output
    assert item.type == "message" and item.content[0].logprobs in (None, [])


@pytest.mark.parametrize("stream", [False, True])
def test_wishes_that_leave_no_token_are_the_clients_own(server: Server, stream: bool) -> None:
    """A client that takes it for the server's failure asks again, in vain."""
    wishes = {"allowed_token_ids": [5], "structured_outputs": {"choice": ["yes"]}}
    answer = server.post("/v1/completions", prompt="Once", stream=stream, **wishes)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "BadRequestError")
    assert error["message"].startswith("no token is left to sample")


def test_a_prompt_is_cut(server: Server) -> None:
    ids = server.post("/tokenize", prompt="Once upon a time there was").json()["tokens"]
    for change, want in (
        ({}, ids[-2:]), ({"truncation_side": "right"}, ids[:2]), ({"max_tokens": 1}, ids[-2:]),
    ):  # fmt: skip
        body = GREEDY | {"truncate_prompt_tokens": 2, "return_token_ids": True} | change
        (choice,) = server.post("/v1/completions", prompt=ids, **body).json()["choices"]
        assert choice["prompt_token_ids"] == want
    body = GREEDY | {"truncate_prompt_tokens": -1}
    usage = server.post("/v1/completions", prompt="a " * 400, **body).json()["usage"]
    assert usage["prompt_tokens"] == 256 - 8


def test_a_chat_tells_the_text_that_the_model_read(server: Server) -> None:
    body: dict[str, Any] = GREEDY | {"messages": HELLO, "return_prompt_text": True}
    answer = server.post("/v1/chat/completions", **body).json()
    assert answer["prompt_text"].endswith("Hello<|im_end|>\n<|im_start|>assistant\n")
    lines = server.post("/v1/chat/completions", stream=True, **body).text.split("\n\n")
    told = ["prompt_text" in line and json.loads(line[6:])["prompt_text"] for line in lines]
    assert told == [answer["prompt_text"]] + [False] * (len(lines) - 1)


def test_an_empty_list_of_named_tokens_asks_for_nothing(server: Server) -> None:
    body: dict[str, Any] = GREEDY | {"prompt": "Once", "logprob_token_ids": []}
    (choice,) = server.post("/v1/completions", **body).json()["choices"]
    assert choice["logprobs"] is None


def test_text_may_have_its_special_tokens_already() -> None:
    class Tokenizer:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1, 7] if add_special_tokens else [7]

    async def tokenize(prompt: Any) -> list[int]:
        return engine.tokenizer.encode(prompt)

    fits = SimpleNamespace(images=None, check_length=lambda text, num_output_tokens: None)
    engine = SimpleNamespace(tokenizer=Tokenizer(), tokenize=tokenize, input_processor=fits)
    state: Any = SimpleNamespace(engine=engine)
    for says, want in ((True, [1, 7]), (False, [7])):
        request = CompletionRequest(prompt="x", add_special_tokens=says)
        assert asyncio.run(_token_ids(state, "x", request)) == want


def test_tokens_go_by_their_ids(server: Server) -> None:
    body = GREEDY | {"return_tokens_as_token_ids": True, "return_token_ids": True}
    (choice,) = server.post("/v1/completions", prompt="Once", logprobs=1, **body).json()["choices"]
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    ask = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
    (choice,) = server.post("/v1/chat/completions", **ask, **body).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert [e["token"] for e in entries] == [f"token_id:{i}" for i in choice["token_ids"]]
    assert all(t["token"].startswith("token_id:") for e in entries for t in e["top_logprobs"])
    text = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert text.decode() == choice["message"]["content"]  # the bytes are the token's all the same


def test_a_chat_knows_its_prompt_and_repeats_its_beginning(server: Server) -> None:
    turns = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    ask = GREEDY | {"messages": turns, "echo": True, "prompt_logprobs": 1}
    ask |= {"add_generation_prompt": False, "continue_final_message": True}
    body = server.post("/v1/chat/completions", **ask).json()
    assert body["choices"][0]["message"]["content"].startswith("Once upon a time")
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert body["prompt_logprobs"][0] is None
    del ask["prompt_logprobs"]
    for tops in ({}, {"logprobs": True, "top_logprobs": 2}):  # an echo has as many as the answer
        told = server.post("/v1/chat/completions", **ask, **tops).json()["prompt_logprobs"]
        assert len(told) == len(body["prompt_logprobs"])
        assert all(len(entry) >= (2 if tops else 1) for entry in told[1:])


def test_a_response_takes_the_samplers_fields(client: openai.OpenAI) -> None:
    more = {"stop": "!", "seed": 3, "top_k": 1, "ignore_eos": True}
    ask: dict[str, Any] = {
        "model": "storyteller", "input": "Hello", "max_output_tokens": 4, "extra_body": more,
        "metadata": {"a": "b"}, "top_logprobs": 2, "include": ["message.output_text.logprobs"],
    }  # fmt: skip
    answer = client.responses.create(**ask)
    assert answer.status == "completed" and answer.output_text == "Hello"
    assert answer.metadata == {"a": "b"} and answer.top_logprobs == 2
    logprobs = answer.output[0].content[0].logprobs  # type: ignore[union-attr, index]
    assert [len(entry.top_logprobs) for entry in logprobs or []] == [2, 2]
    with client.responses.stream(model="storyteller", input="Hello", max_output_tokens=1) as cut:
        assert cut.get_final_response().status == "incomplete"
    events = list(client.responses.create(stream=True, **ask))
    assert events[-1].response.output_text == "Hello"  # type: ignore[union-attr]


def test_arguments_of_earlier_calls_are_objects_for_the_template() -> None:
    """As models write them: a template turns objects into JSON, and a text into a quoted text."""
    template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    for given, want in (
        ('{"city": "Oslo"}', '{"city": "Oslo"}'),
        ("", "{}"),
        ({"a": 1}, '{"a": 1}'),
        (json.dumps('{"city": "Oslo"}'), '{"city": "Oslo"}'),
        (None, "{}"),
        ('{"city": "Os', "{}"),  # cut by max_tokens: its conversation goes on all the same
        ('["Oslo"]', "{}"),
    ):
        call = {"type": "function", "function": {"name": "weather", "arguments": given}}
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert render_chat(tokenizer, [turn], template=template) == want


def test_developers_speak_as_the_system_to_a_template_that_does_not_know_them() -> None:
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    roles = ("user", "system", "developer", "assistant", "developer")
    turns = [{"role": role, "content": f"{i}"} for i, role in enumerate(roles)]
    turns[-1]["content"] = [{"type": "text", "text": "4"}]
    template = "{% for m in messages %}{{ m.role }}:{{ m.content | tojson }} {% endfor %}"
    said = render_chat(tokenizer, turns, template=template)
    assert said == 'system:"1\\n\\n2\\n\\n4" user:"0" assistant:"3" '
    knows = template + "{% if messages[0].role == 'developer' %}{% endif %}"
    assert render_chat(tokenizer, turns, template=knows).count("developer:") == 2
    asked, told = (
        render_chat(tokenizer, [{"role": role, "content": "Hi"}])
        for role in ("developer", "system")
    )
    assert asked == told


@pytest.mark.parametrize("part", ["Hi", {"type": "refusal", "refusal": "Hi"}, {"text": "Hi"}])
def test_parts_that_are_text(part: Any) -> None:
    assert part_text(part) == "Hi"


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_a_stream_may_ask_for_0_prompt_logprobs(server: Server, route: str) -> None:
    """As in vLLM, and its chunks have none."""
    given = {"prompt": "Once"} if route == "completions" else {"messages": HELLO}
    answer = server.post(f"/v1/{route}", stream=True, prompt_logprobs=0, **GREEDY, **given)
    assert answer.status_code == 200 and "data: [DONE]" in answer.text
