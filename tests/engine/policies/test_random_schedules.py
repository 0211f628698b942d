"""Every policy under random schedules: T-CONS, T-REF, T-HASH, T-PROG, T-STOP on shadow KV.

The state machine is that of the core's tests: requests arrive, are aborted, also while the model
runs, forward passes fail, the prefix cache is reset. ``check_integrity`` runs after every step.
Here requests also come in groups, the completions of one prompt, whose tokens differ.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis.stateful import rule

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.policies import POLICIES
from mini_vllm.policies.v0_plan import PreemptionMode, V0Options
from mini_vllm.policies.vllm_v0 import VllmV0
from tests.engine.core.build import make_request
from tests.engine.core.shadow import VOCAB_SIZE
from tests.engine.core.test_scheduler_properties import Arrival, SchedulerMachine, run_schedules
from tests.engine.policies.build import PolicyEngine

NUM_SCHEDULES = 40
SWAP, RECOMPUTE = PreemptionMode.SWAP, PreemptionMode.RECOMPUTE
OPTIONS = {
    "vllm-v0, swap": V0Options(preemption_mode=SWAP),
    "vllm-v0, recompute": V0Options(preemption_mode=RECOMPUTE),
    "vllm-v0, artificial": V0Options(preemption_mode=SWAP, artificial_preemptions=20),
    "vllm-v0, multi-step": V0Options(num_scheduler_steps=3, delay_factor=0.5),
    "vllm-v0-chunked, swap": V0Options(preemption_mode=SWAP),
    "vllm-v0-chunked, multi-step": V0Options(num_scheduler_steps=2),
}
SUBJECTS = [*POLICIES, *OPTIONS]
COUNTS: Counter[str] = Counter()


def policy_of(subject: str) -> str:
    return subject.partition(",")[0]


def new_scheduler(subject: str) -> Callable[..., Scheduler]:
    policy: Callable[..., Scheduler] = POLICIES[policy_of(subject)]
    return partial(policy, options=OPTIONS[subject]) if subject in OPTIONS else policy


class PolicyMachine(SchedulerMachine):
    """One random schedule of one policy."""

    subject: str
    engine: PolicyEngine

    def make_engine(
        self, config: SchedulerConfig, cache: CacheConfig, num_drafts: int
    ) -> PolicyEngine:
        cls = POLICIES[policy_of(self.subject)]
        if cls is not Scheduler:
            config = replace(config, long_prefill_token_threshold=0)
        if issubclass(cls, VllmV0):
            config = replace(config, enable_chunked_prefill=cls.chunked)
        if cls is not Scheduler and config.max_num_batched_tokens < 5:
            config = replace(config, max_num_batched_tokens=20)  # or most prompts are refused
        num_cpu_blocks = config.max_num_seqs * 3  # 3 to 18: too few, or enough
        cache = replace(cache, num_cpu_blocks=num_cpu_blocks)
        return PolicyEngine(new_scheduler(self.subject), config, cache, [self.grammars], num_drafts)

    def add(self, arrival: Arrival) -> None:
        """Now and then a group of three: one prompt, three lengths."""
        if arrival.family == 0 or arrival.split < 6:
            super().add(arrival)
            return
        number = len(self.engine.expected)
        for index in range(3):
            request = arrival.request(str(number), number / 2, self.engine.scheduler.max_model_len)
            request.request_id = f"{index}_g{number}"
            self.engine.add(request)
        COUNTS["groups"] += 1

    def pick(self, which: int) -> str:
        """A request, or the whole group that it belongs to."""
        ids = list(self.engine.expected)
        name = ids[which % len(ids)]
        return name.partition("_")[2] or name if which % 2 else name

    @rule()
    def reset_prefix_cache(self) -> None:
        """Not while requests hold KV, be it on the host."""
        scheduler = self.engine.scheduler
        done = scheduler.reset_prefix_cache()
        assert done == (not scheduler.running and not self.engine.swapped())
        assert not done or not scheduler.kv_cache_manager.block_pool.cached_blocks
        self.engine.check_state()

    def give_up(self) -> None:
        if self.subject != "vllm-v1":
            raise AssertionError("a policy stalled") from None
        super().give_up()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "engine"):
            COUNTS.update(self.engine.counts)


@pytest.mark.parametrize("name", SUBJECTS)
def test_random_schedules_keep_every_rule(name: str) -> None:
    COUNTS.clear()
    machine = type("Machine", (PolicyMachine,), {"subject": name})
    run_schedules(machine, NUM_SCHEDULES)
    print(f"{name}: {dict(COUNTS)}")
    least = dict.fromkeys(("prefix hits", "aborted", "groups", "FINISHED_STOPPED"), 5)
    least |= {"failed": 1}
    if "static" not in name:
        least |= {"preempted": 30, "resumed": 30}
    if "v0" in name and "recompute" not in name:
        least |= {"swapped out": 5, "swapped in": 5}
    if name in ("nano-vllm", "vllm-v0-chunked", "vllm-v1"):
        least |= {"partial prefills": 30}
    missing = {key: COUNTS[key] for key, number in least.items() if COUNTS[key] < number}
    assert not missing, f"too rarely exercised: {missing}, wanted {least}"


@pytest.mark.parametrize("name", [name for name in SUBJECTS if "v0" in name])
def test_random_groups_fork_swap_and_end_apart(name: str) -> None:
    """Groups of up to four completions of several lengths, in a pool for about two groups."""
    counts: Counter[str] = Counter()
    budget = 12 if "chunked" in name and "multi-step" not in name else 48
    for seed in range(20):
        draw = random.Random(seed)
        config = SchedulerConfig(budget, 8, 40, policy=draw.choice(["fcfs", "priority"]))
        cache = CacheConfig(4, draw.choice([14, 18, 24]), draw.random() < 0.7, num_cpu_blocks=40)
        engine = PolicyEngine(new_scheduler(name), config, cache)
        for number in range(5):
            prompt = [draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(1, 18))]
            priority = draw.randrange(3)
            for index in range(draw.randint(1, 4)):
                max_tokens = draw.choice([2, 9, 20])
                request_id = f"{index}_{number}"
                engine.add(make_request(request_id, prompt, max_tokens, priority, float(number)))
            for _ in range(draw.randrange(6)):
                engine.step()
            if draw.random() < 0.2:
                engine.abort(str(draw.randrange(number + 1)))
            elif draw.random() < 0.2:
                engine.failing_step()
        engine.drain()
        counts.update(engine.counts)
    print(f"{name}: {dict(counts)}")
    assert counts["copies"] >= 40 and counts["preempted"] >= 50 and counts["aborted"] >= 5
    assert counts["failed"] >= 5
    assert (counts["swapped in"] >= 20) == ("recompute" not in name)
