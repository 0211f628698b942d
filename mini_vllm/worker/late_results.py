"""Late results: tokens that are sampled, and that only the device has.

With one plan more on its way, the next step is prepared before the host has seen the tokens of the
last one. So a row gets a *cell* for its new token at once, and in the cell stands where the token
is to be found::

    sampled on the device    i        0    1    2
                             token   17    4   99
    token_ids of a row       | 5 8 2 | -2 |            -2 = -(1 + i): what i = 1 has sampled, 4

The step's input ids are looked up on the device (:meth:`LateResults.resolve`). The tokens follow to
the host on a stream of their own, and when the engine asks for them, or a feature needs them, the
cells are settled (:meth:`LateOutput.settle`). Then the next step may be under way already; but
never two, so a cell always points into the newest step's tokens.

Source: vllm/v1/worker/gpu_model_runner.py#L1691-L1795 (GPUModelRunner._prepare_input_ids)
@ v0.22.1. Difference: there all unknown cells are -1, and a map from rows to the last step's rows
says where the tokens are.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.platforms import platform_of
from mini_vllm.worker.input_batch import InputBatch
from mini_vllm.worker.sample_step import Drawn, PromptDrawn, report_drawn, report_prompts

if TYPE_CHECKING:
    from mini_vllm.worker.recorded_head import RecordedHead

UNKNOWN = -1
"""A token of a request's output that the host does not know yet."""


class HostCopy:
    """Tensors on their way to the host, behind the work that was queued before.

    The copy runs on a stream of its own, so that it neither waits for the next step nor holds it
    up. On a CPU there is nothing to wait for; the copy is hidden all the same until it is asked
    for, so that what is late on a GPU is late here, too.

    Source: vllm/v1/worker/gpu_model_runner.py#L236-L310 (AsyncGPUModelRunnerOutput) @ v0.22.1
    """

    def __init__(self, drawn: Drawn | None, prompts: list[PromptDrawn], device: torch.device):
        self.event: Any = None
        streams = platform_of(device).streams
        if streams is None:
            self._drawn, self._prompts = drawn, prompts
            return
        stream = copy_stream(device)
        stream.wait_stream(streams.current_stream(device))
        with streams.stream(stream):
            self._drawn = drawn and drawn.apply(lambda t: _to_host(t, stream))
            self._prompts = [one.apply(lambda t: _to_host(t, stream)) for one in prompts]
            self.event = stream.record_event()

    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self.event is not None and self.event.query()

    def wait(self) -> tuple[Drawn | None, list[PromptDrawn]]:
        if self.event is not None:
            self.event.synchronize()
        return self._drawn, self._prompts


_STREAMS: dict[torch.device, Any] = {}


def copy_stream(device: torch.device) -> Any:
    """The stream of copies to the host; one for each device."""
    if device not in _STREAMS:
        _STREAMS[device] = platform_of(device).streams.Stream(device)
    return _STREAMS[device]


def _to_host(tensor: Tensor, stream: Any) -> Tensor:
    tensor.record_stream(stream)  # its memory is not given away before the copy is made
    return tensor.to("cpu", non_blocking=True)  # into pinned memory


class LateOutput:
    """The answer to one step, before the host has it.

    Args:
        result: what is known already; the rest comes with :meth:`get_output`.
        drawn: what was sampled; None if no row got a token.
        prompts: log probabilities of prompts.

    Source: vllm/v1/outputs.py#L283-L293 (AsyncModelRunnerOutput) @ v0.22.1
    """

    def __init__(
        self,
        batch: InputBatch,
        result: ModelRunnerOutput,
        drawn: Drawn | None,
        prompts: list[PromptDrawn],
        device: torch.device,
    ) -> None:
        self.batch, self.result, self.drawn = batch, result, drawn
        self.places = [] if drawn is None else [len(s.output_token_ids) for s in drawn.states]
        """Of each new token in its request's output."""
        self._copy = HostCopy(drawn, prompts, device)
        self.is_settled = False

    def done(self) -> bool:
        return self.is_settled or self._copy.done()

    def settle(self) -> None:
        """Wait for the tokens, and write them where their cells were reserved."""
        if self.is_settled:
            return
        drawn, prompts = self._copy.wait()
        report_prompts(prompts, self.result)
        if drawn is not None:
            token_ids = drawn.token_ids.tolist()
            report_drawn(drawn, token_ids, self.result)
            self._write(token_ids)
        self.is_settled = True

    def _write(self, token_ids: list[int]) -> None:
        """A request may have lost its row since, or have come back in another one."""
        assert self.drawn is not None
        rows, batch = self.batch.rows, self.batch
        for state, place, token_id in zip(self.drawn.states, self.places, token_ids, strict=True):
            if token_id < 0 or place >= len(state.output_token_ids):
                continue  # the row has failed, or its step was undone
            state.output_token_ids[place] = token_id
            row = batch.req_id_to_row.get(state.req_id)
            if row is not None and rows[row] is state:
                batch.token_ids[row, len(state.prompt_token_ids) + place] = token_id

    def get_output(self) -> ModelRunnerOutput:
        """The whole answer; waits for it."""
        self.settle()
        return self.result


def look_up(input_ids: Tensor, sampled: Tensor) -> Tensor:
    """Input ids ``[T]`` with a token of ``sampled`` in place of each cell that points to one."""
    place = (~input_ids).clamp_(0, len(sampled) - 1)  # ~(-(1 + i)) is i
    return torch.where(input_ids < 0, sampled[place].clamp_(min=0), input_ids)


class LateResults:
    """The steps whose tokens the host may not know yet: the newest, and at most one before it."""

    def __init__(self, batch: InputBatch, device: torch.device) -> None:
        self.batch, self.device = batch, device
        self.on_their_way: deque[LateOutput] = deque()

    def reserve(
        self,
        rows: NDArray[np.int64],
        drawn: Drawn | None,
        prompts: list[PromptDrawn],
        result: ModelRunnerOutput,
    ) -> LateOutput:
        """Give each sampled row a cell for its token, and send the tokens on their way.

        Args:
            rows: ``[B]``, distinct; those of ``drawn.states``.
        """
        output = LateOutput(self.batch, result, drawn, prompts, self.device)
        if drawn is not None:
            batch = self.batch
            batch.token_ids[rows, batch.num_tokens[rows]] = -1 - np.arange(len(rows))
            batch.num_tokens[rows] += 1
            for state in drawn.states:
                state.output_token_ids.append(UNKNOWN)
            self.on_their_way.append(output)
        return output

    def resolve(self, input_ids: Tensor) -> Tensor:
        """Input ids ``[T]`` with a token in place of each cell that points to one.

        A row that has failed holds a negative code instead of a token: any token will do, for what
        is computed of it is dropped.
        """
        self._settle_all_but_newest()
        if not self.on_their_way or self.on_their_way[-1].is_settled:
            return input_ids
        newest = self.on_their_way[-1].drawn
        assert newest is not None
        return look_up(input_ids, newest.token_ids)

    def leave_with(self, head: RecordedHead) -> None:
        """:meth:`resolve` for a recorded step, which looks the tokens up by itself: put them where
        it looks."""
        self._settle_all_but_newest()
        if self.on_their_way and not self.on_their_way[-1].is_settled:
            newest = self.on_their_way[-1].drawn
            assert newest is not None
            head.hold(newest.token_ids)

    def _settle_all_but_newest(self) -> None:
        while len(self.on_their_way) > 1:
            self.on_their_way.popleft().settle()

    def settle(self) -> None:
        """Wait for all tokens, for a feature that has to look at them."""
        while self.on_their_way:
            self.on_their_way.popleft().settle()

    def clear(self) -> None:
        """Drop the results that are on their way: their steps were undone."""
        self.on_their_way.clear()
