"""Chaos: a state machine does to the engine what users do, in any order, with every feature.

It adds, aborts, steps, streams, resets, reuses ids, asks for nonsense, makes forward passes fail,
and strikes with Ctrl-C at random lines. After each move everything must agree; and a request
that was neither aborted nor failed gives, in the end, the tokens that it gives alone.

A new feature is one more entry in :data:`FEATURES`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from PIL import Image

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import RequestOutput
from tests.engine.whole.interrupts import strike

PREFIX = list(range(20, 36))
PROMPTS: list[list[int]] = [
    [5, 6, 7],
    [*PREFIX, 5, 6],
    [*PREFIX, 9],
    list(range(50, 80)),
    [40] * 17,
    [*PREFIX, *PREFIX, 8],
]
# With these seeds no random number falls within 2e-5 of the border between two tokens, where the
# rounding of another batch would tell another story.
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0, "prompt_logprobs": 1},
    {"temperature": 0.9, "seed": 13},
    {"temperature": 1.2, "seed": 4, "n": 3, "top_p": 0.9},
    {"temperature": 0, "stop": ["e"], "min_tokens": 1},
    {"temperature": 0, "allowed_token_ids": [30, 31, 32, 33], "repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 10, "logit_bias": {40: 5.0}, "presence_penalty": 0.5, "n": 2},
]
BAD_CALLS: list[tuple[Any, Any]] = [
    ([], SamplingParams()),
    ("\ud800", SamplingParams()),
    ([10**6], SamplingParams()),
    (None, SamplingParams()),
    ([5] * 500, SamplingParams(n=3)),
    ([5], None),
    ([5], SamplingParams(allowed_token_ids=[10**6])),
]
STRIKES = st.one_of(
    st.tuples(st.integers(1, 1500), st.just("")),
    st.tuples(st.integers(1, 500), st.just("/core/")),
    st.tuples(st.integers(1, 150), st.just("/worker/")),
    st.tuples(st.integers(1, 80), st.just("/engine/")),
    st.tuples(
        st.integers(1, 50), st.sampled_from(["finish_step", "output_processor", "llm_engine"])
    ),
)
"""Where Ctrl-C comes: at which line of which files."""
IDS = ["r0", "r1", "r2", "0_r0", "1_r1"]


@dataclass(frozen=True, eq=False)
class Feature:
    """An engine to torment, and what its requests may ask for beside :data:`PARAMS`.

    Attributes:
        options: of the engine, beside those in :func:`make_engine`.
        alone: options of the engine that gives a request's tokens when it runs alone.
        params: further sampling parameters; requests draw from these and the common ones.
        greedy_only: seeded requests tell another story than without the feature.
        adapters: names of bundled ones; requests draw from these and none.
        pictures: every prompt brings one.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    alone: dict[str, Any] = field(default_factory=dict)
    params: tuple[dict[str, Any], ...] = ()
    greedy_only: bool = False
    adapters: tuple[str, ...] = ()
    pictures: bool = False

    def prompt(self, index: int) -> Any:
        """One of :data:`PROMPTS`, perhaps with a picture before it."""
        if not self.pictures:
            return PROMPTS[index]
        picture = Image.new("RGB", (32, 32), ("red", "blue")[index % 2])
        token_ids = [2048, 2050, 2049, *PROMPTS[index]]
        return {"prompt_token_ids": token_ids, "multi_modal_data": {"image": picture}}


N_GRAMS = {"method": "ngram", "num_speculative_tokens": 3}
DRAFT_MODEL = {"method": "draft_model", "model": "storyteller-draft", "num_speculative_tokens": 2}
LORA = {"model": "storyteller", "enable_lora": True, "max_loras": 2, "max_cpu_loras": 2}
LORA_ALONE = LORA | {"max_loras": 3, "max_cpu_loras": 3}
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "structured_outputs": {"regex": "[a-z ]{4,30}"}, "ignore_eos": False},
    {"temperature": 0, "structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": False},
)
SEEING = {"model": "storyteller-vision", "num_gpu_blocks": 30, "max_num_batched_tokens": 20}
ON_HOST = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 200_000},
}
LATE = {"async_scheduling": True}
FEATURES = [
    Feature("plain"),
    Feature("tight", {"num_gpu_blocks": 15, "max_num_seqs": 3, "max_num_batched_tokens": 19}),
    Feature("priority", {"num_gpu_blocks": 15, "policy": "priority", "max_num_batched_tokens": 32}),
    Feature("no cache", {"enable_prefix_caching": False, "num_gpu_blocks": 20}),
    Feature("n-grams", {"speculative_config": N_GRAMS}, greedy_only=True),
    Feature("draft model", {"speculative_config": DRAFT_MODEL}, greedy_only=True),
    Feature("grammars", {"num_gpu_blocks": 20}, params=GRAMMARS),
    Feature("adapters", LORA, LORA_ALONE, adapters=("pirate", "json", "polite")),
    Feature("KV on the host", {"num_gpu_blocks": 20, "kv_transfer_config": ON_HOST}),
    Feature("pictures", SEEING, SEEING, greedy_only=True, pictures=True),
    Feature("late results", LATE | {"num_gpu_blocks": 15, "max_num_seqs": 3}, params=GRAMMARS),
    Feature("late pictures", LATE | SEEING, SEEING, greedy_only=True, pictures=True),
    Feature(
        "late adapters", LATE | LORA, LORA_ALONE, GRAMMARS, adapters=("pirate", "json", "polite")
    ),
    Feature(
        "everything",
        LORA | {"speculative_config": N_GRAMS, "num_gpu_blocks": 25},
        LORA_ALONE,
        params=GRAMMARS,
        greedy_only=True,
        adapters=("pirate", "json", "polite"),
    ),
]
TIGHT = {"num_gpu_blocks": 15, "max_num_batched_tokens": 19}
IN_PROCESSES = [
    Feature("a worker in a process", TIGHT | {"distributed_executor_backend": "mp"}),
    Feature("two shards", TIGHT | {"tensor_parallel_size": 2}),
    Feature("two stages", TIGHT | {"pipeline_parallel_size": 2}),
]
"""Workers that tests do not reach into: a failure there ends the engine, so none is made."""


def make_engine(options: dict[str, Any]) -> LLM:
    usual = {
        "model": "storyteller-draft", "dtype": "float32", "block_size": 8, "max_model_len": 96,
        "num_gpu_blocks": 80, "max_num_seqs": 6, "max_num_batched_tokens": 64,
    }  # fmt: skip
    return LLM(**(usual | options))


@functools.cache
def engine_of(feature: Feature) -> LLM:
    """One engine a feature, for the whole session: chaos must leave it as it was."""
    return make_engine(feature.options)


@functools.cache
def engine_alone(feature: Feature) -> LLM:
    return make_engine(feature.alone)


@dataclass(frozen=True)
class Spec:
    """A request: which prompt, which parameters, how long."""

    prompt: int
    params: int
    max_tokens: int
    adapter: str | None = None

    def sampling_params(self, feature: Feature) -> SamplingParams:
        values = [*PARAMS, *feature.params][self.params]
        return SamplingParams(**{"ignore_eos": True, "max_tokens": self.max_tokens, **values})

    @property
    def lora_request(self) -> LoRARequest | None:
        if self.adapter is None:
            return None
        folder = bundled.adapter_path(self.adapter)
        return LoRARequest(self.adapter, 1 + bundled.ADAPTERS.index(self.adapter), str(folder))


def story(output: RequestOutput) -> list[Any]:
    """What a caller sees in the end, but for how long it took."""
    return [
        (c.token_ids, c.text, c.finish_reason, c.stop_reason, c.logprobs and len(c.logprobs))
        for c in output.outputs
    ] + [output.prompt_logprobs and len(output.prompt_logprobs)]


@functools.cache
def story_alone(feature: Feature, spec: Spec) -> list[Any]:
    """What a request gives when it runs alone."""
    params = spec.sampling_params(feature)
    llm = engine_alone(feature)
    outputs = llm.generate(
        feature.prompt(spec.prompt), params, use_tqdm=False, lora_request=spec.lora_request
    )
    return story(outputs[0])


class Chaos(RuleBasedStateMachine):
    """Moves of users, with one engine that lives through all of them."""

    feature = FEATURES[0]

    def __init__(self) -> None:
        super().__init__()
        self.llm = engine_of(self.feature)
        self.engine = self.llm.engine
        self.watched: list[tuple[RequestOutput, Spec]] = []
        """Requests that must tell their story: not aborted, and in no step that failed."""
        self.disturbed: list[RequestOutput] = []
        """Those that must end, but may end early."""
        self.streams: list[Iterator[RequestOutput]] = []
        self.engine.abort_requests()
        self.engine.core.reset_prefix_cache()

    # ---- moves ----------------------------------------------------------------------------

    def draw_spec(self, data: st.DataObject) -> Spec:
        num_params = len(PARAMS) + len(self.feature.params)
        allowed = [
            i
            for i in range(num_params)
            if not (self.feature.greedy_only and [*PARAMS, *self.feature.params][i]["temperature"])
        ]
        return Spec(
            data.draw(st.integers(0, len(PROMPTS) - 1), label="prompt"),
            data.draw(st.sampled_from(allowed), label="params"),
            data.draw(st.sampled_from([1, 3, 8, 20]), label="max_tokens"),
            data.draw(st.sampled_from([None, *self.feature.adapters]), label="adapter"),
        )

    def in_use(self, request_id: str) -> bool:
        processor = self.engine.output_processor
        return bool(processor.unfinished([request_id]))

    def add(self, data: st.DataObject, request_id: str) -> None:
        spec = self.draw_spec(data)
        params = spec.sampling_params(self.feature)
        stream = data.draw(st.booleans(), label="stream")
        ids = [request_id] + [f"{i}_{request_id}" for i in range(params.n) if params.n > 1]
        taken = any(self.in_use(i) for i in ids)
        before = dict(self.engine.core.scheduler.requests)
        try:
            output = self.engine.submit(
                request_id,
                self.feature.prompt(spec.prompt),
                params,
                priority=data.draw(st.integers(0, 2), label="priority"),
                stream=stream,
                lora_request=spec.lora_request,
            )
        except ValueError:
            assert taken
            assert self.engine.core.scheduler.requests == before
            return
        assert not taken
        self.watched.append((output, spec))

    @rule(data=st.data(), request_id=st.sampled_from(IDS))
    def add_request(self, data: st.DataObject, request_id: str) -> None:
        self.add(data, request_id)

    @rule(data=st.data(), request_id=st.sampled_from(IDS), at=STRIKES)
    def add_struck(self, data: st.DataObject, request_id: str, at: tuple[int, str]) -> None:
        spec = self.draw_spec(data)
        before = dict(self.engine.core.scheduler.requests)
        with strike(*at) as strikes:
            try:
                output = self.engine.submit(
                    request_id,
                    self.feature.prompt(spec.prompt),
                    spec.sampling_params(self.feature),
                    lora_request=spec.lora_request,
                )
                self.watched.append((output, spec))
            except ValueError:
                return
        if strikes.place is not None:
            assert self.engine.core.scheduler.requests == before, strikes.place

    @rule(call=st.sampled_from(BAD_CALLS))
    def add_nonsense(self, call: tuple[Any, Any]) -> None:
        before = dict(self.engine.core.scheduler.requests)
        with pytest.raises(ValueError):
            self.engine.submit("bad", *call)
        assert self.engine.core.scheduler.requests == before

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @rule(at=STRIKES)
    def step_struck(self, at: tuple[int, str]) -> None:
        with strike(*at):
            self.engine.step()

    @precondition(lambda self: self.feature not in IN_PROCESSES)
    @rule()
    def failing_step(self) -> None:
        """A forward pass that fails ends the requests of its step, and no others."""
        core = self.engine.core
        worker = core.executor.worker

        def fail(_: Any) -> None:
            raise RuntimeError("chaos")

        is_late = core.config.scheduler.async_scheduling
        name = "sample_tokens_late" if is_late else "sample_tokens"
        setattr(worker, name, fail)
        try:
            self.engine.step()
        finally:
            delattr(worker, name)
        if is_late:
            self.engine.step()  # only now it is heard of
        for entry in list(self.watched):
            if entry[0].error is not None:
                assert "chaos" in entry[0].error
                self.watched.remove(entry)
                self.disturbed.append(entry[0])

    def disturb(self, ids: set[str]) -> None:
        for entry in list(self.watched):
            if entry[0].request_id in ids and not entry[0].finished:
                self.watched.remove(entry)
                self.disturbed.append(entry[0])

    @rule(request_id=st.sampled_from([*IDS, "unknown", "1_r0"]), as_list=st.booleans(), at=STRIKES)
    def abort(self, request_id: str, as_list: bool, at: tuple[int, str]) -> None:
        parents = {c.parent.request_id for c in self.engine.output_processor.completions.values()
                   if request_id in (c.request.request_id, c.parent.request_id)}  # fmt: skip
        self.disturb(parents)
        with strike(*at):
            self.engine.abort_requests([request_id] if as_list else request_id)

    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        """Also while others are on their way: they are served beside it."""
        specs = [self.draw_spec(data) for _ in range(data.draw(st.integers(1, 2)))]
        params = [spec.sampling_params(self.feature) for spec in specs]
        outputs = self.llm.generate(
            [self.feature.prompt(spec.prompt) for spec in specs],
            params,
            use_tqdm=False,
            lora_request=[spec.lora_request for spec in specs],
        )
        for output, spec in zip(outputs, specs, strict=True):
            assert story(output) == story_alone(self.feature, spec)

    @rule(data=st.data(), at=STRIKES, times=st.integers(1, 6))
    def generate_struck(self, data: st.DataObject, at: tuple[int, str], times: int) -> None:
        spec = self.draw_spec(data)
        before = set(self.engine.output_processor.completions)
        with strike(at[0] * times, at[1]):
            self.llm.generate(
                [self.feature.prompt(spec.prompt)] * 2,
                spec.sampling_params(self.feature),
                use_tqdm=False,
                lora_request=spec.lora_request,
            )
        assert set(self.engine.output_processor.completions) <= before

    @rule(data=st.data())
    def open_stream(self, data: st.DataObject) -> None:
        if len(self.streams) < 2:
            spec = self.draw_spec(data)
            params = spec.sampling_params(self.feature)
            self.streams.append(self.read_stream(spec, params))

    def read_stream(self, spec: Spec, params: SamplingParams) -> Iterator[RequestOutput]:
        """A stream whose texts only grow, and that ends with the whole story."""
        texts = [""] * params.n
        prompt = [self.feature.prompt(spec.prompt)]
        for output in self.llm.stream(prompt, params, lora_request=spec.lora_request):
            now = [completion.text for completion in output.outputs]
            assert all(b.startswith(a) for a, b in zip(texts, now, strict=True))
            texts = now
            yield output
        assert output.error is not None or story(output) == story_alone(self.feature, spec)

    @rule(count=st.integers(1, 10), close=st.booleans())
    def read_streams(self, count: int, close: bool) -> None:
        for stream in list(self.streams):
            for _ in range(count):
                if next(stream, None) is None:
                    self.streams.remove(stream)
                    break
        if close and self.streams:
            self.streams.pop().close()  # type: ignore[attr-defined]

    @rule(at=st.integers(1, 60))
    def reset(self, at: int) -> None:
        self.engine.reset_stats()
        with strike(at):
            self.engine.core.reset_prefix_cache()

    # ---- what must hold -------------------------------------------------------------------

    @invariant()
    def all_agree(self) -> None:
        core, processor = self.engine.core, self.engine.output_processor
        core.scheduler.check_integrity()
        told = {output.request_id for output in processor.inbox}
        assert set(core.scheduler.requests) <= set(processor.completions)
        assert set(processor.completions) <= set(core.scheduler.requests) | told
        assert set(core.times) == set(core.scheduler.requests)
        for ids in processor.children.values():
            assert any(i in processor.completions for i in ids)

    def teardown(self) -> None:
        for stream in self.streams:
            stream.close()  # type: ignore[attr-defined]
        for _ in range(600):
            if not self.engine.has_unfinished_requests():
                break
            self.engine.step()
        for output, spec in self.watched:
            assert output.finished and story(output) == story_alone(self.feature, spec)
        assert all(output.finished for output in self.disturbed)
        core, processor = self.engine.core, self.engine.output_processor
        # The worker has yet to hear of the last request that finished; what came for a request
        # that has ended since, at a step that Ctrl-C struck, is taken in by the next.
        while core.has_requests() or processor.inbox:
            self.engine.step()
        assert not core.scheduler.requests and core.scheduler.kv_cache_manager.usage == 0
        assert not any(core.executor.collective_rpc(who_is_left))
        assert not (processor.completions or processor.children or processor.inbox)


def who_is_left(worker: Any) -> list[str]:
    """Requests that a worker has not forgotten."""
    runner = worker.model_runner
    return [*runner.requests, *runner.batch.req_id_to_row]


def torment(feature: Feature, num_examples: int, num_moves: int) -> None:
    machine: Callable[[], Chaos] = type("Chaos", (Chaos,), {"feature": feature})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=num_moves,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Steps fail on purpose, and each says so."""
    caplog.set_level(logging.CRITICAL, logger="mini_vllm")


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_chaos(feature: Feature) -> None:
    torment(feature, num_examples=4, num_moves=25)


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_long_chaos(feature: Feature) -> None:
    torment(feature, num_examples=60, num_moves=50)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("feature", IN_PROCESSES, ids=lambda feature: feature.name)
def test_chaos_with_workers_in_processes(feature: Feature) -> None:
    """Ctrl-C strikes between the two sides, and they still say the same."""
    try:
        torment(feature, num_examples=15, num_moves=40)
    finally:
        engine_of(feature).shutdown()
