"""Random schedules: whatever arrives, in whatever order, the rules of the engine hold.

A Hypothesis state machine adds requests, aborts them (also while the model runs), lets forward
passes fail, resets the prefix cache and proposes drafts. Every step runs on shadow KV
(:mod:`tests.engine.core.shadow`), which checks after each of them:

- **T-CONS**: every request is in exactly one place, and its status says which;
- **T-REF**: reference counts equal the block tables; free and used blocks make up the pool;
- **T-HASH**: what is findable by a hash is computed, and is what the hash says;
- **T-BUD**: the budget and ``max_num_seqs`` are kept, and every scheduled request computes;
- **T-STOP**, **T-INV**: the output is that of the request alone, to the token and the status.

**T-PROG** comes last: when arrivals end, everything finishes in a bounded number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import NoProgressError
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams
from tests.engine.core.shadow import VOCAB_SIZE, ShadowEngine

NUM_SCHEDULES = 2_000
EOS = 3

COUNTS: Counter[str] = Counter()
"""What the schedules of this process have exercised."""


@dataclass(frozen=True)
class Arrival:
    """A request to come. Prompts of one family share a prefix up to ``split``."""

    family: int
    length: int
    split: int
    max_tokens: int | None
    min_tokens: int
    priority: int
    flags: int
    """Bits: 1 ignore EOS, 2 an adapter, 4 prompt logprobs, 8 waits for a grammar, 16 may stop."""

    def request(self, request_id: str, arrival: float, max_model_len: int) -> Request:
        length = min(self.length, max_model_len - 1)
        salt = 0 if self.split >= 8 else int(request_id)
        prompt = [
            (self.family * 5 + i * i + (salt if i >= self.split else 0)) % VOCAB_SIZE
            for i in range(length)
        ]
        max_tokens = self.max_tokens
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            min_tokens=min(self.min_tokens, max_tokens or self.min_tokens),
            stop_token_ids=[5] if self.flags & 16 else [],
            ignore_eos=bool(self.flags & 1),
            prompt_logprobs=0 if self.flags & 4 else None,
        )
        request = Request(
            request_id, prompt, params, self.priority, arrival, EOS,
            lora_name="a" if self.flags & 2 else None,
        )  # fmt: skip
        if self.flags & 8:
            request.transition_to(RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
        return request


class Grammars(SchedulerExtension):
    """Requests that wait for a grammar are ready when ``ready`` says so."""

    def __init__(self) -> None:
        self.ready = False

    def is_ready(self, request: Request) -> bool:
        return self.ready


ARRIVALS = st.builds(
    Arrival,
    family=st.integers(0, 1),
    length=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 12, 16]),
    split=st.integers(0, 12),
    max_tokens=st.sampled_from([None, 1, 4, 8, 12, 16]),
    min_tokens=st.sampled_from([0, 0, 0, 2, 6]),
    priority=st.integers(0, 2),
    flags=st.sampled_from([1, 1, 1, 1, 0, 3, 5, 9, 16]),
)
SCHEDULER_CONFIGS = st.builds(
    SchedulerConfig,
    max_num_batched_tokens=st.sampled_from([2, 3, 5, 8, 16, 64]),
    max_num_seqs=st.integers(1, 6),
    max_model_len=st.sampled_from([8, 16, 24, 32]),
    policy=st.sampled_from(["fcfs", "priority"]),
    long_prefill_token_threshold=st.sampled_from([0, 0, 0, 2, 5]),
    enable_chunked_prefill=st.sampled_from([True, True, True, False]),
    scheduler_reserve_full_isl=st.booleans(),
)
CACHE_CONFIGS = st.builds(
    lambda block_size, slots, caching: CacheConfig(block_size, 1 + slots // block_size, caching),
    st.integers(1, 4),
    st.sampled_from([12, 16, 20, 24, 36]),
    st.sampled_from([True, True, False]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """One random schedule."""

    @initialize(
        scheduler=SCHEDULER_CONFIGS,
        cache=CACHE_CONFIGS,
        num_drafts=st.sampled_from([0, 0, 1, 3]),
        lookahead=st.booleans(),
        urgent=st.booleans(),
        first=st.lists(ARRIVALS, min_size=3, max_size=6),
    )
    def start(
        self, scheduler: SchedulerConfig, cache: CacheConfig, num_drafts: int, lookahead: bool,
        urgent: bool, first: list[Arrival],
    ) -> None:  # fmt: skip
        config = replace(scheduler, num_lookahead_tokens=num_drafts if lookahead else 0)
        self.grammars = Grammars()
        self.urgent = urgent  # each arrival is more urgent than all before it
        self.engine = self.make_engine(config, cache, num_drafts)
        COUNTS["schedules"] += 1
        for arrival in first:
            self.add(arrival)
            if urgent:
                self.step()

    def make_engine(
        self, config: SchedulerConfig, cache: CacheConfig, num_drafts: int
    ) -> ShadowEngine:
        return ShadowEngine(config, cache, [self.grammars], num_drafts)

    def add(self, arrival: Arrival) -> None:
        number = len(self.engine.expected)
        max_model_len = self.engine.scheduler.max_model_len
        if self.urgent:
            arrival = replace(arrival, priority=-number)
        self.engine.add(arrival.request(str(number), number / 2, max_model_len))

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=3))
    def arrive(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.add(arrival)

    @rule(steps=st.integers(1, 6))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @rule(which=st.integers(0, 20))
    def abort(self, which: int) -> None:
        self.engine.abort(self.pick(which))

    @rule(which=st.integers(0, 20))
    def abort_while_the_model_runs(self, which: int) -> None:
        self.step(lambda output: self.engine.abort(self.pick(which)))

    @rule(dice=st.integers(0, 9), which=st.integers(0, 5))
    def fail(self, dice: int, which: int) -> None:
        """Rarely the whole forward pass fails, or only one request of it."""
        if dice == 0:
            self.step(self.fail_one(which))
        elif dice == 1:
            try:
                self.engine.failing_step()
            except NoProgressError:
                self.give_up()
        else:
            self.step()

    def fail_one(self, which: int) -> Callable[[SchedulerOutput], None]:
        def fail(output: SchedulerOutput) -> None:
            planned = list(output.num_scheduled_tokens)
            self.engine.fail(output, planned[which : which + 1])

        return fail

    @rule()
    def reset_prefix_cache(self) -> None:
        scheduler = self.engine.scheduler
        done = scheduler.reset_prefix_cache()
        assert done == (not scheduler.running)
        assert not done or not scheduler.kv_cache_manager.block_pool.cached_blocks
        self.engine.check_state()

    @precondition(lambda self: not self.grammars.ready)
    @rule()
    def grammars_are_ready(self) -> None:
        self.grammars.ready = True

    def pick(self, which: int) -> str:
        return str(which % len(self.engine.expected))

    def step(
        self, during_forward: Callable[[SchedulerOutput], object] = lambda output: None
    ) -> None:
        try:
            self.engine.step(during_forward)
        except NoProgressError:
            self.give_up()

    def give_up(self) -> None:
        """A stall is right only if a whole prompt must fit the budget and cannot."""
        scheduler = self.engine.scheduler
        config = scheduler.scheduler_config
        assert not config.enable_chunked_prefill and not scheduler.running
        stuck = [
            request
            for request in (*scheduler.skipped_waiting, *scheduler.waiting)
            if request.num_tokens > config.max_num_batched_tokens
        ]
        assert stuck, "a step raised NoProgressError for no reason"
        COUNTS["stalls"] += 1
        self.engine.abort([request.request_id for request in stuck])

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        scheduler = self.engine.scheduler
        self.grammars.ready = True
        bound = 20 + 20 * sum(len(e.tokens) + 20 for e in self.engine.expected.values())
        for _ in range(bound):
            if not scheduler.has_requests():
                break
            self.step()
        self.engine.check_drained()
        COUNTS.update(self.engine.counts)


MINIMUM = {
    "schedules": NUM_SCHEDULES,
    "preempted": 1_000,
    "refunded": 60,
    "resumed": 1_000,
    "prefix hits": 700,
    "resumed hits": 400,
    "partial prefills": 5_000,
    "drafts": 5_000,
    "aborted": 1_000,
    "failed": 100,
    "kv_capacity": 500,
    "stalls": 50,
    "FINISHED_STOPPED": 400,
    "FINISHED_LENGTH_CAPPED": 4_000,
}
"""At least this often; a suite that stops exercising something must say so."""


def run_schedules(machine: type[SchedulerMachine], num_schedules: int) -> None:
    """Random schedules, the same in every run."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=num_schedules,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_schedules_keep_every_rule() -> None:
    """At least 2,000 random schedules on shadow KV; see the module's docstring for the rules."""
    COUNTS.clear()
    run_schedules(SchedulerMachine, NUM_SCHEDULES)
    print("random schedules exercised:", dict(COUNTS))
    missing = {k: COUNTS[k] for k, least in MINIMUM.items() if COUNTS[k] < least}
    assert not missing, f"too rarely exercised: {missing}, wanted {MINIMUM}"
