"""What is cut from an output that grows: nothing twice, and nothing lost."""

from __future__ import annotations

import pytest

from mini_vllm.engine.collector import OutputCutter
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import RequestOutputKind


@pytest.mark.history("vllm#41691")
@pytest.mark.parametrize("interval", [1, 2, 3, 5])
def test_an_interval_keeps_no_tail_back(interval: int) -> None:
    """The first token and the end come at once, whatever the interval; the end may be no token."""
    for length in range(1, 2 * interval + 2):
        live = RequestOutput("r", None, [1], outputs=[CompletionOutput(0, "")])
        cutter = OutputCutter(live, "r", RequestOutputKind.DELTA, interval)
        cutter.expect(1)
        texts, tokens, sizes = "", [], []
        for token in range(length):
            grown = live.outputs[0]
            grown.text += f"{token} "
            grown.token_ids.append(token)
            if token == length - 1:
                grown.finish_reason, live.finished = "length", True
            if (output := cutter.cut()) is not None:
                texts += output.outputs[0].text
                tokens += output.outputs[0].token_ids
                sizes.append(len(output.outputs[0].token_ids))
        assert tokens == list(range(length)) and texts == live.outputs[0].text
        assert sizes[0] == 1 and max(sizes) <= interval
        assert cutter.cut() is None, "the end was told"
