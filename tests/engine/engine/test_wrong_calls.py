"""Calls that cannot be meant so: the error says what was given, and what to give."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mini_vllm import LLM, AsyncEngineArgs, AsyncLLM, SamplingParams
from mini_vllm.engine.input_processor import InputProcessor


@pytest.mark.parametrize("value", ["a", True, 1.5, 0])
def test_intervals_are_whole_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match=r"stream_interval is .*; it must be a whole number"):
        AsyncEngineArgs("storyteller", stream_interval=value)


@pytest.mark.parametrize("make", [AsyncLLM.from_engine_args, AsyncLLM.from_vllm_config, AsyncLLM])
def test_a_name_is_no_settings(make: Any) -> None:
    with pytest.raises(TypeError, match=r"is 'storyteller'; .*AsyncEngineArgs"):
        make("storyteller")


@pytest.mark.parametrize("messages", ["hello", {"role": "user", "content": "x"}, None])
def test_a_conversation_is_a_list(messages: Any) -> None:
    with pytest.raises(ValueError, match=r"messages is .*; it must be a list such as"):
        LLM.chat(object.__new__(LLM), messages)


@pytest.mark.parametrize("value", [None, {"max_tokens": 4}, SamplingParams])
def test_a_prompt_is_generated_from_with_parameters(value: Any) -> None:
    engine = object.__new__(AsyncLLM)
    engine.input_processor = object.__new__(InputProcessor)

    async def ask() -> None:
        await anext(engine.generate("Once", value, "r"))

    with pytest.raises(ValueError, match=r"sampling_params is .*; it must be a SamplingParams"):
        asyncio.run(ask())


@pytest.mark.parametrize("value", ["delta", "DELTA", None, 7])
def test_kinds_of_output_are_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"output_kind is .*; .* RequestOutputKind\.DELTA, "):
        SamplingParams(output_kind=value)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("storyteller-draft", dtype="float32", max_model_len=64, num_gpu_blocks=16)


@pytest.mark.parametrize("words", [5, [5], [["a"]], [[]], [[300, 2048]], [[-1]]])
def test_words_that_are_no_tokens_are_refused_alone(words: Any, llm: LLM) -> None:
    """In the sampler they would end the step, and with it all other requests."""
    good, bad = (SamplingParams(temperature=0, max_tokens=4) for _ in range(2))
    bad.bad_words_token_ids = words
    served, refused = llm.generate([[200, 201]] * 2, [good, bad], use_tqdm=False)
    assert served.error is None and len(served.outputs[0].token_ids) == 4
    assert refused.error is not None and "bad_words_token_ids" in refused.error


def test_words_may_come_as_tokens(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=4)
    first = llm.generate([[200, 201]], greedy, use_tqdm=False)[0].outputs[0].token_ids[0]
    params = SamplingParams(temperature=0, max_tokens=4, bad_words_token_ids=[[first]])
    assert first not in llm.generate([[200, 201]], params, use_tqdm=False)[0].outputs[0].token_ids


HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        ([None], {}, r"messages is None; it must be a list"),
        ([HELLO, 5], {}, r"messages is 5; it must be a list"),
        ([HELLO, [None]], {}, r"messages\[0\] is None; it must be a mapping such as"),
        ([HELLO, "hello"], {}, r"messages is 'hello'; it must be a list"),
        (HELLO, {"chat_template": 5}, r"chat_template is 5; it must be a text in Jinja"),
        (HELLO, {"tools": 5}, r"tools is 5; it must be a list of mappings"),
        (HELLO, {"tools": [5]}, r"tools is \[5\]; it must be a list of mappings"),
    ],
)
def test_what_is_no_conversation(messages: Any, options: Any, said: str, llm: LLM) -> None:
    with pytest.raises(ValueError, match=said):
        llm.chat(messages, use_tqdm=False, **options)


def test_a_template_is_applied_to_messages(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"messages is 'hello'; it must be a list"):
        llm.apply_chat_template("hello")  # type: ignore[arg-type]


def test_bytes_are_no_prompt(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"the prompt is b'hi'; it must be text"):
        llm.generate(b"hi", use_tqdm=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "template", ["{{", "{% for %}", "{{ x.y.z }}", "{{ 1 / 0 }}", '{{ raise_exception("no") }}']
)
def test_a_template_that_fails_is_blamed(template: str, llm: LLM) -> None:
    own = llm.tokenizer.chat_template
    chat = [{"role": "user", "content": "hi"}]
    with pytest.raises(ValueError, match=r"the chat template fails with .*; mend the template"):
        llm.chat(chat, use_tqdm=False, chat_template=template)
    llm.tokenizer.chat_template = template
    try:
        with pytest.raises(ValueError, match=r"the chat template fails with .*; mend the template"):
            llm.chat(chat, use_tqdm=False)
    finally:
        llm.tokenizer.chat_template = own


def test_text_is_no_list_of_token_ids(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"prompt_token_ids is 'hi'; it must be a list"):
        llm.generate({"prompt_token_ids": "hi"}, use_tqdm=False)
    (output,) = llm.generate({"prompt": "hi", "prompt_token_ids": None}, use_tqdm=False)
    assert output.finished and output.error is None
