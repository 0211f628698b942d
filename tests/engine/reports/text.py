"""Reports about texts, their tokens and their bytes: sent again to a server, or to an LLM."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

import mini_vllm
from mini_vllm import LLM, SamplingParams
from mini_vllm.sampling_params import BeamSearchParams
from tests.engine.entrypoints.server import Server, running

STORYTELLER = Path(mini_vllm.__file__).parent / "bundled" / "storyteller"
STARTED = ExitStack()
"""Servers: one of each kind, for all tests of a process."""
atexit.register(STARTED.close)


@cache
def adds_bos_and_lowers() -> Path:
    """Storyteller with a tokenizer that puts a BOS before a text and writes it in lower case."""
    folder = Path(STARTED.enter_context(tempfile.TemporaryDirectory())) / "bos"
    shutil.copytree(STORYTELLER, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    bos = "<|endoftext|>"
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": bos, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [0], "tokens": [bos]}},
    }
    path.write_text(json.dumps(tokenizer))
    return folder


MODELS = {"storyteller": lambda: STORYTELLER, "adds BOS and lowers": adds_bos_and_lowers}


@cache
def server(model: str = "storyteller") -> Server:
    return STARTED.enter_context(
        running("--enable-tokenizer-info-endpoint", model=str(MODELS[model]()))
    )


def events(text: str) -> list[Any]:
    """The events of a stream; the last must be [DONE]."""
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def refusal(given: dict[str, Any]) -> dict[str, Any]:
    """Status, ``param`` and message of what a body is answered with."""
    answer = server().post(given["path"], **given["body"])
    error = answer.json()["error"]
    return {"status": answer.status_code, "param": error["param"], "message": error["message"]}


def refused_field(given: dict[str, Any]) -> dict[str, Any]:
    found = refusal(given)
    return {name: found[name] for name in ("status", "param")}


def refusal_of_words(given: dict[str, Any]) -> dict[str, Any]:
    """The same for a prompt of many words; of the message as much as stays the same."""
    found = refusal({"path": given["path"], "body": _with_words(given)})
    message = found.pop("message")
    return found | {"begins": message[: message.index("contains") + len("contains")]}


def usage(given: dict[str, Any]) -> dict[str, int]:
    """Tokens of prompt and output, as the answer counts them."""
    answer = server().post(given["path"], **given["body"]).json()
    assert "usage" in answer, answer
    counts = answer["usage"]
    return {
        "prompt_tokens": counts.get("prompt_tokens", counts.get("input_tokens")),
        "completion_tokens": counts.get("completion_tokens", counts.get("output_tokens")),
    }


def usage_of_words(given: dict[str, Any]) -> dict[str, int]:
    return usage({"path": given["path"], "body": _with_words(given)})


def _with_words(given: dict[str, Any]) -> dict[str, Any]:
    """A body whose prompt has that many words."""
    text = "time " * given["words"]
    messages = [{"role": "user", "content": text}]
    name, value = {
        "/v1/completions": ("prompt", text),
        "/v1/chat/completions": ("messages", messages),
        "/v1/responses": ("input", text),
    }[given["path"]]
    return {name: value, **given["body"]}


@cache
def llm() -> LLM:
    return LLM(str(STORYTELLER), dtype="float32", max_model_len=256, num_gpu_blocks=64)


def offline_refusal(given: dict[str, Any]) -> str:
    params = SamplingParams(max_tokens=given["max_tokens"])
    return _refused(lambda: llm().generate([5] * given["words"], params, use_tqdm=False))


def offline_refusal_of_beams(given: dict[str, Any]) -> str:
    params = BeamSearchParams(2, given["max_tokens"])
    return _refused(lambda: llm().beam_search([[5] * given["words"]], params))


def _refused(call: Callable[[], Any]) -> str:
    try:
        answer = call()
    except ValueError as error:
        return str(error)
    return f"not refused: {answer}"


def offline_lengths(given: dict[str, Any]) -> dict[str, Any]:
    params = SamplingParams(max_tokens=given["max_tokens"], ignore_eos=True)
    (output,) = llm().generate([5] * given["words"], params, use_tqdm=False)
    (one,) = output.outputs
    return {"num_tokens": len(one.token_ids), "finish_reason": one.finish_reason}


def whole_and_streamed(path: str, body: dict[str, Any], model: str = "storyteller") -> list[Any]:
    """The choices of a whole answer; those of a streamed one, put together, must be the same.

    Only text, logprobs, token ids and reasons are looked at.
    """
    whole = server(model).post(path, **body)
    assert whole.status_code == 200, whole.text
    answer = whole.json()
    choices = [_facts(choice) for choice in answer["choices"]]
    usage = {"stream_options": {"include_usage": True}}
    chunks = events(server(model).post(path, stream=True, **usage, **body).text)
    assert chunks[-1]["usage"] == answer["usage"]
    joined: dict[int, Any] = {}
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            facts = _facts(choice)
            before = joined.setdefault(choice["index"], facts)
            if before is not facts:
                _join(before, facts)
    assert [joined[index] for index in sorted(joined)] == choices
    return [choice | {"usage": answer["usage"]} for choice in choices]


def _facts(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice.get("message") or choice.get("delta") or {}
    logprobs = choice.get("logprobs")
    return {
        "text": choice.get("text", message.get("content")) or "",
        "logprobs": {name: logprobs[name] or [] for name in logprobs} if logprobs else {},
        "token_ids": choice.get("token_ids") or [],
        "finish_reason": choice.get("finish_reason"),
    }


def _join(before: dict[str, Any], later: dict[str, Any]) -> None:
    before["text"] += later["text"]
    before["token_ids"] += later["token_ids"]
    before["finish_reason"] = before["finish_reason"] or later["finish_reason"]
    for name, values in later["logprobs"].items():
        before["logprobs"][name] = before["logprobs"].get(name, []) + values


def chat_bytes(given: dict[str, Any]) -> dict[str, Any]:
    """A chat's text, and what the bytes of its tokens are, joined; without the token that ends."""
    messages = [{"role": "user", "content": "Say it"}]
    body = {"messages": messages, "logprobs": True, "top_logprobs": 3, "temperature": 0, **given}
    (choice,) = whole_and_streamed("/v1/chat/completions", body)
    content = choice["logprobs"]["content"]
    if choice["finish_reason"] == "stop":
        content = content[:-1]
    assert all(entry["bytes"] == entry["top_logprobs"][0]["bytes"] for entry in content)
    return {
        "text": choice["text"],
        "bytes": b"".join(bytes(entry["bytes"]) for entry in content).decode(),
        "tokens": "".join(entry["token"] for entry in content),
        "has_parts": any(entry["token"] == "" for entry in content),
    }


def places(given: dict[str, Any]) -> dict[str, Any]:
    """A completion's text, and the pieces that its offsets cut it into."""
    body = {"logprobs": 2, "temperature": 0, **given["body"]}
    model = given.get("model", "storyteller")
    (choice,) = whole_and_streamed("/v1/completions", body, model)
    text, begins = choice["text"], choice["logprobs"]["text_offset"]
    ends = [*begins[1:], len(text)]
    return {
        "text": text,
        "pieces": [text[begin:end] for begin, end in zip(begins, ends, strict=True)],
        "tokens": choice["logprobs"]["tokens"],
    }


def echo(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Text, tokens and counts of each choice, whole and streamed."""
    body = {"temperature": 0, "echo": True, "return_token_ids": True, **given["body"]}
    choices = whole_and_streamed("/v1/completions", body, given.get("model", "storyteller"))
    return [
        {
            "text": choice["text"],
            "num_ids": len(choice["token_ids"]),
            "counted": choice["usage"]["completion_tokens"],
            "finish_reason": choice["finish_reason"],
        }
        for choice in choices
    ]


def named_tokens(given: dict[str, Any]) -> list[int]:
    """The token ids whose logprobs come back for the last token of an answer."""
    body = {"max_tokens": 2, "return_tokens_as_token_ids": True, "return_token_ids": True}
    body |= {"temperature": 0, "ignore_eos": True, **given["body"]}
    (choice,) = whole_and_streamed(given["path"], body)
    found = choice["logprobs"]
    last = found["content"][-1] if "content" in found else found["top_logprobs"][-1]
    tops = last["top_logprobs"] if "content" in found else [{"token": name} for name in last]
    ids = {int(top["token"].removeprefix("token_id:")) for top in tops}
    return sorted(ids - {choice["token_ids"][-1]} | ids & set(body["logprob_token_ids"]))


def offline_names(given: dict[str, Any]) -> dict[str, Any]:
    """The text of ``LLM.generate`` and the names of its tokens, and of the prompt's."""
    params = SamplingParams(
        temperature=0, max_tokens=20, logprobs=1, prompt_logprobs=1,
        structured_outputs={"choice": [given["choice"]]},
    )  # fmt: skip
    (output,) = llm().generate(given["prompt"], params, use_tqdm=False)
    (one,) = output.outputs
    names = [entry[i].decoded_token for i, entry in zip(one.token_ids, one.logprobs, strict=True)]
    prompt = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    of_prompt = [entry[i].decoded_token for i, entry in prompt if entry is not None]
    if one.finish_reason == "stop":
        names.pop()
    return {"text": one.text, "names": "".join(names), "of_prompt": "".join(of_prompt)}


def tokenizer_info(given: dict[str, Any]) -> dict[str, Any]:
    """Some of the tokenizer's settings, those that are there."""
    found = server().client.get("/tokenizer_info").json()
    return {name: found[name] for name in given["names"] if name in found}


def as_lm_eval(given: dict[str, Any]) -> dict[str, Any]:
    """What lm-eval's remote tokenizer does with a server: special tokens, ids, a chat as text."""
    info = server().client.get("/tokenizer_info").json()

    def encode(text: str) -> list[int]:
        answer = server().post("/tokenize", prompt=text, add_special_tokens=False)
        return answer.json()["tokens"]

    text = server().post("/detokenize", tokens=encode(given["text"])).json()["prompt"]
    template = jinja2.Environment().from_string(info["chat_template"])
    messages = [{"role": "user", "content": "Hi"}]
    chat = template.render(messages=messages, add_generation_prompt=True)
    eos = info["eos_token"]
    return {"eos": eos, "eos_id": encode(eos)[0], "text": text, "chat": chat}
