"""A request is checked once: its parameters when they are made, its prompt when it comes in."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts.limits import PromptLimits


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    found = dict.fromkeys(("__post_init__", "check"), 0)
    for cls, name in ((SamplingParams, "__post_init__"), (PromptLimits, "check")):
        original = getattr(cls, name)

        def counting(*args: Any, _original: Any = original, _name: str = name) -> None:
            found[_name] += 1
            _original(*args)

        monkeypatch.setattr(cls, name, counting)
    return found


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(model="storyteller", dtype="float32", max_model_len=128, num_gpu_blocks=64)


@pytest.mark.parametrize("n", [1, 3])
def test_offline(llm: LLM, counts: dict[str, int], n: int) -> None:
    llm.generate("Once", SamplingParams(max_tokens=2, n=n), use_tqdm=False)
    assert counts == {"__post_init__": 1, "check": 1}


def test_what_was_set_later_is_checked_when_the_request_comes(
    llm: LLM, counts: dict[str, int]
) -> None:
    params = SamplingParams(max_tokens=2)
    params.top_p = 7
    with pytest.raises(ValueError, match="top_p is 7; it must be above 0 and at most 1"):
        llm.generate("Once", params, use_tqdm=False)
    params = SamplingParams(max_tokens=2, stop=["x"])
    assert isinstance(params.stop, list)
    params.stop.append("")
    with pytest.raises(ValueError, match="stop holds an empty string"):
        llm.generate("Once", params, use_tqdm=False)
    assert counts["__post_init__"] == 4
