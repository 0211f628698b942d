"""The two loops on the bundled model: edges of the lengths, and what each pass computes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

few = settings(max_examples=8)
WITHOUT = "mini_vllm.engine.naive:greedy_without_cache"
WITH = "mini_vllm.engine.naive:greedy_with_cache"
tokens = st.lists(st.integers(3, 2047), min_size=1, max_size=24)


@pytest.fixture(scope="module", autouse=True)
def _warm(subject: Any, reference: Any) -> None:
    """Import torch before the first answer is timed."""
    for worker in (subject, reference):
        p = Program()
        p.call("importlib:import_module", "torch")
        p.call("torch:set_num_threads", 1)
        worker.run(p)


def storyteller(p: Program) -> Any:
    folder = p.call("mini_vllm.bundled:path", "storyteller")
    return p.call("mini_vllm.model.build:load_model", folder, dtype="float32")


def watched(p: Program) -> tuple[Any, Any]:
    """The model, and a hook that notes the arguments of every forward pass."""
    model = storyteller(p)
    hook = p.new("unittest.mock:Mock", return_value=None)
    model.register_forward_pre_hook(hook)
    return model, hook


def generate(worker: Any, loop: str, prompt: Any, max_tokens: int) -> Any:
    """The answer's tokens with their types: a tensor of one number equals that number."""
    p = Program()
    p.see(p.call("builtins:list", p.call(loop, storyteller(p), prompt, max_tokens)))
    [answer] = worker.run(p)
    assert isinstance(answer, list), answer
    return [(type(token), token) for token in answer]


@few
@given(prompt=tokens, max_tokens=st.integers(1, 6))
def test_01_1_any_prompt_without_a_cache(
    subject: Any, reference: Any, prompt: list[int], max_tokens: int
) -> None:
    """Prompts and lengths drawn at random, one token of each included."""
    mine = generate(subject, WITHOUT, prompt, max_tokens)
    assert mine == generate(reference, WITHOUT, prompt, max_tokens)


def test_01_1_nothing_wanted_nothing_computed(subject: Any) -> None:
    """max_tokens=0 gives no token."""
    assert generate(subject, WITHOUT, [5, 6, 7], 0) == []


def test_01_1_a_prompt_may_be_a_tuple(subject: Any, reference: Any) -> None:
    """Any sequence of tokens is a prompt."""
    mine = generate(subject, WITHOUT, (50, 60, 70), 3)
    assert mine == generate(reference, WITHOUT, (50, 60, 70), 3)
    assert len(mine) == 3


def test_01_1_every_step_computes_all_from_position_0(subject: Any) -> None:
    """Task 2 shows what a cache saves; here nothing is kept."""
    p = Program()
    model, hook = watched(p)
    p.call(WITHOUT, model, [50, 60, 70], 3)
    for index in range(3):
        p.see(hook.call_args_list[index][0][1][1].tolist())
    assert subject.run(p) == [list(range(length)) for length in (3, 4, 5)]


@few
@given(prompt=tokens, max_tokens=st.integers(1, 6))
def test_01_2_any_prompt_with_a_cache(
    subject: Any, reference: Any, prompt: list[int], max_tokens: int
) -> None:
    """The cache changes no token: the reference without a cache says the same."""
    mine = generate(subject, WITH, prompt, max_tokens)
    assert mine == generate(reference, WITHOUT, prompt, max_tokens)


def test_01_2_one_token_is_a_prefill_alone(subject: Any) -> None:
    """max_tokens=1 gives one token and takes one pass."""
    lengths = passes(subject, WITH, [50, 60, 70], 1)
    assert lengths == [1, 3], "number of passes, then the tokens of each"


def test_01_2_a_prompt_of_one_token(subject: Any) -> None:
    """The first pass of a one-token prompt stands at position 0."""
    assert passes(subject, WITH, [50], 3) == [3, 1, 1, 1]


def test_01_2_a_prompt_may_be_a_tuple(subject: Any, reference: Any) -> None:
    """Any sequence of tokens is a prompt."""
    mine = generate(subject, WITH, (50, 60, 70), 3)
    assert mine == generate(reference, WITH, [50, 60, 70], 3)
    assert len(mine) == 3


def past_eos(worker: Any, loop: str) -> Any:
    """The length of an answer of 4 tokens on a model whose vocabulary is all EOS."""
    p = Program()
    model = storyteller(p)
    every = p.call("builtins:tuple", p.call("builtins:range", 2048))
    p.set(model, "config", p.call("dataclasses:replace", model.config, eos_token_ids=every))
    p.see(p.call("builtins:len", p.call(loop, model, [50, 60, 70], 4)))
    return worker.run(p)


def test_01_1_eos_is_a_token_like_others(subject: Any) -> None:
    """When a request ends is not this loop's matter."""
    assert past_eos(subject, WITHOUT) == [4]


def test_01_2_eos_is_a_token_like_others(subject: Any) -> None:
    """When a request ends is not this loop's matter either."""
    assert past_eos(subject, WITH) == [4]


def passes(worker: Any, loop: str, prompt: list[int], max_tokens: int) -> Any:
    """The number of forward passes, then how many tokens each computed."""
    p = Program()
    model, hook = watched(p)
    p.call(loop, model, prompt, max_tokens)
    p.see(hook.call_count)
    for index in range(max_tokens):
        p.see(hook.call_args_list[index][0][1][0].numel())
    return worker.run(p)


@pytest.mark.parametrize(("prompt", "max_tokens"), [([50, 60, 70], 4), ([50], 1), ([50, 60], 2)])
def test_01_2_one_cache_is_as_long_as_it_must_be(
    subject: Any, prompt: list[int], max_tokens: int
) -> None:
    """All passes write to the same tensors, which have no room for the last token: it is never
    computed."""
    p = Program()
    model, hook = watched(p)
    p.call(WITH, model, prompt, max_tokens)
    p.see(p.call("builtins:tuple", hook.call_args_list[0][0][1][2][0].shape)[2])
    for index in range(max_tokens):
        layer = hook.call_args_list[index][0][1][2][0]
        p.see(p.call("operator:is_", layer, hook.call_args_list[0][0][1][2][0]))
    assert subject.run(p) == [len(prompt) + max_tokens - 1, *[True] * max_tokens]


def scripted(worker: Any, loop: str, best: list[int]) -> Any:
    """The answer of a loop whose model prefers these tokens, each by the least there is."""
    p = Program()
    module = p.call("importlib:import_module", "mini_vllm.engine.naive")
    usual = p.call("builtins:getattr", module, "next_token_logits")
    logits = [[1.0 + (token == index) * 2**-23 for index in range(8)] for token in best]
    answers = [p.call("torch:tensor", row) for row in logits]
    model = storyteller(p)
    p.set(module, "next_token_logits", p.new("unittest.mock:Mock", side_effect=answers))
    answer = p.call(loop, model, [5, 6, 7], len(best))
    p.set(module, "next_token_logits", usual)
    p.see(answer)
    return worker.run(p)


def kept(worker: Any, loop: str) -> Any:
    """Two answers and the prompt of the first, seen after both."""
    p = Program()
    model, prompt = storyteller(p), p.call("builtins:list", [50, 60, 70])
    answers = [p.call(loop, model, prompt, 3), p.call(loop, model, [80, 90], 2)]
    p.see([p.call("builtins:list", prompt), *answers])
    return worker.run(p)


def test_01_1_the_largest_logit_by_however_little(subject: Any) -> None:
    """Logits are float32: of two that half precision takes for one, the larger one is chosen."""
    assert scripted(subject, WITHOUT, [3, 0, 7, 5]) == [[3, 0, 7, 5]]


def test_01_2_the_largest_logit_by_however_little(subject: Any) -> None:
    """The same with a cache."""
    assert scripted(subject, WITH, [3, 0, 7, 5]) == [[3, 0, 7, 5]]


def test_01_1_no_token_ends_it(subject: Any) -> None:
    """Every token of a small vocabulary, in two orders: none of them is the end of a text here, and
    no loop remembers what another model said."""
    for script in ([0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]):
        assert scripted(subject, WITHOUT, script) == [script]


def test_01_2_no_token_ends_it(subject: Any) -> None:
    """The same with a cache."""
    for script in ([0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]):
        assert scripted(subject, WITH, script) == [script]


def test_01_1_answers_and_prompts_are_lists_of_their_own(subject: Any, reference: Any) -> None:
    """A later request changes no earlier answer, and no prompt is written to."""
    mine = kept(subject, WITHOUT)
    assert mine == kept(reference, WITHOUT) and mine[0][0] == [50, 60, 70]


def test_01_2_answers_and_prompts_are_lists_of_their_own(subject: Any, reference: Any) -> None:
    """The same with a cache."""
    mine = kept(subject, WITH)
    assert mine == kept(reference, WITH) and mine[0][0] == [50, 60, 70]


def test_01_1_a_prompt_of_many_tokens(subject: Any, reference: Any) -> None:
    """All of it is computed, in every pass."""
    prompt = [3 + 37 * index % 2000 for index in range(150)]
    assert generate(subject, WITHOUT, prompt, 2) == generate(reference, WITHOUT, prompt, 2)
    assert passes(subject, WITHOUT, prompt, 2) == [2, 150, 151]


def test_01_2_a_long_context_is_not_at_its_end(subject: Any) -> None:
    """Behind a prompt of 1,100 tokens comes place 1,100, and so on."""
    p = Program()
    model, hook = watched(p)
    p.call(WITH, model, [3 + 37 * index % 2000 for index in range(1100)], 3)
    for index in range(3):
        p.see(hook.call_args_list[index][0][1][1].tolist())
    assert subject.run(p) == [list(range(1100)), [1100], [1101]]


def test_01_2_a_prompt_of_many_tokens(subject: Any, reference: Any) -> None:
    """All of it is computed, in one pass."""
    prompt = [3 + 37 * index % 2000 for index in range(150)]
    assert generate(subject, WITH, prompt, 2) == generate(reference, WITH, prompt, 2)
    assert passes(subject, WITH, prompt, 2) == [2, 150, 1]


def caches_of(worker: Any, loop: str, requests: int, max_tokens: int) -> Any:
    """Which forward passes of some equal requests wrote to the same tensors: the number of each
    pass's cache, in the order in which they appeared; then how many passes there were."""
    p = Program()
    model, hook = watched(p)
    for _ in range(requests):
        p.call(loop, model, [50, 60, 70], max_tokens)
    p.see(hook.call_count)
    layers = [hook.call_args_list[i][0][1][2][0] for i in range(requests * max_tokens)]
    for index, layer in enumerate(layers):
        for before in layers[: index + 1]:
            p.see(p.call("operator:is_", layer, before))
    count, *same = worker.run(p)
    first = [same[i * (i + 1) // 2 :][: i + 1].index(True) for i in range(len(layers))]
    return count, [sorted(set(first)).index(number) for number in first]


def test_01_1_every_pass_has_an_empty_cache_of_its_own(subject: Any) -> None:
    """Two equal requests, one after the other: nothing is kept between passes or requests, neither
    a cache nor an answer."""
    assert caches_of(subject, WITHOUT, 2, 2) == (4, [0, 1, 2, 3])


def test_01_2_every_request_has_a_cache_of_its_own(subject: Any) -> None:
    """Three passes write to one cache, and those of the next equal request to another one."""
    assert caches_of(subject, WITH, 2, 3) == (6, [0, 0, 0, 1, 1, 1])


def test_01_1_answers_of_any_length(subject: Any) -> None:
    """Three hundred tokens are wanted, and three hundred come."""
    script = [index % 8 for index in range(300)]
    assert scripted(subject, WITHOUT, script) == [script]


def test_01_2_answers_of_any_length(subject: Any) -> None:
    """The same with a cache."""
    script = [index % 8 for index in range(300)]
    assert scripted(subject, WITH, script) == [script]


NOTED = """
from mini_vllm.engine import naive

class Cache:
    def __init__(self, model, max_len):
        rooms.append(max_len)

def next_token_logits(model, cache, token_ids, start):
    passes.append([len(token_ids), start, int(token_ids[0]), int(token_ids[-1])])
    logits = torch.zeros(vocabulary)
    logits[script[len(passes) - 1]] = 1.0
    return logits

import torch
rooms, passes = [], []
usual = naive.ContiguousKVCache, naive.next_token_logits
naive.ContiguousKVCache, naive.next_token_logits = Cache, next_token_logits
try:
    answer = getattr(naive, loop)(None, prompt, len(script))
finally:
    naive.ContiguousKVCache, naive.next_token_logits = usual
"""
"""A loop on a model that says what it is told to, with note of each cache and pass."""


def noted(worker: Any, loop: str, prompt: list[int], script: list[int], vocabulary: int) -> Any:
    """The answer, how long each cache was, and the length, start and both ends of each pass."""
    p = Program()
    names = p.execute(
        NOTED, loop=loop.partition(":")[2], prompt=prompt, script=script, vocabulary=vocabulary
    )
    for name in ("answer", "rooms", "passes"):
        p.see(names[name])
    return worker.run(p)


LATE = [151_935, 0, 32_768, 65_536, 32_000, 2_049]
"""Tokens of a vocabulary of 151,936."""


def test_01_1_tokens_of_a_large_vocabulary(subject: Any) -> None:
    """Every token is reached, to the last."""
    answer, rooms, passes = noted(subject, WITHOUT, [5, 6, 7], LATE, 151_936)
    assert answer == LATE and len(rooms) == 6
    assert passes == [[n + 3, 0, 5, token] for n, token in enumerate([7, *LATE[:-1]])]


def test_01_2_tokens_of_a_large_vocabulary(subject: Any) -> None:
    """The same with a cache, which is made once."""
    answer, rooms, passes = noted(subject, WITH, [5, 6, 7], LATE, 151_936)
    assert answer == LATE
    assert rooms == [8]
    assert passes == [[3, 0, 5, 7], *([1, 3 + n, t, t] for n, t in enumerate(LATE[:-1]))]


def test_01_1_a_prompt_of_40000_tokens(subject: Any) -> None:
    """All of it, in each pass."""
    answer, rooms, passes = noted(subject, WITHOUT, list(range(40_000)), [3, 4], 8)
    assert answer == [3, 4] and len(rooms) == 2
    assert passes == [[40_000, 0, 0, 39_999], [40_001, 0, 0, 3]]


def test_01_2_a_prompt_of_40000_tokens(subject: Any) -> None:
    """All of it in the first call, and then a token at a time behind it."""
    answer, rooms, passes = noted(subject, WITH, list(range(40_000)), [3, 4, 5], 8)
    assert (answer, rooms) == ([3, 4, 5], [40_002])
    assert passes == [[40_000, 0, 0, 39_999], [1, 40_000, 3, 3], [1, 40_001, 4, 4]]
