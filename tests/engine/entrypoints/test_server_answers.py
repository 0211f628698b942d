"""What a server answers, field by field, and the paths through it that need more than a prompt."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator

from mini_vllm import __version__
from mini_vllm.bundled import adapter_path
from mini_vllm.config import EngineConfig
from mini_vllm.entrypoints.fingerprint import system_fingerprint
from tests.engine.entrypoints.server import ROOT, Server, running

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    words = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-lora"]
    words += ["--max-loras", "2", "--lora-modules", f"pirate={adapter_path('pirate')}"]
    words += ["--max-logprobs", "-1"]
    with running(*words, "--enable-prompt-tokens-details") as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    http = httpx.Client(trust_env=False)
    return openai.OpenAI(base_url=server.url + "/v1", api_key="-", http_client=http, max_retries=0)


# ---------------------------------------------------------------------- fields
# By the class of vLLM 0.22.1 that writes them. A field in "OURS" is left out on purpose.

FIELDS: dict[str, set[str]] = {
    "CompletionResponse": {
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "kv_transfer_params",
    },
    "CompletionResponseChoice": {
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "prompt_logprobs", "prompt_token_ids",
    },
    "CompletionLogProbs": {"text_offset", "token_logprobs", "tokens", "top_logprobs"},
    "ChatCompletionResponse": {
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
    },
    "ChatCompletionResponseChoice": {
        "index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids",
    },
    "ChatMessage": {
        "role", "content", "refusal", "annotations", "audio", "function_call", "tool_calls",
        "reasoning",
    },
    "ChatCompletionLogProbsContent": {"token", "logprob", "bytes", "top_logprobs"},
    "ChatCompletionLogProb": {"token", "logprob", "bytes"},
    "UsageInfo": {"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"},
    "PromptTokenUsageInfo": {"cached_tokens"},
    "ErrorInfo": {"message", "type", "param", "code"},
    "ModelCard": {
        "id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission",
    },
    "ModelPermission": {
        "id", "object", "created", "allow_create_engine", "allow_sampling", "allow_logprobs",
        "allow_search_indices", "allow_view", "allow_fine_tuning", "organization", "group",
        "is_blocking",
    },
}  # fmt: skip
OURS = {"routed_experts", "field_names"}
"""Experts of mixtures; a cache inside upstream's classes."""


@pytest.mark.upstream
def test_the_fields_are_those_of_upstream() -> None:
    folder = ROOT / ".upstream" / "vllm-0.22.1" / "vllm" / "entrypoints" / "openai"
    if not folder.is_dir():
        pytest.skip("vLLM's source is not unpacked; `make upstream` does it")
    classes: dict[str, set[str]] = {}
    for name in ("engine", "completion", "chat_completion"):
        tree = ast.parse((folder / name / "protocol.py").read_text(encoding="utf-8"))
        for node in (n for n in tree.body if isinstance(n, ast.ClassDef)):
            fields = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
            classes[node.name] = {f.id for f in fields if isinstance(f, ast.Name)}
    content = "ChatCompletionLogProbsContent"
    classes[content] |= classes["ChatCompletionLogProb"]  # its base
    assert {name: classes[name] - OURS for name in FIELDS} == FIELDS


def of(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body, if it has exactly the fields of a class."""
    assert set(body) == FIELDS[name], (name, set(body) ^ FIELDS[name])
    return body


def test_a_completion_has_vllms_fields(server: Server) -> None:
    body = server.post("/v1/completions", prompt="Once", logprobs=1, **GREEDY).json()
    of("CompletionResponse", body)
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    assert body["model"] == "storyteller" and isinstance(body["created"], int)
    choice = of("CompletionResponseChoice", body["choices"][0])
    of("CompletionLogProbs", choice["logprobs"])
    usage = of("UsageInfo", body["usage"])
    of("PromptTokenUsageInfo", usage["prompt_tokens_details"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_chat_has_vllms_fields(server: Server) -> None:
    body = server.post(
        "/v1/chat/completions", messages=HELLO, logprobs=True, top_logprobs=1, **GREEDY
    ).json()
    of("ChatCompletionResponse", body)
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion"
    choice = of("ChatCompletionResponseChoice", body["choices"][0])
    assert of("ChatMessage", choice["message"])["role"] == "assistant"
    entry = of("ChatCompletionLogProbsContent", choice["logprobs"]["content"][0])
    of("ChatCompletionLogProb", entry["top_logprobs"][0])
    assert bytes(entry["bytes"]).decode() == entry["token"]


def test_all_logprobs_of_a_server_that_reports_them(server: Server) -> None:
    one: dict[str, Any] = GREEDY | {"max_tokens": 1}
    for number, least in ((40, 40), (-1, 1900)):
        body = server.post("/v1/completions", prompt="Once", logprobs=number, **one).json()
        (top,) = body["choices"][0]["logprobs"]["top_logprobs"]
        ask = {"messages": HELLO, "logprobs": True, "top_logprobs": number}
        body = server.post("/v1/chat/completions", **ask, **one).json()
        (entry,) = body["choices"][0]["logprobs"]["content"]
        assert len(top) >= least and len(entry["top_logprobs"]) >= least


def test_models_and_errors_have_vllms_fields(server: Server) -> None:
    own, pirate = server.client.get("/v1/models").json()["data"]
    of("ModelPermission", of("ModelCard", own)["permission"][0])
    assert own["parent"] is None and pirate["parent"] == own["id"]
    body = server.post("/v1/completions", prompt="a", model="x").json()
    assert set(body) == {"error"} and of("ErrorInfo", body["error"])["param"] == "model"


def stream(server: Server, path: str, **body: Any) -> list[Any]:
    answer = server.post(path, stream=True, **body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in answer.headers
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_chunks_have_vllms_fields(server: Server) -> None:
    frame = {"id", "object", "created", "model", "choices"}
    chunks = stream(server, "/v1/completions", prompt="Once", **GREEDY)
    assert chunks[-1].pop("system_fingerprint")
    for chunk in chunks:
        assert set(chunk) == frame and chunk["object"] == "text_completion"
        assert set(chunk["choices"][0]) == {
            "index", "text", "logprobs", "finish_reason", "stop_reason",
        }  # fmt: skip
    chunks = stream(server, "/v1/chat/completions", messages=HELLO, **GREEDY)
    assert chunks[-1].pop("system_fingerprint")
    for chunk in chunks:
        assert set(chunk) == frame and chunk["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choices = [chunk["choices"][0] for chunk in chunks[1:]]
    assert all(set(choice["delta"]) == {"content"} for choice in choices)
    assert ["stop_reason" in choice for choice in choices] == [False] * (len(choices) - 1) + [True]


@pytest.mark.parametrize(
    ("options", "in_chunks", "in_the_end"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": True}, False, True),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True}, False, False),
    ],
)
def test_usage_is_told_when_it_is_asked_for(
    server: Server, options: dict[str, Any] | None, in_chunks: bool, in_the_end: bool
) -> None:
    more = {} if options is None else {"stream_options": options}
    for path, what in (
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/chat/completions", {"messages": HELLO}),
    ):
        chunks = stream(server, path, **what, **GREEDY, **more)
        last = [chunk for chunk in chunks if not chunk["choices"]]
        assert len(last) == in_the_end and (not last or last[0] is chunks[-1])
        with_choices = [chunk for chunk in chunks if chunk["choices"]]
        assert all(("usage" in chunk) == in_chunks for chunk in with_choices)
        if in_the_end:
            assert chunks[-1]["usage"]["completion_tokens"] == 8
        assert ["system_fingerprint" in chunk for chunk in chunks] == [
            chunk is chunks[-1] for chunk in chunks
        ]


def test_a_fingerprint_tells_the_version_the_ranks_and_the_configuration(server: Server) -> None:
    body = server.post("/v1/completions", prompt="Once", **GREEDY).json()
    chat = server.post("/v1/chat/completions", messages=HELLO, **GREEDY).json()
    assert re.fullmatch(rf"mini_vllm-{__version__}-[0-9a-f]{{8}}", body["system_fingerprint"])
    assert chat["system_fingerprint"] == body["system_fingerprint"]
    plain = EngineConfig.from_kwargs("storyteller")
    more = EngineConfig.from_kwargs("storyteller", tensor_parallel_size=2, max_num_seqs=4)
    whole, hashed = (system_fingerprint(more, mode, None) for mode in ("full", "hash"))
    assert whole is not None and whole.replace("-tp2", "") == hashed
    assert hashed != system_fingerprint(plain, "hash", None)
    assert system_fingerprint(plain, "custom", "mine") == "mine"
    assert system_fingerprint(plain, "none", "mine") is None


# ---------------------------------------------------------------------- tools

CITIES = ["Rome", "Oslo"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}, "days": {"enum": [1, 2, 7]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "weather"}}
ASK: dict[str, Any] = {
    "model": "storyteller", "messages": [{"role": "user", "content": "Is it warm in Rome?"}],
    "tools": [WEATHER], "max_tokens": 120, "parallel_tool_calls": False,
}  # fmt: skip


def check_arguments(text: str) -> None:
    arguments = json.loads(text)
    assert Draft202012Validator(PARAMETERS).is_valid(arguments), text
    assert "\n" not in text and "  " not in text, "more white space than JSON needs"


@pytest.mark.parametrize("tools", [{}, {"tools": [WEATHER], "tool_choice": "auto"}])
def test_held_back_text_keeps_no_token_ids_back(server: Server, tools: dict[str, Any]) -> None:
    """Text that may become a stop string is late, and its token ids are not lost."""
    more = GREEDY | {"return_token_ids": True, "ignore_eos": True}
    asked: list[tuple[str, dict[str, Any]]] = [("/v1/chat/completions", {"messages": HELLO})]
    if not tools:
        asked.append(("/v1/completions", {"prompt": "Once"}))
    for path, what in asked:
        whole = server.post(path, **what, **more, **tools).json()["choices"][0]
        text = whole["message"]["content"] if "message" in whole else whole["text"]
        almost = text[2:-2] + "@"  # it begins as the text goes on
        chunks = stream(server, path, **what, **more, **tools, stop=almost)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        ids = [token for choice in choices for token in choice.get("token_ids") or []]
        assert ids == whole["token_ids"] and len(ids) == 8


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_arguments_obey_their_schema(client: openai.OpenAI, choice: Any, reason: str) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(tool_choice=choice, seed=seed, **ASK)
        assert answer.choices[0].finish_reason == reason
        (call,) = answer.choices[0].message.tool_calls
        assert call.type == "function" and call.function.name == "weather"
        check_arguments(call.function.arguments)


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_arguments_stream_into_the_same_text(
    client: openai.OpenAI, choice: Any, reason: str
) -> None:
    whole = client.chat.completions.create(tool_choice=choice, seed=1, **ASK)
    chunks = list(client.chat.completions.create(tool_choice=choice, seed=1, stream=True, **ASK))
    changes = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    assert changes[0].id and all(change.id is None for change in changes[1:])
    assert [c.function.name for c in changes if c.function.name] == ["weather"]
    arguments = "".join(change.function.arguments for change in changes)
    assert arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == reason


def test_calls_that_are_cut_are_not_lost(client: openai.OpenAI) -> None:
    """Of calls that max_tokens ends, a stream and a whole answer keep the same."""
    ask = ASK | {"tool_choice": "required", "seed": 1}
    del ask["parallel_tool_calls"]
    for max_tokens in (4, 24, 60, 100):
        ask["max_tokens"] = max_tokens
        whole = client.chat.completions.create(**ask).choices[0]
        streamed = [c.choices[0] for c in client.chat.completions.create(stream=True, **ask)]
        calls: dict[int, list[str]] = {}
        for change in (c for choice in streamed for c in choice.delta.tool_calls or []):
            calls.setdefault(change.index, [change.function.name, ""])
            calls[change.index][1] += change.function.arguments
        kept = [[call.function.name, call.function.arguments] for call in whole.message.tool_calls]
        assert kept == list(calls.values())
        assert "".join(c.delta.content or "" for c in streamed) == whole.message.content
        assert bool(whole.message.content) == (not kept), "cut before there was a name"
        reason = whole.finish_reason
        assert reason == streamed[-1].finish_reason and reason in ("length", "tool_calls")
        for _, arguments in kept[: len(kept) - (reason == "length")]:
            check_arguments(arguments)


def test_one_of_several_tools(client: openai.OpenAI) -> None:
    ask = ASK | {"tools": [WEATHER, CLOCK]}
    answer = client.chat.completions.create(tool_choice="required", seed=0, **ask)
    for call in answer.choices[0].message.tool_calls:
        assert call.function.name in ("weather", "clock")
        json.loads(call.function.arguments)


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {}}])
def test_a_tool_without_parameters_is_given_none(
    client: openai.OpenAI, parameters: dict[str, Any]
) -> None:
    tool: Any = {"type": "function", "function": {"name": "now", **parameters}}
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        ask = ASK | {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False}
        (call,) = client.chat.completions.create(**ask).choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("now", "{}")


def test_tags_of_calls_may_be_special_tokens(server: Server) -> None:
    """They are text where calls are looked for, as in vLLM, and nowhere else."""
    (start,) = server.post("/tokenize", prompt="<|im_start|>").json()["tokens"]
    body = {"messages": HELLO, "max_tokens": 2, "logit_bias": {str(start): 100}}
    for tools, text in (({}, ""), ({"tools": [WEATHER]}, "<|im_start|><|im_start|>")):
        answer = server.post("/v1/chat/completions", **body, **tools).json()
        assert answer["choices"][0]["message"]["content"] == text


def test_a_model_that_need_not_call_may_just_talk(client: openai.OpenAI) -> None:
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(tool_choice=choice, temperature=0, **ASK)
        assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason != "tool_calls"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tools": []}, "tools is empty"),
        ({"tools": [{"type": "function", "function": "x"}]}, "function.name"),
        ({"tools": [WEATHER, WEATHER]}, "two named 'weather'"),
        ({"tools": [WEATHER | {"type": "search"}]}, "type 'search'"),
        ({"tools": [{"function": {"name": "f", "parameters": "x"}}]}, "parameters 'x'"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "'weather'"),
        ({"tool_choice": {"type": "function"}}, "'weather'"),
        ({"tool_choice": "perhaps"}, "'perhaps'"),
        ({"chat_template_kwargs": {"tokenize": True}}, "'tokenize'"),
        ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "json_schema.schema"),
        ({"priority": 3}, "--policy priority"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    server: Server, change: dict[str, Any], part: str
) -> None:
    answer = server.post("/v1/chat/completions", **(ASK | change))
    assert answer.status_code == 400 and part in answer.json()["error"]["message"]


# ---------------------------------------------------------------------- forms of text

SCHEMA = {
    "type": "object", "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 8}, "brave": {"type": "boolean"}},
    "required": ["name", "brave"],
}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "hero", "schema": SCHEMA}}


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_has_the_form_that_was_asked_for(client: openai.OpenAI, is_stream: bool) -> None:
    ask: dict[str, Any] = {
        "model": "storyteller", "messages": HELLO, "seed": 2, "max_tokens": 120,
        "response_format": FORM,
    }  # fmt: skip
    if is_stream:
        chunks = list(client.chat.completions.create(stream=True, **ask))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**ask)
        text, reason = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert reason == "stop" and Draft202012Validator(SCHEMA).is_valid(json.loads(text))


def test_other_ways_to_ask_for_a_form(client: openai.OpenAI, server: Server) -> None:
    answer = client.responses.create(
        model="storyteller", input="Hello", max_output_tokens=120,
        text={"format": {"type": "json_schema", "name": "hero", "schema": SCHEMA}},
    )  # fmt: skip
    assert Draft202012Validator(SCHEMA).is_valid(json.loads(answer.output_text))
    body = {"prompt": "Once", "structured_outputs": {"choice": ["yes", "no"]}}
    texts = {c["text"] for c in server.post("/v1/completions", n=4, **body).json()["choices"]}
    assert texts <= {"yes", "no"}
    bad = server.post("/v1/completions", prompt="a", structured_outputs={"regex": "("})
    assert bad.status_code == 400 and "regex" in bad.json()["error"]["message"]


# ---------------------------------------------------------------------- adapters


def test_an_adapter_answers_to_a_name_of_its_own(server: Server) -> None:
    story = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 60}

    def text(model: str) -> str:
        answer = server.post("/v1/completions", model=model, **story)
        assert answer.status_code == 200 and answer.json()["model"] == model, answer.text
        return answer.json()["choices"][0]["text"]

    assert text("pirate") != text("storyteller")
    load = {"lora_name": "polite", "lora_path": str(adapter_path("polite"))}
    assert server.post("/v1/completions", model="polite", **story).status_code == 404
    assert server.post("/v1/load_lora_adapter", **load).status_code == 200
    assert server.post("/v1/load_lora_adapter", **load).status_code == 400, "it is loaded already"
    assert [m["id"] for m in server.client.get("/v1/models").json()["data"]][-1] == "polite"
    assert text("polite") not in (text("storyteller"), text("pirate"))
    assert server.post("/v1/unload_lora_adapter", lora_name="polite").status_code == 200
    assert server.post("/v1/completions", model="polite", **story).status_code == 404
    assert server.post("/v1/unload_lora_adapter", lora_name="polite").status_code == 404


def test_an_adapter_that_is_none(server: Server, tmp_path: Path) -> None:
    for name, path, part in (
        ("x", str(tmp_path / "nothing"), "no adapter folder"),
        ("storyteller", str(adapter_path("polite")), "the model's own name"),
    ):
        answer = server.post("/v1/load_lora_adapter", lora_name=name, lora_path=path)
        error = answer.json()["error"]
        assert answer.status_code == 400 and part in error["message"]
        assert not error["message"].startswith("ValueError")
