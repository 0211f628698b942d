"""The runner under the course's own scheduler: at every step each token must be looked up, placed
and sampled as the scheduler's tables say. The scheduler runs here, the runner in the child."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

many = settings(max_examples=25, phases=[Phase.generate])
PLAN = "mini_vllm.core.scheduler_output:"
SIZE = 4


class Story:
    """A scheduler here and a program that drives a runner through the same steps.

    `expected` collects what the runner must show, `facts` what has happened on the way.
    """

    def __init__(self, blocks: int, budget: int, rows: int, caching: bool = True) -> None:
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=rows, max_model_len=32)
        cache = CacheConfig(SIZE, blocks + 1, caching)
        self.scheduler = Scheduler(config, cache, hash_root=b"root")
        self.p = p = Program()
        device = p.call("torch:device", "cpu")
        runner = "mini_vllm.worker.model_runner:ModelRunner"
        self.runner = p.new(runner, None, None, rows, 32, SIZE, device)
        self.params = p.new("mini_vllm.sampling_params:SamplingParams")
        self.expected: list[Any] = []
        self.facts: set[str] = set()

    def add(self, name: str, prompt: Sequence[int], max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.add_request(Request(name, prompt, params, arrival_time=0.0))

    def abort(self, name: str) -> None:
        from mini_vllm.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """Plan, look up, compare, sample."""
        plan = self.scheduler.schedule()
        self.note(plan)
        written = self.write(plan)
        self.runner._update_states(written)
        sampled: dict[str, list[int]] = {}
        if plan.num_scheduled_tokens:
            inputs = self.runner._prepare_inputs(written)
            sampled = self.look(plan, inputs)
            ids = np.array([tokens[0] for tokens in sampled.values()], np.int64)
            self.runner.batch.append_tokens(inputs.sample_rows, ids)
        self.scheduler.update_from_output(plan, sampled)

    def note(self, plan: SchedulerOutput) -> None:
        cached = plan.scheduled_cached_reqs
        scheduled = plan.num_scheduled_tokens
        counts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        marks = {
            "preempted": plan.preempted_req_ids,
            "resumed": cached.resumed_req_ids,
            "found again": any(counts[name] for name in cached.resumed_req_ids),
            "hit": any(new.num_computed_tokens for new in plan.scheduled_new_reqs),
            "pause": any(r.request_id not in scheduled for r in self.scheduler.running),
            "mixed": len({min(n, 2) for n in scheduled.values()}) == 2,
        }
        self.facts |= {name for name, found in marks.items() if found}

    def write(self, plan: SchedulerOutput) -> Any:
        """The plan as an object of the child."""
        p = self.p
        new = [
            p.new(
                f"{PLAN}NewRequestData",
                request.req_id,
                list(request.prompt_token_ids),
                self.params,
                None,
                list(request.block_ids),
                request.num_computed_tokens,
            )
            for request in plan.scheduled_new_reqs
        ]
        cached = plan.scheduled_cached_reqs
        known = p.new(
            f"{PLAN}CachedRequestData",
            list(cached.req_ids),
            list(cached.num_computed_tokens),
            set(cached.resumed_req_ids),
            {},
        )
        return p.new(
            f"{PLAN}SchedulerOutput",
            new,
            known,
            dict(plan.num_scheduled_tokens),
            plan.total_num_scheduled_tokens,
            {},
            {name: list(ids) for name, ids in plan.new_block_ids.items()},
            list(plan.preempted_req_ids),
            set(plan.finished_req_ids),
        )

    def look(self, plan: SchedulerOutput, inputs: Any) -> dict[str, list[int]]:
        """Observe the inputs, and write down what the scheduler's tables say they are."""
        counts = plan.num_scheduled_tokens
        order = sorted(counts, key=lambda name: counts[name] != 1)
        ids, positions, slots, starts, contexts, last = [], [], [], [0], [], []
        sampled = {}
        for name in order:
            request = self.scheduler.requests[name]
            end = request.num_computed_tokens
            table = self.scheduler.kv_cache_manager.get_block_ids(name)
            for position in range(end - counts[name], end):
                ids.append(request.all_token_ids[position])
                positions.append(position)
                slots.append(table[position // SIZE] * SIZE + position % SIZE)
            starts.append(len(ids))
            contexts.append(end)
            if end == request.num_tokens:
                last.append(len(ids) - 1)
                sampled[name] = [1000 + (31 * end + sum(name.encode())) % 97]
        metadata = inputs.metadata
        for tensor, right in (
            (inputs.input_ids, ids),
            (inputs.positions, positions),
            (inputs.logits_indices, last),
            (metadata.slot_mapping, slots),
            (metadata.query_start_loc, starts),
            (metadata.seq_lens, contexts),
        ):
            self.p.see(tensor.tolist())
            self.expected.append(right)
        for value, right in (
            (inputs.req_ids, order),
            (metadata.query_lens_cpu, [counts[name] for name in order]),
            (metadata.num_decode_reqs, sum(n == 1 for n in counts.values())),
            (metadata.max_seq_len, max(contexts)),
        ):
            self.p.see(value)
            self.expected.append(right)
        self.p.see(metadata.block_table.tolist())
        tables = [self.scheduler.kv_cache_manager.get_block_ids(name) for name in order]
        width = max(map(len, tables))
        self.expected.append([table + [0] * (width - len(table)) for table in tables])
        return sampled

    def tell(self, subject: Any) -> None:
        """Drain, then run it all in the child and compare."""
        while self.scheduler.has_unfinished_requests():
            self.step()
        self.step()  # tells the runner which requests have finished
        for value in (self.runner.requests, self.runner.batch.req_id_to_row):
            self.p.see(value)
            self.expected.append({})
        seen = subject.run(self.p)
        names = "input_ids positions logits_indices slots starts contexts ids lengths decodes"
        names = [*names.split(), "longest", "block_table"]
        for index, (yours, right) in enumerate(zip(seen, self.expected, strict=False)):
            assert yours == right, f"look {index // 11}, {names[index % 11]}"
        assert len(seen) == len(self.expected), seen[-1]


@many
@given(data=st.data())
def test_05_6_any_story(subject: Any, data: st.DataObject) -> None:
    """Arrivals, chunks, hits, preemptions, aborts: what the model reads is what was planned."""
    rows = data.draw(st.integers(1, 5))
    blocks, budget = data.draw(st.integers(8, 14)), data.draw(st.integers(1, 14))
    story = Story(blocks, budget, rows, data.draw(st.booleans()))
    for number in range(data.draw(st.integers(1, 7))):
        shared = list(range(data.draw(st.integers(0, 12))))
        own = [100 * (number + 1) + i for i in range(data.draw(st.integers(1, 8)))]
        story.add(f"r{number}", shared + own, data.draw(st.integers(1, 8)))
        for _ in range(data.draw(st.integers(0, 3))):
            story.step()
        if data.draw(st.integers(0, 5)) == 0:
            story.abort(f"r{data.draw(st.integers(0, number))}")
    story.tell(subject)


def pressed(caching: bool) -> Story:
    """Three requests that outgrow the pool."""
    story = Story(7, 12, 4, caching)
    for number, name in enumerate(("ana", "ben", "cleo")):
        story.add(name, [100 * number + i for i in range(7)], 9)
    return story


@pytest.mark.history("nano-vllm#144", "nano-vllm@8d63a98", "MinivLLM@3d74cf3")
def test_05_5_bug_nano_vllm_144_the_resumed_bring_prompt_and_output(subject: Any) -> None:
    """A resumed request sent its last token only, or lost what it had sampled before."""
    story = pressed(caching=False)
    story.tell(subject)
    assert {"preempted", "resumed"} <= story.facts


def test_05_5_the_resumed_may_find_their_blocks_again(subject: Any) -> None:
    """What the prefix cache still had of a preempted request is not computed twice."""
    story = pressed(caching=True)
    story.tell(subject)
    assert "found again" in story.facts


@pytest.mark.history("MinivLLM#88", "MinivLLM#98")
def test_05_6_bug_minivllm_88_positions_go_on_after_hits(subject: Any) -> None:
    """Hits were counted, and positions began at 0 again."""
    story = Story(14, 20, 3)
    story.add("ana", list(range(12)), 2)
    story.step()
    story.add("ben", [*range(12), 90, 91], 3)
    story.tell(subject)
    assert "hit" in story.facts


@pytest.mark.history("nano-vllm#212", "mini-sglang@14157d5")
def test_05_6_bug_nano_vllm_212_a_chunk_sees_what_is_computed(subject: Any) -> None:
    """The context of a chunk ends with the chunk, not with the prompt."""
    story = Story(14, 5, 2)
    story.add("ana", list(range(18)), 3)
    story.tell(subject)


@pytest.mark.history("mini-sglang@ef4367f")
def test_05_4_bug_mini_sglang_ef4367f_a_chunk_samples_nothing(subject: Any) -> None:
    """A token sampled after a chunk in the middle was written over the prompt."""
    story = Story(14, 6, 3)
    story.add("ana", list(range(5)), 4)
    story.step()
    story.add("ben", list(range(50, 70)), 2)
    story.tell(subject)
    assert "mixed" in story.facts


@pytest.mark.history("vllm#26385", "vllm#27756")
def test_05_5_bug_vllm_26385_a_running_request_may_have_a_pause(subject: Any) -> None:
    """With a budget of one token only one of three runs in each step; none loses its row."""
    story = Story(14, 3, 3)
    for number, name in enumerate(("ana", "ben", "cleo")):
        story.add(name, [100 * number + i for i in range(3)], 4)
        story.step()
    story.scheduler.scheduler_config = SchedulerConfig(
        max_num_batched_tokens=1, max_num_seqs=3, max_model_len=32
    )
    for _ in range(3):
        story.step()
    story.tell(subject)
    assert "pause" in story.facts


@pytest.mark.history("vllm#7018")
def test_05_6_bug_vllm_7018_a_mixed_batch_has_each_ones_table(subject: Any) -> None:
    """Decodes and prompts in one step: a request without hits got a table of zeros."""
    story = Story(14, 20, 4)
    story.add("ana", list(range(9)), 6)
    story.step()
    story.add("ben", list(range(9)), 3)
    story.add("cleo", list(range(200, 206)), 3)
    story.tell(subject)
    assert {"mixed", "hit"} <= story.facts


def test_05_5_an_id_that_comes_back(subject: Any) -> None:
    """An aborted request's id is used again at once, by a prompt of another length."""
    story = Story(14, 20, 2)
    story.add("ana", list(range(10)), 5)
    story.add("ben", list(range(30, 33)), 5)
    story.step()
    story.abort("ana")
    story.add("ana", list(range(60, 65)), 2)
    story.tell(subject)


def test_05_5_a_full_batch_changes_hands(subject: Any) -> None:
    """One row: each request leaves in the step in which the next one comes."""
    story = Story(14, 20, 1)
    for number in range(4):
        story.add(f"r{number}", list(range(10 * number, 10 * number + 5)), 2)
    story.tell(subject)


# ------------------------------------------------------------------ the whole engine


def run_engine(worker: Any, blocks: int, budget: int) -> dict[str, list[int]]:
    """Tokens by request: four stories on the bundled model."""
    p = Program()
    p.call("torch:set_num_threads", 1)
    folder = p.call("mini_vllm.bundled:path", "storyteller-draft")
    model = p.new("mini_vllm.config:ModelConfig", folder, dtype="float32", device="cpu")
    cache = p.new("mini_vllm.config:CacheConfig", 4, blocks)
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": 4, "max_model_len": 64}
    scheduler = p.new("mini_vllm.config:SchedulerConfig", **limits)
    config = p.new("mini_vllm.config:EngineConfig", model, cache, scheduler)
    core = p.new("mini_vllm.engine.core:EngineCore", config)
    for number in range(4):
        params = p.new(
            "mini_vllm.sampling_params:SamplingParams",
            temperature=0.0 if number % 2 else 0.8,
            seed=number,
            max_tokens=8,
            ignore_eos=True,
        )
        prompt = [50 + (7 * i + number) % 900 for i in range(6 + 5 * number)]
        core.add_request(p.new("mini_vllm.request:Request", f"r{number}", prompt, params))
    for _ in range(60):
        outputs = core.step()
        p.see_each(outputs, "request_id")
        p.see_each(outputs, "new_token_ids")
    seen = worker.run(p)
    assert not isinstance(seen[-1], dict), seen[-1]
    answers: dict[str, list[int]] = {}
    for names, tokens in zip(seen[::2], seen[1::2], strict=True):
        for name, new in zip(names, tokens, strict=True):
            answers.setdefault(name, []).extend(new)
    return answers


@pytest.mark.parametrize(("blocks", "budget"), [(80, 64), (80, 7), (17, 16)])
def test_05_6_the_engine_answers_the_same(
    subject: Any, reference: Any, blocks: int, budget: int
) -> None:
    """Whole prompts, chunks, and a pool so small that one has to go."""
    yours = run_engine(subject, blocks, budget)
    assert yours == run_engine(reference, blocks, budget)
    assert {len(tokens) for tokens in yours.values()} == {8}
