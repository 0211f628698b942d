"""What follows a forward pass, in the one order in which it is right.

The engine, the simulator and the trace runner all end their steps here. The order matters: a
request whose images or KV did not arrive must not get the token that was sampled for it, a failed
one must be gone before the stop rules are asked, and drafts are stored only for requests that go
on.

Source: vllm/v1/core/sched/scheduler.py#L1283-L1592 (Scheduler.update_from_output) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.core.extension import SchedulerExtension, overriding
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.errors import RequestFailure
from mini_vllm.request import RequestStatus


def finish_step(
    scheduler: Scheduler, plan: SchedulerOutput, result: ModelRunnerOutput
) -> list[EngineCoreOutput]:
    """Take in what the forward pass of ``plan`` has brought.

    1. every extension gets the step and may throw away a request's tokens (``step_done``);
    2. requests whose part of the step failed end with an error;
    3. new tokens are appended, and the stop rules applied;
    4. every extension sees the tokens that were kept, and may end their request with an error
       (``tokens_accepted``);
    5. drafts for the next step are handed in;
    6. requests whose prompt was pooled end.

    Returns:
        One output for each request that got tokens, prompt logprobs, or ended.
    """
    sampled = result.sampled_token_ids
    for extension in scheduler.extensions:
        for request_id in extension.step_done(plan, result):
            sampled.pop(request_id, None)
    failed = scheduler.fail_requests(plan, result.failed) if result.failed else []
    outputs = scheduler.update_from_output(plan, sampled)
    for output in outputs:
        _complete(output, scheduler, result)
    if listening := overriding(scheduler.extensions, "tokens_accepted"):
        outputs = [_accepted(output, scheduler, plan, listening) for output in outputs]
    if result.draft_token_ids:
        scheduler.update_draft_token_ids(result.draft_token_ids)
    prompts = [  # first, for the same step may end the request
        EngineCoreOutput(request_id, [], prompt_logprobs=logprobs)
        for request_id, logprobs in result.prompt_logprobs.items()
    ]
    return prompts + failed + outputs + _end_pooled(scheduler, result)


def _end_pooled(scheduler: Scheduler, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
    """End requests whose prompt is pooled; nothing follows it.

    Source: vllm/v1/core/sched/scheduler.py#L1411-L1414 (Scheduler.update_from_output) @ v0.22.1
    """
    pooled = result.pooler_output
    if not pooled:
        return []
    ended = [scheduler.requests[i] for i in pooled if i in scheduler.requests]
    scheduler.finish_requests([r.request_id for r in ended], RequestStatus.FINISHED_STOPPED)
    outputs = [EngineCoreOutput.last(request, [], request.status) for request in ended]
    for output in outputs:
        output.pooling_output = pooled[output.request_id]
    return outputs


def _complete(output: EngineCoreOutput, scheduler: Scheduler, result: ModelRunnerOutput) -> None:
    """Add what the stop rules do not know: logprobs, and the counts of a request that goes on."""
    if result.logprobs:
        entries = result.logprobs.get(output.request_id)
        # A stop may have cut the tokens; their logprobs are cut with them.
        output.logprobs = entries[: len(output.new_token_ids)] if entries else entries
    request = scheduler.requests.get(output.request_id)
    if request is not None:
        output.num_cached_tokens = request.num_cached_tokens
        output.num_external_tokens = request.num_external_tokens
        output.num_preemptions = request.num_preemptions


def _accepted(
    output: EngineCoreOutput,
    scheduler: Scheduler,
    plan: SchedulerOutput,
    listening: Sequence[SchedulerExtension],
) -> EngineCoreOutput:
    """Show the new tokens to the extensions; the first that has an answer ends the request."""
    if not output.new_token_ids:
        return output
    request_id = output.request_id
    answers = [
        extension.tokens_accepted(request_id, output.new_token_ids) for extension in listening
    ]
    answer = next((answer for answer in answers if answer is not None), None)
    if answer is None or request_id not in scheduler.requests:
        return output
    if isinstance(answer, RequestStatus):
        if output.logprobs is not None:  # the extension may have cut the tokens
            del output.logprobs[len(output.new_token_ids) :]
        output.stop_reason = scheduler.requests[request_id].stop_reason
        scheduler.finish_requests(request_id, answer)
        output.finish_reason = RequestStatus.get_finished_reason(answer)
        return output
    return scheduler.fail_requests(plan, {request_id: answer})[0]


def end_hopeless(scheduler: Scheduler) -> list[EngineCoreOutput]:
    """End waiting requests that an extension can never make ready, each with its reason."""
    outputs = []
    for extension in scheduler.extensions:
        for request_id, reason in extension.failures().items():
            request = scheduler.requests.get(request_id)
            if request is not None:
                request.failure = RequestFailure.of(reason)
                scheduler.finish_requests(request_id, RequestStatus.FINISHED_ERROR)
                outputs.append(EngineCoreOutput.last(request, [], request.status))
    return outputs
