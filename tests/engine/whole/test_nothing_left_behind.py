"""Reused ids, refused and interrupted calls, aborts: whatever was, the engine is as if it had not.

Ctrl-C is tried at every line of a step, of adding, of aborting, and of `generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.outputs import RequestOutput
from tests.engine.whole.interrupts import strike

PREFIX = list(range(20, 36))
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded() -> LLM:
    return LLM(
        "storyteller-draft", dtype="float32", num_gpu_blocks=14, block_size=8, max_model_len=96,
        max_num_seqs=3, max_num_batched_tokens=24,
    )  # fmt: skip


@pytest.fixture
def llm(loaded: LLM) -> Iterator[LLM]:
    reset(loaded.engine)
    yield loaded
    drain(loaded.engine)
    assert_clean(loaded.engine)


@pytest.fixture
def engine(llm: LLM) -> LLMEngine:
    return llm.engine


def reset(engine: LLMEngine) -> None:
    engine.abort_requests()
    engine.step()
    engine.core.reset_prefix_cache()
    engine.input_processor.num_requests = 0


def drain(engine: LLMEngine) -> None:
    for _ in range(500):
        if not engine.has_unfinished_requests():
            return
        engine.step()
    raise AssertionError("the engine never comes to an end")


def assert_clean(engine: LLMEngine) -> None:
    scheduler, processor = engine.core.scheduler, engine.output_processor
    scheduler.check_integrity()
    assert not scheduler.requests and scheduler.kv_cache_manager.usage == 0
    assert not processor.completions and not processor.children and not processor.inbox
    assert not engine.core.times


def view(outputs: list[RequestOutput]) -> list[Any]:
    """All that a caller sees of some outputs, times apart."""
    return [
        (
            [
                (c.token_ids, c.text, c.finish_reason, c.stop_reason, c.logprobs is not None
                 and [{t: round(p.logprob, 3) for t, p in entry.items()} for entry in c.logprobs])
                for c in output.outputs
            ],
            output.finished,
            output.error,
            output.prompt_logprobs and len(output.prompt_logprobs),
        )
        for output in outputs
    ]  # fmt: skip


def generate(llm: LLM, prompt: Any, params: SamplingParams) -> RequestOutput:
    return llm.generate(prompt, params, use_tqdm=False)[0]


# ---- ids -------------------------------------------------------------------------------------


def test_a_reused_id_brings_its_own_parameters(engine: LLMEngine) -> None:
    engine.submit("x", "Once", GREEDY)
    drain(engine)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, allowed_token_ids=[7, 8])
    output = engine.submit("x", "Once", params)
    drain(engine)
    assert set(output.outputs[0].token_ids) <= {7, 8}


MANY = SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True)


@pytest.mark.parametrize(
    ("first", "second"), [("r", "r"), ("0_r", "r"), ("1_r", "r"), ("r", "1_r"), ("2_r", "r")]
)
def test_an_id_in_use_is_refused_and_leaves_no_ghost(
    first: str, second: str, engine: LLMEngine
) -> None:
    """With several completions, ids of the children count, and no request inherits the others."""
    in_use = engine.submit(first, "Once", MANY if first == "r" else GREEDY)
    engine.step()
    before = list(engine.core.scheduler.requests)
    with pytest.raises(ValueError, match="in use by an unfinished request"):
        engine.submit(second, "The sun", GREEDY if second == "1_r" else MANY)
    assert list(engine.core.scheduler.requests) == before
    drain(engine)
    assert in_use.finished and in_use.outputs[0].finish_reason == "length"
    assert engine.submit(second, "The sun", GREEDY)
    drain(engine)


# ---- refused calls ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x", "Once", GREEDY, -1), "arrival_time is -1; it must be a number of seconds"),
        (("x", "\ud800", GREEDY), "half of a surrogate pair"),
        (("x", "Once", None), "sampling_params is None; it must be a SamplingParams"),
        (("x", "Once", {"n": 1}), "sampling_params is {'n': 1}; it must be a SamplingParams"),
        ((7, "Once", GREEDY), "request_id is 7; it must be a string"),
        (("x", 7, GREEDY), "the prompt is 7; it must be text"),
        (("x", [7.0], GREEDY), "the prompt is [7.0]; it must be text"),
        (("x", {}, GREEDY), "the prompt is a mapping with []; it must be text"),
        (("x", {"prompt": "a", "cache_salt": 1}, GREEDY), "cache_salt is 1; it must be a string"),
        (("x", [5] * 200, MANY), "maximum context length is 96"),
        (("x", [9999], MANY), "the prompt has token id 9999"),
    ],
)
def test_refused_request(arguments: Any, words: str, engine: LLMEngine) -> None:
    with pytest.raises(ValueError) as error:
        engine.submit(*arguments)
    assert words in str(error.value)
    assert_clean(engine)
    assert engine.input_processor.num_requests == 0, "a refused request shifts others' seeds"


@pytest.mark.parametrize("priority", [None, 0.5, 2**63])
def test_refused_priority(priority: Any, engine: LLMEngine) -> None:
    with pytest.raises(ValueError, match=f"priority is {priority}; it must be an integer"):
        engine.submit("x", "Once", GREEDY, priority=priority)
    assert_clean(engine)


def test_stop_string_without_a_tokenizer_leaves_no_ghost(engine: LLMEngine) -> None:
    processor = engine.output_processor
    tokenizer, processor.tokenizer = processor.tokenizer, None
    try:
        with pytest.raises(ValueError, match="the engine has no tokenizer"):
            engine.submit("x", [5, 6], SamplingParams(stop="a"))
        assert_clean(engine)
    finally:
        processor.tokenizer = tokenizer


def test_parameters_are_checked_when_they_are_used(engine: LLMEngine) -> None:
    """They may have been changed after they were made."""
    params = SamplingParams()
    params.temperature = 10**400
    with pytest.raises(ValueError, match="temperature is an integer of 1329 bits"):
        engine.submit("x", "Once", params)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampling_params": [GREEDY, None]}, "sampling_params is None"),
        ({"sampling_params": GREEDY, "priority": [0, None]}, "priority is None"),
        ({"sampling_params": GREEDY, "priority": [0, "high"]}, "priority is 'high'"),
    ],
)
def test_the_rest_of_a_batch_is_served(options: Any, words: str, llm: LLM) -> None:
    good, bad = llm.generate(["Once", "The sun"], use_tqdm=False, **options)
    assert good.outputs[0].token_ids == generate(llm, "Once", GREEDY).outputs[0].token_ids
    assert bad.finished and words in str(bad.error)


@pytest.mark.parametrize(
    "arguments", [(5,), (None,), ("Once", "hot"), ("Once", {"n": 1}), (["Once"], GREEDY, 5)]
)
def test_calls_that_make_no_sense(arguments: Any, llm: LLM) -> None:
    with pytest.raises(ValueError, match=r" is .*; (it must be|pass) "):
        llm.generate(*arguments[:2], priority=(*arguments, None, None)[2], use_tqdm=False)
    assert_clean(llm.engine)


def test_a_long_bad_prompt_is_not_printed_back(engine: LLMEngine) -> None:
    with pytest.raises(ValueError) as error:
        engine.submit("x", ["word"] * 10**6, GREEDY)  # type: ignore[list-item]
    assert len(str(error.value)) < 300


# ---- aborts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["r1", ["r1"], None])
def test_abort_ends_the_work_and_the_output(ids: Any, engine: LLMEngine) -> None:
    output = engine.submit("r1", "Once", GREEDY)
    for _ in range(3):
        engine.step()
    engine.abort_requests(ids)
    assert output.finished and output.outputs[0].finish_reason == "abort"
    assert_clean(engine)


def test_abort_by_the_id_of_several_completions(engine: LLMEngine) -> None:
    output = engine.submit("r1", "Once", MANY)
    other = engine.submit("r2", "The sun", GREEDY)
    engine.step()
    engine.abort_requests(["r1", "unknown"])
    assert output.finished and {c.finish_reason for c in output.outputs} == {"abort"}
    drain(engine)
    assert other.outputs[0].finish_reason == "length"


def test_abort_of_one_of_several_completions(engine: LLMEngine) -> None:
    output = engine.submit("r1", "Once", MANY)
    engine.step()
    engine.abort_requests("1_r1")
    assert not output.finished
    drain(engine)
    assert [c.finish_reason for c in output.outputs] == ["length", "abort", "length"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_output_has_the_text_of_its_tokens(stream: bool, engine: LLMEngine) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, stop=["never there"])
    output = engine.submit("x", "Once upon a time", params, stream=stream)
    plain = engine.submit("y", "Once upon a time", GREEDY, stream=stream)
    for _ in range(5):
        engine.step()
    engine.abort_requests()
    for ended in (output, plain):
        completion = ended.outputs[0]
        assert len(completion.token_ids) == 5
        assert completion.text == engine.tokenizer.decode(completion.token_ids)


def test_requests_that_vanish_from_the_core_end_here_too(engine: LLMEngine) -> None:
    output = engine.submit("x", "Once", GREEDY)
    engine.core.abort_requests(["x"])
    drain(engine)
    assert output.finished


# ---- what is reported -------------------------------------------------------------------------


def test_prompt_logprobs_come_once(engine: LLMEngine) -> None:
    """Several completions compute the same prompt; a preempted one computes it twice."""
    prompt = list(range(50, 70))
    params = SamplingParams(n=3, seed=1, max_tokens=30, ignore_eos=True, prompt_logprobs=0)
    alone = engine.submit("a", prompt, SamplingParams(max_tokens=1, prompt_logprobs=0))
    drain(engine)
    output = engine.submit("r", prompt, params)
    drain(engine)
    assert engine.stats.num_preemptions > 0, "the test wants a preemption"
    assert output.prompt_logprobs is not None and alone.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt)
    for ours, theirs in zip(output.prompt_logprobs[1:], alone.prompt_logprobs[1:], strict=True):
        assert ours is not None and theirs is not None and ours.keys() == theirs.keys()
        assert all(abs(ours[i].logprob - theirs[i].logprob) < 1e-4 for i in ours)


def test_counts_are_told_when_a_stop_string_ends_the_request(llm: LLM) -> None:
    text = generate(llm, PREFIX + [5], GREEDY).outputs[0].text
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=text[-3:])
    output = generate(llm, PREFIX + [5], params)
    assert output.outputs[0].stop_reason == text[-3:]
    assert output.num_cached_tokens == 16


def test_preemptions_are_told_when_a_stop_string_ends_the_request(engine: LLMEngine) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    outputs = [engine.submit(i, [50 + int(i)] * 20, params) for i in "012"]
    drain(engine)
    victim = next(o for o in outputs if o.metrics is not None and o.metrics.num_preemptions)
    stop = victim.outputs[0].text[-6:]
    with_stop = SamplingParams(temperature=0, max_tokens=70, ignore_eos=True, stop=stop)
    reset(engine)
    again = [
        engine.submit(i, [50 + int(i)] * 20, with_stop if i == victim.request_id else params)
        for i in "012"
    ]
    drain(engine)
    ended = again[int(victim.request_id)]
    assert ended.outputs[0].stop_reason == stop
    assert ended.metrics is not None and ended.metrics.num_preemptions > 0


# ---- nested calls -----------------------------------------------------------------------------


def test_generate_inside_a_running_stream(llm: LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    alone = generate(llm, "Once upon a time", long).outputs[0]
    other = generate(llm, "The sun", GREEDY).outputs[0].text
    texts = []
    for output in llm.stream(["Once upon a time", "A cat"], long):
        if output.prompt == "Once upon a time":
            texts.append(output.outputs[0].text)
            last = output
        if len(texts) % 3 == 1:
            assert generate(llm, "The sun", GREEDY).outputs[0].text == other
    assert last.finished and last.outputs[0].token_ids == alone.token_ids
    assert texts == sorted(texts, key=len) and texts[-1] == alone.text


def test_streams_side_by_side(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    alone = [generate(llm, prompt, params).outputs[0].token_ids for prompt in ("Once", "The sun")]
    first, second = llm.stream("Once", params), llm.stream("The sun", params)
    seen = [list(zip(first, second, strict=False))[-1], list(first), list(second)]
    outputs = seen[0]
    assert [output.outputs[0].token_ids for output in outputs] == alone


def test_a_stream_that_is_left_ends_its_own_requests_only(llm: LLM) -> None:
    outer = llm.stream("Once", GREEDY)
    kept = next(outer)
    inner = llm.stream("The sun", GREEDY)
    dropped = next(inner)
    inner.close()
    assert dropped.outputs[0].finish_reason == "abort"
    assert list(outer)[-1] is kept and kept.outputs[0].finish_reason == "length"


def test_abort_inside_a_stream_ends_it(llm: LLM) -> None:
    outputs = []
    for output in llm.stream("Once", GREEDY):
        outputs.append(output)
        llm.engine.abort_requests(output.request_id)
    assert len(outputs) == 2 and outputs[-1].outputs[0].finish_reason == "abort"


# ---- Ctrl-C -----------------------------------------------------------------------------------


def add_all(engine: LLMEngine) -> list[RequestOutput]:
    """Shared prefixes, several completions, logprobs, a stop string, more than fits at once."""
    many = SamplingParams(
        n=2, temperature=0.9, seed=3, max_tokens=20, ignore_eos=True, prompt_logprobs=1
    )
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)
    stop = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, stop=["never there"])
    return [
        engine.submit("a", PREFIX + [5, 6], greedy),
        engine.submit("b", PREFIX + [9], many, stream=False),
        engine.submit("c", list(range(50, 80)), stop),
    ]


def expected_of(engine: LLMEngine) -> list[Any]:
    reset(engine)
    outputs = add_all(engine)
    drain(engine)
    return view(outputs)


def lines_of(run: Callable[[], Any]) -> int:
    with strike() as strikes:
        run()
    return strikes.num_lines


def assert_undone(engine: LLMEngine, step: int, stride: int) -> None:
    """Interrupt every ``stride``-th line of a step; all requests go on and give the same tokens."""
    expected = expected_of(engine)
    reset(engine)
    add_all(engine)
    for _ in range(step):
        engine.step()
    num_lines = lines_of(engine.step)
    drain(engine)
    for at in range(1 + step % stride, num_lines, stride):
        reset(engine)
        outputs = add_all(engine)
        for _ in range(step):
            engine.step()
        with strike(at) as strikes:
            engine.step()
        assert strikes.place is not None
        engine.core.scheduler.check_integrity()
        drain(engine)
        assert view(outputs) == expected, strikes.place
        assert_clean(engine)


@pytest.mark.parametrize("step", [0, 1, 2, 8, 20])
def test_an_interrupted_step_is_undone(step: int, engine: LLMEngine) -> None:
    """The first steps admit; at the 8th all decode; at the 20th some have just ended."""
    assert_undone(engine, step, stride=61)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1, 2, 8, 20, 27])
def test_an_interrupted_step_is_undone_at_every_line(step: int, engine: LLMEngine) -> None:
    assert_undone(engine, step, stride=2)


def test_interrupted_schedule_publishes_nothing(llm: LLM) -> None:
    """A block that was not computed is not found."""
    engine = llm.engine
    alone = generate(llm, PREFIX + [5], GREEDY).outputs[0].text
    for at in range(1, 400, 7):
        reset(engine)
        engine.submit("x", PREFIX + [9], GREEDY)
        with strike(at):
            engine.core.step()
        engine.abort_requests()
        assert generate(llm, PREFIX + [5], GREEDY).outputs[0].text == alone


def test_interrupted_add_queues_all_or_nothing(engine: LLMEngine) -> None:
    def add(request_id: str) -> RequestOutput:
        return engine.submit(request_id, PREFIX, MANY)

    other = engine.submit("other", "Once", GREEDY)
    for at in range(1, lines_of(lambda: add("first")) + 1):
        with strike(at) as strikes:
            add("x")
        known = [i for i in engine.core.scheduler.requests if i.endswith("x")]
        assert known == [], strikes.place
        assert not [i for i in engine.output_processor.completions if i.endswith("x")]
        engine.core.scheduler.check_integrity()
    drain(engine)
    assert other.outputs[0].finish_reason == "length"


def test_interrupted_abort_leaves_no_ghost(engine: LLMEngine) -> None:
    def start() -> list[RequestOutput]:
        reset(engine)
        outputs = add_all(engine)
        for _ in range(4):
            engine.step()
        return outputs

    start()
    expected = expected_of(engine)
    start()
    for at in range(1, lines_of(lambda: engine.abort_requests(["a", "b"])) + 1, 5):
        outputs = start()
        with strike(at) as strikes:
            engine.abort_requests(["a", "b"])
        engine.core.scheduler.check_integrity()
        drain(engine)
        assert all(output.finished for output in outputs), strikes.place
        assert view(outputs[2:]) == expected[2:], strikes.place
        assert_clean(engine)


def test_an_interrupted_generate_leaves_nothing_and_harms_no_request(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    alone = generate(llm, "Once upon a time", params).outputs[0].token_ids
    few = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    num_lines = lines_of(lambda: llm.generate(["The sun", PREFIX], few, use_tqdm=False))
    stream = llm.stream("Once upon a time", params)
    output = next(stream)
    for at in range(1, num_lines, max(num_lines // 60, 1)):
        with strike(at) as strikes:
            llm.generate(["The sun", PREFIX], few, use_tqdm=False)
        llm.engine.core.scheduler.check_integrity()
        assert len(llm.engine.output_processor.completions) == (not output.finished), strikes.place
        if output.finished:
            assert list(stream)[-1:] in ([output], [])
            assert output.outputs[0].token_ids == alone
            stream = llm.stream("Once upon a time", params)
            output = next(stream)
    stream.close()


def test_interrupted_reset_of_the_cache(llm: LLM) -> None:
    engine = llm.engine
    generate(llm, PREFIX + [5], GREEDY)
    num_lines = lines_of(engine.core.reset_prefix_cache)
    for at in range(1, num_lines + 1):
        generate(llm, PREFIX + [5], GREEDY)
        with strike(at):
            engine.core.reset_prefix_cache()
        engine.core.scheduler.check_integrity()
