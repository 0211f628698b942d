"""What crosses a process is plain data: it comes back equal from msgspec, types and all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import (
    CachedRequestData,
    EngineCoreOutput,
    GrammarOutput,
    LogprobsEntry,
    ModelRunnerOutput,
    NewRequestData,
    PromptLogprobs,
    RequestTimes,
    SchedulerOutput,
    SchedulerStats,
)
from mini_vllm.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0.5, stop=["x"], logit_bias={3: 1.0}, seed=7, max_tokens=4)
ENTRY = LogprobsEntry([3, 1], [-0.5, -1.5], 2)
PROMPT = PromptLogprobs(1, [ENTRY])
MESSAGES = [
    EngineCoreRequest("r0", [1, 2], PARAMS, 0, 1.5, priority=1, cache_salt="s"),
    SchedulerOutput(
        [NewRequestData("r0", [1, 2], PARAMS, None, [3], 0, "adapter")],
        CachedRequestData(["r1"], [4], {"r1"}, {"r1": [5, 6]}),
        {"r0": 2, "r1": 1},
        3,
        {"r1": [9]},
        {"r0": [3]},
        ["r2"],
        {"r3"},
        blocks_to_copy=[(1, 2)],
    ),
    GrammarOutput({"r0": (0, 2)}, b"\x01\x02\x03\x04"),
    ModelRunnerOutput({"r0": [1]}, {"r0": [ENTRY]}, {"r1": PROMPT}, {"r0": [4]}, {"r2": "NaN"}),
    EngineCoreOutput("r0", [1], "stop", 3, [ENTRY], PROMPT, 16, 2, RequestTimes(1.0, 2.0, 3.0)),
    SchedulerStats(1, 2, 0.5, 30, 20),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Any) -> None:
    wire = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(wire, type=type(message)) == message
