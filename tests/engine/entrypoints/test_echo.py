"""What an echo shows and counts, without a server; with one: `tests/corpora/reports` 14 and 15."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mini_vllm.entrypoints.openai.completion import Answer, ChoiceWriter, _as_sent
from mini_vllm.entrypoints.openai.protocol import CompletionRequest
from mini_vllm.inputs import num_ids, text_of
from mini_vllm.outputs import CompletionOutput, RequestOutput


def answer_to(**body: Any) -> Answer:
    shouts = SimpleNamespace(decode=lambda ids: "<bos>ONCE")
    state: Any = SimpleNamespace(engine=SimpleNamespace(tokenizer=shouts), vocabulary=None)
    request = CompletionRequest(echo=True, **body)
    return Answer(state, request, "cmpl-1", "model", streams=[], n=1)


def test_bug_vllm_57996_an_echo_is_the_text_that_was_sent() -> None:
    for more in ({}, {"return_token_ids": True}):
        answer = answer_to(prompt="Once", **more)
        prompt = _as_sent("Once", [0, 7], None)
        output = RequestOutput("x", text_of(prompt), [0, 7], outputs=[])
        writer = ChoiceWriter(answer)
        texts = [writer.write(output, CompletionOutput(0, text))[0] for text in (" upon", " a")]
        assert texts == ["Once upon", " a"]


def test_an_echo_of_token_ids_is_what_they_are_decoded_to() -> None:
    prompt = _as_sent([0, 7], [0, 7], "salt")
    assert (text_of(prompt), num_ids(prompt)) == (None, 2)
    output = RequestOutput("x", text_of(prompt), [0, 7], outputs=[])
    assert ChoiceWriter(answer_to(prompt=[0, 7])).write(output, CompletionOutput(0)) == (
        "<bos>ONCE", None,
    )  # fmt: skip


def test_bug_vllm_6521_a_token_that_was_not_requested_is_not_returned() -> None:
    made = CompletionOutput(2, " x", [9], -1.0, [{}], "stop", 9)
    told = answer_to(prompt="Once", max_tokens=0).asked_for(made)
    assert told == CompletionOutput(2, "", [], None, [], "length", None)
    running = answer_to(prompt="Once", max_tokens=0).asked_for(CompletionOutput(0))
    assert running.finish_reason is None
    assert answer_to(prompt="Once", max_tokens=1).asked_for(made) is made
