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
    return STARTED.enter_context(running(model=str(MODELS[model]())))


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
