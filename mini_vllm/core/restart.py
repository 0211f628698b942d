"""Undo an interrupted step: keep the requests, and rebuild everything else from them.

Ctrl-C strikes at any line. Then a block may be findable that was not computed, a request may
be in no queue or in two, and a token may be in a request that no caller was told of. To undo that
line by line would take a case for every line. But a request *is* its tokens; all the rest was
made from them, and can be made from them again::

    kept      unfinished requests, in order of arrival, with the tokens that were handed out
    rebuilt   queues, block tables, prefix cache, what extensions hold, the worker's rows

So an interrupted step ends as if all requests had been preempted. It costs their prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request, RequestStatus


@dataclass(slots=True)
class Checkpoint:
    """What there was before a step: all that is needed to undo it."""

    requests: dict[str, Request]
    """The unfinished ones, in order of arrival."""
    num_output_tokens: dict[str, int] = field(default_factory=dict)
    """Of those that a forward pass has computed, before they get its tokens."""


def restart(scheduler: Scheduler, fresh: Scheduler, checkpoint: Checkpoint) -> None:
    """Make ``scheduler`` like the new one ``fresh``, with the requests of ``checkpoint``.

    It stays the same object. Requests that the step has finished are unfinished again.
    """
    fresh.pause_state = scheduler.pause_state
    fresh.kv_cache_manager.prefix_cache_stats = scheduler.kv_cache_manager.prefix_cache_stats
    vars(scheduler).update(vars(fresh))
    for extension in scheduler.extensions:
        extension.reset()
    for request_id, request in checkpoint.requests.items():
        rewind(request, checkpoint.num_output_tokens.get(request_id, request.num_output_tokens))
        scheduler.add_request(request)


def rewind(request: Request, num_output_tokens: int) -> None:
    """Let a request wait with its first ``num_output_tokens`` tokens of output, all to compute.

    A worker keeps the output of the requests that it knows. So a request with output counts as
    preempted: the plan that resumes it then brings the output again.
    """
    del request.output_token_ids[num_output_tokens:]
    request.all_token_ids = [*request.prompt_token_ids, *request.output_token_ids]
    request.status = RequestStatus.WAITING  # whatever it was, even finished
    request.stop_reason = request.failure = None
    request.spec_token_ids = []
    request.num_computed_tokens = 0
    if num_output_tokens:
        request.num_preemptions = max(request.num_preemptions, 1)
