"""Ends a request whose output repeats a pattern.

Source: vllm/v1/core/sched/utils.py#L10-L59 (check_sequence_repetition) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler_output import StopCause
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import RepetitionDetectionParams


def is_repeating(token_ids: Sequence[int], params: RepetitionDetectionParams) -> bool:
    """Whether the output ends in ``min_count`` copies of a pattern of one of the sizes.

    [7, 1, 2, 1, 2, 1, 2], min_count 3: a pattern of size 2, three times
    """
    count = params.min_count
    for size in range(max(params.min_pattern_size, 1), params.max_pattern_size + 1):
        if size * count > len(token_ids):
            return False
        end = token_ids[-size * count :]
        if all(end[index] == end[index % size] for index in range(size, len(end))):
            return True
    return False


class RepetitionDetection(SchedulerExtension):
    """Watches the requests that ask for it; see ``SamplingParams.repetition_detection``."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}

    def request_added(self, request: Request) -> None:
        params = request.sampling_params.repetition_detection
        if params is not None and params.max_pattern_size > 0:
            self.requests[request.request_id] = request

    def tokens_accepted(self, request_id: str, token_ids: list[int]) -> RequestStatus | None:
        """FINISHED_REPETITION as soon as there is one; what lies behind it is cut."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        params = request.sampling_params
        assert params.repetition_detection is not None
        before = len(request.output_token_ids) - len(token_ids)
        for index in range(1, len(token_ids) + 1):
            output = request.output_token_ids[: before + index]
            if len(output) >= params.min_tokens and is_repeating(
                output, params.repetition_detection
            ):
                del token_ids[index:]
                request.stop_reason = StopCause.REPETITION
                return RequestStatus.FINISHED_REPETITION
        return None

    def request_freed(self, request: Request) -> None:
        self.requests.pop(request.request_id, None)

    def reset(self) -> None:
        self.requests.clear()
