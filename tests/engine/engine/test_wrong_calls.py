"""Calls that cannot be meant so: the error says what was given, and what to give."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm import LLM, AsyncEngineArgs, AsyncLLM


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
