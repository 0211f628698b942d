"""`labkit rooms --route`: which functions of the engine one plain request passes, in what order.

`docs/map.md` names twelve of them, its stops. A test records the route and holds them there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

PROMPT = "Once upon a time"
OUTPUT_TOKENS = 3


@dataclass(frozen=True)
class Call:
    """A function of the engine that was called: its file below `mini_vllm/`, and its name."""

    file: str
    function: str


def record(run: Callable[[], Any]) -> list[Call]:
    """The engine's functions that `run` calls in this thread, in order.

    Raises whatever `run` raises.
    """
    import mini_vllm

    engine = str(Path(mini_vllm.__file__).parent) + "/"
    calls: list[Call] = []

    def see(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(engine):
            calls.append(Call(code.co_filename.removeprefix(engine), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls


def of_one_request() -> list[Call]:
    """The route of one greedy request, the first of its engine."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM("storyteller-draft", dtype="float32", max_model_len=128, num_gpu_blocks=32)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS)
    return record(lambda: llm.generate([PROMPT], params, use_tqdm=False))


def show(calls: list[Call]) -> str:
    """How long the route is, in one line."""
    hops = sum(a.file != b.file for a, b in pairwise(calls))
    files = {call.file for call in calls}
    return (
        f"one request of {OUTPUT_TOKENS} tokens: {len(calls)} calls of {len(set(calls))} functions "
        f"in {len(files)} files, {hops} changes of file"
    )
