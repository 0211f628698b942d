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
