"""Asynchronous scheduling: results come one step late, and no token changes.

With `async_scheduling` the engine plans step n + 1 while the device still computes step n. Then the
scheduler does not know yet which token step n has sampled, only *that* it samples one: it counts a
placeholder. The worker knows the token, since it made it.

    one at a time     plan 0   run 0   update 0   plan 1   run 1   update 1   ...
    one step late     plan 0   run 0   plan 1   run 1   update 0   plan 2   run 2   update 1   ...

This serves the same requests in both ways. They must give the same tokens. What may differ is
counted: steps, and tokens that were computed for a request that had ended, as the scheduler learned
one step later. On a CPU nothing is gained, for host and device are the same cores; so the counts
are what is shown, and not the seconds.

    python -m benchmarks.async_scheduling
    python -m benchmarks.async_scheduling --requests 32 --blocks 24
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.bundled import path
from mini_vllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput
from mini_vllm.engine.core import EngineCore
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

STOP_TOKENS = [13, 14, 15, 16]
"""Frequent tokens of the bundled model: many requests end before their limit, unforeseen."""


@dataclass
class Run:
    """What one way of driving the engine has done."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    num_steps: int = 0
    num_scheduled: int = 0
    num_superfluous: int = 0
    """Tokens computed for requests that had ended."""
    num_preemptions: int = 0

    def observe(self, plan: SchedulerOutput, outputs: list[EngineCoreOutput], *_: Any) -> None:
        """Count a step that was taken in; see `mini_vllm.engine.core.StepObserver`."""
        self.num_steps += bool(plan.num_scheduled_tokens)
        self.num_scheduled += plan.total_num_scheduled_tokens
        self.num_preemptions += len(plan.preempted_req_ids)
        gone = plan.num_scheduled_tokens.keys() - self.unfinished
        self.num_superfluous += sum(plan.num_scheduled_tokens[request_id] for request_id in gone)
        for output in outputs:
            self.tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                self.unfinished.remove(output.request_id)

    def __post_init__(self) -> None:
        self.unfinished = set(self.tokens)


def drive(core: EngineCore, requests: Sequence[Request]) -> Run:
    """Serve all requests."""
    run = Run({request.request_id: [] for request in requests})
    core.observers.append(run.observe)
    for request in requests:
        core.add_request(request)
    while core.has_requests():
        core.step()
        core.scheduler.check_integrity()
    return run


def experiment(num_requests: int, num_blocks: int) -> tuple[Run, Run]:
    """The same requests, with one plan on its way and with two."""
    lengths = [5 + 11 * i % 40 for i in range(num_requests)]
    prompts = [
        [256 + (7 * i + 3 * k) % 1500 for k in range(length)] for i, length in enumerate(lengths)
    ]
    runs = []
    for is_late in (False, True):
        config = EngineConfig(
            model=ModelConfig(str(path("storyteller")), dtype="float32"),
            scheduler=SchedulerConfig(
                max_num_batched_tokens=64,
                max_num_seqs=8,
                max_model_len=256,
                async_scheduling=is_late,
            ),
            cache=CacheConfig(block_size=8, num_gpu_blocks=num_blocks),
        )
        requests = [
            Request(f"r{i}", prompt, _params(i), arrival_time=float(i))
            for i, prompt in enumerate(prompts)
        ]
        runs.append(drive(EngineCore(config), requests))
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
