"""Asynchronous scheduling as an experiment: results come one step late, and no token changes.

vLLM plans step n + 1 while the device still computes step n. Then the scheduler does not know yet
which token step n has sampled, only *that* it samples one: it counts a placeholder. The worker
knows the token, since it made it. This does the same with our own scheduler, worker and bundled
model: two small classes around `Request` and `Scheduler`, and a loop with two plans on their way.

    one at a time     plan 0   run 0   update 0   plan 1   run 1   update 1   ...
    one step late     plan 0   run 0   plan 1   run 1   update 0   plan 2   run 2   update 1   ...

Both runs must give the same tokens. What may differ is counted: steps, and tokens that were
computed for a request that had ended, as the scheduler learned one step later.

    python -m benchmarks.async_scheduling
    python -m benchmarks.async_scheduling --requests 32 --blocks 24
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mini_vllm.bundled import path
from mini_vllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.engine.core import EngineCore
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

STOP_TOKENS = [13, 14, 15, 16]
"""Frequent tokens of the bundled model: many requests end before their limit, unforeseen."""


class LateRequest(Request):
    """A request that may have been sampled for, without the scheduler knowing the token.

    Source: vllm/v1/request.py#L141-L142 (num_output_placeholders) @ v0.22.1
    """

    num_output_placeholders = 0

    @property
    def num_tokens_with_spec(self) -> int:
        """Known tokens and placeholders, up to the last one that is worth computing.

        The token after the last permitted one is never asked for, and that can be known ahead.
        Source: vllm/v1/core/sched/scheduler.py#L369-L383 (Scheduler.schedule) @ v0.22.1
        """
        wanted = super().num_tokens_with_spec + self.num_output_placeholders
        if self.max_tokens is None:
            return wanted
        return min(wanted, self.num_prompt_tokens + self.max_tokens - 1)


class LateScheduler(Scheduler):
    """Plans a step before it has heard of the one before.

    Source: vllm/v1/core/sched/async_scheduler.py#L12-L61 (AsyncScheduler) @ v0.22.1
    """

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        for request_id in plan.num_scheduled_tokens:
            request = self.requests[request_id]
            assert isinstance(request, LateRequest)
            if request.num_computed_tokens >= request.num_tokens:  # this step samples
                request.num_output_placeholders += 1
        return plan

    def _check_progress(self, step: StepPlan) -> None:
        """An empty plan is no dead end: a result is still on its way."""

    def update_from_output(
        self, output: SchedulerOutput, sampled_token_ids: Mapping[str, list[int]]
    ) -> list[EngineCoreOutput]:
        for request_id, tokens in sampled_token_ids.items():
            request = self.requests.get(request_id)
            if isinstance(request, LateRequest):
                request.num_output_placeholders -= len(tokens)
        outputs = super().update_from_output(output, sampled_token_ids)
        for request_id in sampled_token_ids:
            request = self.requests.get(request_id)
            if request is not None and request.status == RequestStatus.RUNNING:
                self._publish(request)
        return outputs

    def _publish(self, request: Request) -> None:
        """A block whose last token has just become known can be found from now on."""
        manager = self.kv_cache_manager
        if self.cache_config.enable_prefix_caching:
            num_known = min(request.num_computed_tokens, request.num_tokens)
            num_full = num_known // manager.block_size
            if num_full > manager.num_cached_blocks[request.request_id]:
                manager.cache_blocks(request, num_full)


@dataclass
class Run:
    """What one way of driving the engine has done."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    num_steps: int = 0
    num_scheduled: int = 0
    num_superfluous: int = 0
    """Tokens computed for requests that had ended."""
    num_preemptions: int = 0


def drive(core: EngineCore, requests: Sequence[Request], most_on_their_way: int) -> Run:
    """Serve all requests; at most so many plans are started before the oldest is taken in."""
    run = Run({request.request_id: [] for request in requests})
    for request in requests:
        core.add_request(request)
    on_their_way: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
    while core.has_requests() or on_their_way:
        if core.has_requests():
            plan = core.scheduler.schedule()
            core.executor.execute_model(plan)
            on_their_way.append((plan, core.executor.sample_tokens(None).result()))
            run.num_steps += bool(plan.num_scheduled_tokens)
            run.num_scheduled += sum(plan.num_scheduled_tokens.values())
            run.num_preemptions += len(plan.preempted_req_ids)
            if plan.num_scheduled_tokens and len(on_their_way) < most_on_their_way:
                continue
        plan, result = on_their_way.popleft()
        ended = plan.num_scheduled_tokens.keys() - core.scheduler.requests.keys()
        run.num_superfluous += sum(plan.num_scheduled_tokens[request_id] for request_id in ended)
        for output in finish_step(core.scheduler, plan, result):
            run.tokens[output.request_id] += output.new_token_ids
        core.scheduler.check_integrity()
    return run


def experiment(num_requests: int, num_blocks: int) -> tuple[Run, Run]:
    """The same requests, with one plan on its way and with two."""
    lengths = [5 + 11 * i % 40 for i in range(num_requests)]
    prompts = [
        [256 + (7 * i + 3 * k) % 1500 for k in range(length)] for i, length in enumerate(lengths)
    ]
    runs = []
    for most_on_their_way, scheduler_cls, request_cls in (
        (1, Scheduler, Request),
        (2, LateScheduler, LateRequest),
    ):
        config = EngineConfig(
            model=ModelConfig(str(path("storyteller")), dtype="float32"),
            scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=256),
            cache=CacheConfig(block_size=8, num_gpu_blocks=num_blocks),
        )
        core = EngineCore(config, scheduler_cls=scheduler_cls)
        requests = [
            request_cls(f"r{i}", prompt, _params(i), arrival_time=float(i))
            for i, prompt in enumerate(prompts)
        ]
        runs.append(drive(core, requests, most_on_their_way))
    return runs[0], runs[1]


def _params(number: int) -> SamplingParams:
    """Half of the requests are greedy, half have a seed; some stop early, some at their limit."""
    temperature = 0.0 if number % 2 else 1.0
    stop = STOP_TOKENS if number % 3 else None
    return SamplingParams(
        temperature=temperature, seed=number, max_tokens=12 + number % 9, stop_token_ids=stop
    )


def table(plain: Run, late: Run) -> str:
    """Both runs side by side."""
    rows = [("", "one at a time", "one step late")]
    rows += [
        (name, f"{getattr(plain, key):,}", f"{getattr(late, key):,}")
        for name, key in (
            ("steps", "num_steps"),
            ("tokens computed", "num_scheduled"),
            ("of them for requests that had ended", "num_superfluous"),
            ("preemptions", "num_preemptions"),
        )
    ]
    made = sum(map(len, plain.tokens.values()))
    same = "the same" if plain.tokens == late.tokens else "DIFFERENT"
    rows.append(("tokens of output", f"{made:,}", same))
    return "\n".join(f"{name:38}{a:>15}{b:>15}" for name, a, b in rows)


def main(argv: Sequence[str]) -> int:
    """Run both and compare; see the module's docstring. 1 if a token differs."""
    parser = argparse.ArgumentParser(
        "async_scheduling", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--blocks", type=int, default=33, help="of 8 tokens; few: preemptions")
    options = parser.parse_args(argv)
    plain, late = experiment(options.requests, options.blocks)
    print(table(plain, late))
    return 0 if plain.tokens == late.tokens else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
