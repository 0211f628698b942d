"""Beam search on random trees: against a loop over all texts, and against pruning by hand."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25)
BEAMS = "mini_vllm.engine.beam_search:"
PROMPT = [7, 0, 5]
"""It holds an end token, which is no end there."""
ENDS = (0, 3)
seeds = st.integers(0, 2**31)
Text = tuple[float, list[int]]


class Tree:
    """Made-up log probabilities: each text has its own proposals, all sums exact and different.

    A log probability is a whole number of 2**-30, so a sum does not depend on its order.
    """

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed, self.vocab = seed, vocab

    def proposals(self, tokens: list[int]) -> dict[int, float]:
        draw = random.Random(f"{self.seed} {tokens}")
        drawn = {token: -draw.randint(1, 2**32) / 2**30 for token in range(self.vocab)}
        return dict(sorted(drawn.items(), key=lambda pair: -pair[1]))


def score(text: Text, penalty: float) -> float:
    total, tokens = text
    return float(total / (len(tokens) - (tokens[-1] in ENDS)) ** penalty)


def by_hand(
    tree: Tree, steps: int, width: int, penalty: float, ignore_eos: bool
) -> tuple[list[list[Text]], list[Text], list[Text]]:
    """The beams of each step, the complete texts, and what is found."""
    beams: list[Text] = [(0.0, PROMPT)]
    complete: list[Text] = []
    history = []
    for _ in range(steps):
        grown = [
            (total + logprob, [*tokens, token])
            for total, tokens in beams
            for token, logprob in tree.proposals(tokens).items()
        ]
        ended = [text for text in grown if text[1][-1] in ENDS and not ignore_eos]
        complete += ended
        pool = [text for text in grown if text not in ended]
        beams = sorted(pool, key=lambda text: -score(text, penalty))[:width]
        history.append(beams)
    found = sorted([*complete, *beams], key=lambda text: -score(text, penalty))[:width]
    return history, complete, found


def searched(
    worker: Any, tree: Tree, history: list[list[Text]], width: int, penalty: float, ignore_eos: bool
) -> list[Any]:
    """What a worker's search gives for the same proposals: beams of each step, the complete texts,
    the best, and how they ended."""
    p = Program()
    params = p.new(
        "mini_vllm.sampling_params:BeamSearchParams", width, 9, ignore_eos=ignore_eos,
        length_penalty=penalty,
    )  # fmt: skip
    search = p.new(f"{BEAMS}BeamSearch", PROMPT, PROMPT, params, ENDS)
    for beams in [[(0.0, PROMPT)], *history[:-1]]:
        proposals = [
            {
                token: p.new("mini_vllm.outputs:Logprob", value)
                for token, value in tree.proposals(tokens).items()
            }
            for _, tokens in beams
        ]
        search.grow(proposals)
        p.see_each(search.beams, "tokens")
        p.see_each(search.beams, "cum_logprob")
    p.see_each(search.completed, "tokens")
    best = search.finished()
    for attribute in ("tokens", "cum_logprob", "finish_reason", "stop_reason"):
        p.see_each(best, attribute)
    return list(worker.run(p))


def expected_of(history: list[list[Text]], complete: list[Text], found: list[Text]) -> list[Any]:
    ended = [tokens in [c for _, c in complete] for _, tokens in found]
    seen: list[Any] = []
    for beams in history:
        seen += [[tokens for _, tokens in beams], [total for total, _ in beams]]
    seen += [[tokens for _, tokens in complete], [t for _, t in found], [s for s, _ in found]]
    seen += [["stop" if end else "length" for end in ended]]
    seen += [[t[-1] if end else None for (_, t), end in zip(found, ended, strict=True)]]
    return seen


@many
@given(
    seed=seeds,
    steps=st.integers(1, 4),
    width=st.integers(1, 5),
    penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    ignore_eos=st.booleans(),
)
def test_06_9_any_tree_pruned_by_hand(
    subject: Any, seed: int, steps: int, width: int, penalty: float, ignore_eos: bool
) -> None:
    """Beams of every step in their order, complete texts, the best and how each has ended."""
    tree = Tree(seed, vocab=6)
    history, complete, found = by_hand(tree, steps, width, penalty, ignore_eos)
    right = expected_of(history, complete, found)
    assert searched(subject, tree, history, width, penalty, ignore_eos) == right


@many
@given(seed=seeds, penalty=st.sampled_from([-1.0, 0.0, 1.0, 2.0]), width=st.integers(27, 60))
def test_06_9_wide_enough_it_is_exhaustive(
    subject: Any, seed: int, penalty: float, width: int
) -> None:
    """Three steps over five tokens, two of them ends: no text is better than those found."""
    tree, texts = Tree(seed, vocab=5), []
    for length in (1, 2, 3):
        for words in itertools.product(range(5), repeat=length):
            ends = words[-1] in ENDS
            if any(word in ENDS for word in words[:-1]) or not (ends or length == 3):
                continue
            steps = [tree.proposals([*PROMPT, *words[:i]])[word] for i, word in enumerate(words)]
            texts.append((sum(steps), [*PROMPT, *words]))
    best = sorted(texts, key=lambda text: -score(text, penalty))[:width]
    history, _, _ = by_hand(tree, 3, width, penalty, False)
    seen = searched(subject, tree, history, width, penalty, False)
    assert seen[-4:-2] == [[tokens for _, tokens in best], [total for total, _ in best]]


@pytest.mark.parametrize("penalty", [1.0, 2.5, -0.5])
def test_06_9_scores_of_long_texts(subject: Any, penalty: float) -> None:
    """From two tokens to 1,000; ends in the middle count, those at the end do not."""
    p, right = Program(), []
    params = p.new("mini_vllm.sampling_params:BeamSearchParams", 2, 9, length_penalty=penalty)
    search = p.new(f"{BEAMS}BeamSearch", PROMPT, PROMPT, params, ENDS)
    for length in (2, 3, 17, 1000):
        for last in (0, 3, 4):
            tokens = [*([3] * (length - 1)), last]
            beam = p.new(f"{BEAMS}BeamSearchSequence", tokens, cum_logprob=-length / 4)
            p.see(search.score(beam))
            right.append(score((-length / 4, tokens), penalty))
    assert subject.run(p) == pytest.approx(right, rel=1e-12)


def test_06_9_equal_texts_keep_their_order(subject: Any) -> None:
    """Twelve texts with one score: the first of them are the best, and no list is changed."""
    p = Program()
    params = p.new("mini_vllm.sampling_params:BeamSearchParams", 5, 9)
    search = p.new(f"{BEAMS}BeamSearch", PROMPT, PROMPT, params, ENDS)
    texts = p.call("builtins:list", [
        p.new(f"{BEAMS}BeamSearchSequence", [7, 4 + (i * 5) % 12], cum_logprob=-1.0)
        for i in range(12)
    ])  # fmt: skip
    p.see_each(search.best(texts), "tokens")
    p.see_each(texts, "tokens")
    mixed = p.call("builtins:list", [
        p.new(f"{BEAMS}BeamSearchSequence", [7, token], cum_logprob=-1.0 * token)
        for token in (8, 5, 6)
    ])  # fmt: skip
    p.see_each(search.best(mixed), "tokens")
    p.see_each(mixed, "tokens")
    order = [[7, 4 + (i * 5) % 12] for i in range(12)]
    best = [[7, 5], [7, 6], [7, 8]]
    assert subject.run(p) == [order[:5], order, best, [[7, 8], [7, 5], [7, 6]]]


def test_06_9_what_is_handed_over_stays_the_callers(subject: Any) -> None:
    """A beam that has grown is as it was, and so are the proposals. There is one for each beam."""
    p = Program()
    params = p.new("mini_vllm.sampling_params:BeamSearchParams", 2, 9)
    search = p.new(f"{BEAMS}BeamSearch", PROMPT, PROMPT, params, ENDS)
    first = search.beams[0]
    kept = p.call("builtins:list", [first])
    proposed = p.call("builtins:dict", {
        token: p.new("mini_vllm.outputs:Logprob", -1.0 * token) for token in (4, 5, 0)
    })  # fmt: skip
    search.grow([proposed])
    for attribute in ("tokens", "cum_logprob", "finish_reason", "stop_reason", "logprobs"):
        p.see_each(kept, attribute)
    p.see(p.call("builtins:list", proposed))
    for wrong in ([], [proposed], [proposed] * 3):
        p.refuse("ValueError", search.grow, wrong)
    expected = [[PROMPT], [0.0], [None], [None], [[]], [4, 5, 0]]
    assert subject.run(p) == expected


def test_06_9_the_best_are_the_same_when_asked_again(subject: Any) -> None:
    """Looking for the best takes no text in and gives none away."""
    p = Program()
    params = p.new("mini_vllm.sampling_params:BeamSearchParams", 3, 9)
    search = p.new(f"{BEAMS}BeamSearch", PROMPT, PROMPT, params, ENDS)
    proposed = {
        token: p.new("mini_vllm.outputs:Logprob", -1.0 - token) for token in (4, 5, 0)
    }  # fmt: skip
    search.grow([p.call("builtins:dict", proposed)])
    for _ in range(2):
        p.see_each(search.finished(), "tokens")
        p.see(p.call("builtins:len", search.completed))
        p.see(p.call("builtins:len", search.beams))
    first, complete, beams, *again = subject.run(p)
    assert [first, complete, beams] == again


def test_06_9_every_text_may_end_at_once(subject: Any) -> None:
    """No beam is left then. Of equal texts the complete one is found first."""
    p = Program()
    params = p.new("mini_vllm.sampling_params:BeamSearchParams", 2, 9, length_penalty=0.0)
    search = p.new(f"{BEAMS}BeamSearch", PROMPT, PROMPT, params, ENDS)
    for tokens in ((4, 0), (0, 3)):
        proposed = {token: p.new("mini_vllm.outputs:Logprob", -1.0) for token in tokens}
        search.grow([p.call("builtins:dict", proposed)])
        p.see_each(search.finished(), "tokens")
        p.see_each(search.beams, "tokens")
    left = [[*PROMPT, 0], [*PROMPT, 4]]
    assert subject.run(p) == [left, left[1:], [left[0], [*PROMPT, 4, 0]], []]


def test_06_9_the_engine_finds_the_reference_beams(subject: Any, reference: Any) -> None:
    """Everything together: two prompts of the bundled model, with and without ends."""
    answers = []
    for worker in (subject, reference):
        for package in ("transformers", "mini_vllm.engine.llm"):
            p = Program()
            p.call("importlib:import_module", package)
            worker.run(p)
        p = Program()
        llm = p.new("mini_vllm:LLM", "storyteller", num_gpu_blocks=64, max_model_len=64,
                    dtype="float32")  # fmt: skip
        for width, penalty, ignore_eos in ((3, 0.0, False), (2, 2.0, True)):
            params = p.new("mini_vllm.sampling_params:BeamSearchParams", width, 4,
                           ignore_eos=ignore_eos, length_penalty=penalty)  # fmt: skip
            found = llm.beam_search(["Once upon a time", "The end."], params)
            for index in range(2):
                p.see_each(found[index].sequences, "text")
                p.see_each(found[index].sequences, "finish_reason")
        answers.append(worker.run(p))
    assert answers[0] == answers[1]
