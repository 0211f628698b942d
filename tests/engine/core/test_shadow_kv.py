"""T-SHADOW and T-INV: outputs do not depend on how the work was cut up; and the shadow model
itself notices every kind of damage that it is there to notice."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import RequestStatus
from mini_vllm.sampling_params import SamplingParams
from tests.engine.core.build import make_request
from tests.engine.core.shadow import VOCAB_SIZE, ShadowEngine, ShadowError, generate_alone

history = pytest.mark.history


def make_engine(
    blocks: int = 12, block_size: int = 4, budget: int = 16, num_drafts: int = 0, **config: object
) -> ShadowEngine:
    scheduler = SchedulerConfig(max_num_batched_tokens=budget, max_model_len=64)
    scheduler = replace(scheduler, **config)  # type: ignore[arg-type]
    return ShadowEngine(scheduler, CacheConfig(block_size, blocks + 1), num_drafts=num_drafts)


# ------------------------------------------------------------------ the model alone


def test_a_lone_request_is_deterministic_and_depends_on_every_token() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    prompt = [1, 2, 3, 4, 5]
    output, status = generate_alone(prompt, params, 64)
    assert len(output) == 12 and status == RequestStatus.FINISHED_LENGTH_CAPPED
    assert generate_alone(prompt, params, 64)[0] == output
    for index in range(len(prompt)):
        changed = prompt[:index] + [9] + prompt[index + 1 :]
        assert generate_alone(changed, params, 64)[0] != output
    assert generate_alone(prompt, params, 64, lora_name="a")[0] != output


def test_a_lone_request_stops_like_any_other() -> None:
    prompt = [1, 2, 3]
    free, _ = generate_alone(prompt, SamplingParams(max_tokens=10), 64)
    eos = free[4]
    first = free.index(eos)
    stopped = RequestStatus.FINISHED_STOPPED
    assert generate_alone(prompt, SamplingParams(max_tokens=10), 64, eos) == (
        free[: first + 1],
        stopped,
    )
    ignoring = SamplingParams(max_tokens=10, ignore_eos=True)
    assert generate_alone(prompt, ignoring, 64, eos)[0] == free
    capped, status = generate_alone(prompt, SamplingParams(max_tokens=None), 8)
    assert len(capped) == 5 and status == RequestStatus.FINISHED_LENGTH_CAPPED


# ------------------------------------------------------------------ what the shadow notices


def damaged_step(
    engine: ShadowEngine, damage: Callable[[SchedulerOutput], None]
) -> dict[str, list[int]]:
    output = engine.scheduler.schedule()
    damage(output)
    return engine.worker.execute(output)


def started() -> ShadowEngine:
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, 6))
    engine.step()
    engine.step()
    return engine


@history("nano-vllm#67")
def test_bug_nano_vllm_67_a_position_off_by_one_is_noticed() -> None:
    """Decode passed ``len(seq)`` for ``len(seq) - 1`` and rotated every key one step too far."""
    engine = started()
    table = engine.worker.requests["a"].block_ids
    slot = engine.worker.slot("a", table, 3)
    engine.worker.slots[slot] = replace(engine.worker.slots[slot], position=4)
    with pytest.raises(ShadowError, match="a reads position 3 in slot 7"):
        engine.step()


@history("vllm#7018", "MinivLLM: attention block_size 16, cache 256")
def test_bug_vllm_7018_a_wrong_block_table_is_noticed() -> None:
    """In a mixed batch a request without hits got an empty table and read foreign KV."""
    engine = started()
    tables = engine.worker.requests
    tables["a"].block_ids, tables["b"].block_ids = tables["b"].block_ids, tables["a"].block_ids
    with pytest.raises(ShadowError, match="reads position"):
        engine.step()


@history("nano-vllm#212", "mini-sglang@14157d5")
def test_bug_nano_vllm_212_reading_what_is_not_written_yet_is_noticed() -> None:
    """A chunk attended to the whole prompt, although the rest of it was not in the cache yet."""
    engine = make_engine(budget=4)
    engine.add(make_request("a", 10))
    engine.step()

    def skip_a_chunk(output: SchedulerOutput) -> None:
        output.num_scheduled_tokens["a"] = 2
        output.scheduled_cached_reqs.num_computed_tokens[0] += 2
        engine.worker.requests["a"].num_computed_tokens += 2

    with pytest.raises(ShadowError, match="it holds None"):
        damaged_step(engine, skip_a_chunk)


@history("MinivLLM#88")
def test_bug_minivllm_88_hits_on_foreign_blocks_are_noticed() -> None:
    """Hits were counted but not read; the positions after them began at 0 again."""
    engine = make_engine()
    engine.add(make_request("a", list(range(9)), max_tokens=1))
    engine.step()
    engine.add(make_request("b", list(range(9)), max_tokens=1))
    output = engine.scheduler.schedule()
    assert output.scheduled_new_reqs[0].num_computed_tokens == 8
    engine.worker.slots[5] = replace(engine.worker.slots[5], prefix=0)
    with pytest.raises(ShadowError, match="b reads position 1 in slot 5"):
        engine.worker.execute(output)


@history("mini-sglang#142")
def test_bug_mini_sglang_142_two_writers_of_one_slot_are_noticed() -> None:
    """A table kept pointing at pages that had been freed and given to another request."""
    engine = started()
    engine.worker.requests["a"].block_ids[:] = engine.worker.requests["b"].block_ids
    with pytest.raises(AssertionError, match="b and a write slot"):
        engine.step()


@pytest.mark.parametrize(
    ("message", "damage"),
    [
        ("is scheduled with 0 tokens", lambda o: o.num_scheduled_tokens.update(a=0)),
        ("has 9 tokens", lambda o: o.num_scheduled_tokens.update(a=5)),
        (
            "the scheduler says 9",
            lambda o: o.scheduled_cached_reqs.num_computed_tokens.__setitem__(0, 9),
        ),
        ("lacks its data", lambda o: o.num_scheduled_tokens.update(c=1)),
        ("not scheduled", lambda o: o.new_block_ids.update(c=[1])),
        ("was given block 0", lambda o: o.new_block_ids.update(a=[0])),
        ("was given block 99", lambda o: o.new_block_ids.update(a=[99])),
        ("no block for position 8", lambda o: o.new_block_ids.clear()),
    ],
)
def test_a_contradictory_plan_is_noticed(
    message: str, damage: Callable[[SchedulerOutput], None]
) -> None:
    """The step in which both requests need their third block."""
    engine = started()
    engine.step()
    with pytest.raises(AssertionError, match=message):
        damaged_step(engine, damage)


def test_the_worker_never_looks_into_the_scheduler() -> None:
    """It is built from numbers and fed with outputs; nothing of it refers to the scheduler."""
    engine = started()
    scheduler_requests = set(map(id, engine.scheduler.requests.values()))
    for state in engine.worker.requests.values():
        assert id(state) not in scheduler_requests
        for request in engine.scheduler.requests.values():
            assert state.token_ids is not request.all_token_ids
            assert state.token_ids is not request.prompt_token_ids


# ------------------------------------------------------------------ one known schedule each


def test_forced_preemption_gives_the_same_text() -> None:
    """7 blocks of 4; three requests that grow to 14 tokens (4 blocks) each."""
    engine = make_engine(blocks=7)
    for name in "abc":
        engine.add(make_request(name, 6, max_tokens=8))
    engine.drain()
    assert engine.counts["preempted"] == engine.counts["resumed"] >= 2
    assert engine.counts["FINISHED_LENGTH_CAPPED"] == 3


@history("vllm#48489")
def test_a_resumed_request_finds_its_own_prefix() -> None:
    engine = make_engine()
    request = engine.add(make_request("a", 9))
    engine.step()
    engine.scheduler._preempt(request)
    engine.worker.requests.clear()
    output = engine.step()
    assert output.num_scheduled_tokens == {"a": 2}
    engine.drain()


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_drafts_change_the_number_of_steps_and_nothing_else(accuracy: float) -> None:
    steps = {}
    for num_drafts in (0, 3):
        engine = make_engine(num_drafts=num_drafts, num_lookahead_tokens=num_drafts)
        engine.draft_accuracy = accuracy
        engine.add(make_request("a", 5, max_tokens=17))
        steps[num_drafts] = engine.drain()
    assert steps[0] == 18
    assert steps[3] == 6 if accuracy == 1.0 else steps[3] <= 18


# ------------------------------------------------------------------ T-INV: every combination

BLOCK_SIZES, BUDGETS, POOLS = (1, 4, 16), (7, 64, 2048), (48, 256)
SWITCHES = (False, True)


def workload(order: str) -> list[dict[str, object]]:
    """Eight requests, most with a shared prefix, some that stop early, some urgent."""
    rng = random.Random(7)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(18)]
    requests: list[dict[str, object]] = []
    for index in range(8):
        tail = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 9))]
        prompt = (shared[: rng.choice([0, 8, 16, 18])] + tail)[:24]
        requests.append(
            {
                "request_id": f"r{index}",
                "prompt": shared[:16] if index == 3 else prompt,
                "max_tokens": rng.choice([4, 8, 14, 20]),
                "priority": index % 3,
                "arrival": float(index),
                "eos": index if index % 2 == 0 else None,
                "min_tokens": 2 if index == 4 else 0,
            }
        )
    return requests if order == "forwards" else requests[::-1]


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_t_inv_outputs_do_not_depend_on_the_schedule(policy: str, order: str) -> None:
    """Block size x budget x pool x caching x chunking, with arrivals spread over the steps.

    :class:`ShadowEngine` compares each output with that of the request alone.
    """
    counts: Counter[str] = Counter()
    combinations = itertools.product(BLOCK_SIZES, BUDGETS, POOLS, SWITCHES, SWITCHES)
    for block_size, budget, slots, caching, chunked in combinations:
        if not chunked and budget < 48:
            continue  # a preempted request could never come back
        engine = ShadowEngine(
            SchedulerConfig(
                max_num_batched_tokens=budget,
                max_num_seqs=6,
                max_model_len=48,
                policy=policy,  # type: ignore[arg-type]
                enable_chunked_prefill=chunked,
            ),
            CacheConfig(block_size, slots // block_size + 1, caching),
        )
        for fields in workload(order):
            engine.add(make_request(**fields))  # type: ignore[arg-type]
            engine.step()
        engine.drain()
        assert not engine.counts["kv_capacity"]
        counts.update(engine.counts)
        counts["runs"] += 1
    print(f"{policy}, arrivals {order}:", dict(counts))
    assert counts["runs"] == 60
    assert counts["preempted"] >= 30 and counts["prefix hits"] >= 60
    assert counts["resumed hits"] >= 5 and counts["partial prefills"] >= 60
    assert counts["FINISHED_STOPPED"] > 0
