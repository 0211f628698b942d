"""Logits and the plain sampler behind a replay, without a GPU: same tokens, and when it serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm import LLM, SamplingParams
from mini_vllm.sample.metadata import make_sampling_metadata
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker import late_results
from mini_vllm.worker.cuda_graphs import record_eagerly
from mini_vllm.worker.recorded_head import RecordedHead

LIMITS: dict[str, Any] = {
    "dtype": "float32", "block_size": 4, "num_gpu_blocks": 40, "max_model_len": 64,
    "max_num_batched_tokens": 24, "max_num_seqs": 6,
}  # fmt: skip
PROMPTS = [[200, 201, 202], list(range(300, 322)), [700] * 9, list(range(300, 318)), [5, 6]]
PLAIN: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0}],
    "seeded": [{"seed": 3}],
    "both": [{"temperature": 0}, {"seed": 3, "temperature": 0.7}],
    "three each": [{"seed": 3, "n": 3}],
    "stops": [{"temperature": 0, "stop": ["e"]}, {"seed": 1, "stop_token_ids": [13, 258]}],
}
MORE: dict[str, list[dict[str, Any]]] = {
    "top-p": [{"seed": 3, "top_p": 0.9}],
    "penalties": [{"seed": 3, "presence_penalty": 0.5, "repetition_penalty": 1.3}],
    "logprobs": [{"temperature": 0, "logprobs": 3, "prompt_logprobs": 2}],
    "named logprobs": [{"temperature": 0, "logprob_token_ids": [5, 9]}],
    "bad words": [{"temperature": 0, "bad_words": ["e", "the", "a b"]}],
    "bias": [{"temperature": 0, "logit_bias": {7: 2.0}, "min_tokens": 3}],
    "grammar": [{"temperature": 0, "structured_outputs": {"regex": "[a-z ]{3,9}"}}],
    "one of many": [{"temperature": 0}, {"seed": 3, "top_k": 5}, {"seed": 4}],
}


def story(llm: LLM, kinds: list[dict[str, Any]]) -> list[Any]:
    params = [
        SamplingParams(**{"max_tokens": 10 - index} | kinds[index % len(kinds)])
        for index in range(len(PROMPTS))
    ]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [
        (o.error, o.prompt_logprobs, [(c.token_ids, c.text, c.finish_reason, c.logprobs)
                                      for c in o.outputs])
        for o in outputs
    ]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["in time", "late"])
def engines(request: pytest.FixtureRequest) -> Any:
    """One that launches each operation and one that replays; the latter says what it drew."""
    plain, recorded = (LLM("storyteller-draft", async_scheduling=request.param, **LIMITS)
                       for _ in range(2))  # fmt: skip
    runner = recorded.engine.core.model_runner
    runner.warm_up(8, record_eagerly)
    drawn: list[int] = []
    draw = runner.head.draw

    def told(hidden: Tensor, rows: Tensor, metadata: Any) -> Tensor | None:
        drawn.append(len(rows))
        return draw(hidden, rows, metadata)

    runner.head.draw = told
    yield plain, recorded, drawn
    plain.shutdown()
    recorded.shutdown()


@pytest.mark.parametrize("kind", {**PLAIN, **MORE})
def test_a_replay_draws_the_tokens_of_a_launch(kind: str, engines: Any) -> None:
    """It serves all steps whose rows ask for no more than a temperature, and no other."""
    plain, recorded, drawn = engines
    for llm in (plain, recorded):
        llm.reset_prefix_cache()
    steps: list[int] = []
    recorded.engine.core.observers.append(lambda plan, *_: steps.append(1))
    drawn.clear()
    kinds = (PLAIN | MORE)[kind]
    assert story(recorded, kinds) == story(plain, kinds)
    recorded.engine.core.observers.clear()
    if kind in PLAIN:
        assert len(drawn) >= len(steps) - 2 > 6, "all but the steps that end no prompt"
    elif kind == "one of many":
        assert 0 < len(drawn) < len(steps), "as soon as the others have ended"
    else:  # of a request that has ended meanwhile, late results compute one token more
        assert len(drawn) <= (kind == "grammar")


def test_a_recorded_step_looks_its_tokens_up_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the step before was drawn by a replay or not: then they are put where it looks."""
    llm = LLM("storyteller-draft", async_scheduling=True, **LIMITS)
    runner = llm.engine.core.model_runner
    expected = [story(llm, PLAIN["both"]), story(llm, MORE["top-p"])]
    runner.warm_up(8, record_eagerly)
    assert runner.late is not None and runner.graphs is not None
    resolved: list[int] = []
    resolve = runner.late.resolve

    def told(input_ids: Tensor) -> Tensor:
        resolved.append(len(input_ids))
        return resolve(input_ids)

    monkeypatch.setattr(runner.late, "resolve", told)
    replay, replays = runner.graphs.replay, list[int]()

    def replayed(input_ids: Tensor, *step: Any) -> Any:
        replays.append(int((input_ids < 0).sum()))
        return replay(input_ids, *step)

    monkeypatch.setattr(runner.graphs, "replay", replayed)
    for kinds, right in zip((PLAIN["both"], MORE["top-p"]), expected, strict=True):
        llm.reset_prefix_cache()
        assert story(llm, kinds) == right
    assert sum(unknown > 0 for unknown in replays) > 10
    assert len(resolved) <= 8, "steps with prompts alone"
    llm.shutdown()


def head_of(weight: Tensor, num_rows: int, buckets: list[int]) -> RecordedHead:
    hidden = torch.zeros(1, weight.shape[1])
    head = RecordedHead(lambda rows: rows @ weight.T, Sampler(), hidden, num_rows)
    head.capture(buckets, record_eagerly)
    return head


def test_rows_of_padding_and_of_the_step_before_change_nothing() -> None:
    torch.manual_seed(1)
    weight, hidden = torch.randn(50, 8), torch.randn(9, 8)
    head = head_of(weight, 6, [1, 2, 4])
    assert head.vocab_size == 50
    for count, kinds in ((4, [0, 0.8, 1, 0]), (3, [1.2, 0, 0.5]), (1, [0.9]), (2, [0, 0])):
        params = [SamplingParams(temperature=t, seed=7 + i) for i, t in enumerate(kinds)]
        of_rows = [(p, (), (1,) * i, ()) for i, p in enumerate(params)]
        mine, theirs = (make_sampling_metadata(of_rows, 50) for _ in range(2))
        rows = torch.randperm(9)[:count]
        for _ in range(3):
            drawn = head.draw(hidden, rows, mine)
            right = Sampler()(hidden[rows] @ weight.T, theirs).sampled_token_ids
            assert drawn is not None and drawn.tolist() == right.tolist()
            mine.advance(drawn)
            theirs.advance(right)
    assert head.draw(hidden, torch.arange(5), mine) is None, "nothing is recorded for five"


def test_an_answer_outlives_the_next_replay() -> None:
    weight, hidden = torch.eye(5), torch.eye(5)
    head = head_of(weight, 2, [1, 2])
    metadata = make_sampling_metadata([(SamplingParams(temperature=0), (), (), ())], 5)
    first, second = (head.draw(hidden, torch.tensor([row]), metadata) for row in (3, 1))
    assert first is not None and second is not None
    assert (first.tolist(), second.tolist(), head.token_ids.tolist()) == ([3], [1], [1, 0])
    head.hold(second)
    head.hold(torch.tensor([4, 2]))
    assert head.token_ids.tolist() == [4, 2], "tokens that were drawn elsewhere"
    looked_up = late_results.look_up(torch.tensor([-2, 7, -1]), head.token_ids)
    assert looked_up.tolist() == [2, 7, 4]
