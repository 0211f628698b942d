"""Task 06.9: beam search."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.engine.beam_search import BeamSearch, BeamSearchSequence

END, THE, FOX, DOG, RAN, SAT = range(6)
GARDEN_PATH = {
    (THE,): {FOX: 0.6, DOG: 0.4},
    (THE, FOX): {RAN: 0.4, SAT: 0.35, END: 0.25},
    (THE, DOG): {RAN: 0.9, SAT: 0.05, END: 0.05},
}
"""Which word comes how often after these: the likelier first word leads to an unlikely text."""


def text(tokens: list[int], cum_logprob: float) -> BeamSearchSequence:
    return BeamSearchSequence(tokens, cum_logprob=cum_logprob)


def look(texts: Any) -> Any:
    """The tokens and the log probability of each text."""
    if not isinstance(texts, list):
        return texts
    return [(beam.tokens, round(beam.cum_logprob, 4)) for beam in texts]


@pytest.mark.parametrize(
    ("tokens", "cum_logprob", "penalty", "score"),
    [
        ([THE, FOX, RAN], -6.0, 1.0, -2.0),
        ([THE, FOX, RAN], -6.0, 0.0, -6.0),
        ([THE, FOX, RAN], -6.0, 2.0, -6 / 9),
        ([THE, FOX, RAN], -6.0, -1.0, -18.0),
        ([THE, FOX, END], -6.0, 1.0, -3.0),
        ([END, FOX, RAN], -6.0, 1.0, -2.0),
        ([THE, END, END], -6.0, 1.0, -3.0),
    ],
)
def test_06_9_the_score_divides_by_the_length(
    lab: Any, tokens: list[int], cum_logprob: float, penalty: float, score: float
) -> None:
    """Score: the length counts the prompt, and not the end token at the end."""
    search = lab.search([THE], length_penalty=penalty)
    at = f"the text {tokens}, {END} is the end token, cum_logprob {cum_logprob}, penalty {penalty}"
    yours = search.score(text(tokens, cum_logprob))
    expect(round(yours, 9) if isinstance(yours, float) else yours, round(score, 9), at=at)


def test_06_9_any_end_token_of_the_model_is_left_out_of_the_length(lab: Any) -> None:
    """Score: a model may have several end tokens."""
    search = BeamSearch([THE], [THE], lab.beam_params(), (END, SAT))
    expect(search.score(text([THE, SAT], -4.0)), -4.0, at=f"text {[THE, SAT]}, ends {(END, SAT)}")


def test_06_9_the_best_come_first_and_of_equals_the_first(lab: Any) -> None:
    """Best: beam_width texts by their score; the list that came in stays as it is."""
    search = lab.search([THE], beam_width=3, length_penalty=0.0)
    texts = [text([THE, token], score) for token, score in enumerate([-3.0, -1.0, -2.0, -1.0])]
    before = list(texts)
    scores = [beam.cum_logprob for beam in texts]
    at = "beam_width 3, the last token of a text is its place in the list"
    expect([b.tokens[-1] for b in search.best(texts)], [1, 3, 2], at=at, scores=scores)
    expect(texts == before, True, at="whether the list is still in its old order", scores=scores)


def test_06_9_best_looks_at_scores_and_not_at_probabilities(lab: Any) -> None:
    """Best: with length_penalty 1 a long text may be better than a likelier short one."""
    search = lab.search([THE], beam_width=1)
    texts = [text([THE, FOX], -1.2), text([THE, DOG, RAN, SAT], -1.6)]
    expect(look(search.best(texts)), look(texts[1:]), at="-1.2 / 2 is less than -1.6 / 4")


def test_06_9_all_proposals_compete_in_one_pool(lab: Any) -> None:
    """Grow: both children of one beam may win, and another beam may be left without any."""
    search = lab.search([THE], beam_width=2, length_penalty=0.0)
    search.beams = [text([THE, FOX], -0.5), text([THE, DOG], -3.0)]
    search.grow([lab.proposed({RAN: -1.0, SAT: -2.0}), lab.proposed({RAN: -0.1, SAT: -4.0})])
    expected = [([THE, FOX, RAN], -1.5), ([THE, FOX, SAT], -2.5)]
    expect(look(search.beams), expected, at="beams with -0.5 and -3.0, two proposals each")


def test_06_9_each_child_knows_the_proposals_of_its_beam(lab: Any) -> None:
    """Grow: a text keeps, for each of its tokens, what was proposed there."""
    search = lab.search([THE], beam_width=2, length_penalty=0.0)
    first, second = lab.proposed({FOX: -0.5, DOG: -1.0}), lab.proposed({RAN: -0.2, SAT: -3.0})
    search.grow([first])
    search.grow([second, second])
    expect(search.beams[0].logprobs == [first, second], True, at="two steps of the best text")


def test_06_9_a_text_that_ends_takes_no_place(lab: Any) -> None:
    """Grow: it is complete, and the beams are as many as before."""
    search = lab.search([THE], beam_width=2)
    search.grow([lab.proposed({END: -0.1, FOX: -1.0, DOG: -2.0, SAT: -3.0})])
    at = f"beam_width 2, and {END}, the end token, is the best of four proposals"
    expect(look(search.beams), [([THE, FOX], -1.0), ([THE, DOG], -2.0)], at=at)
    expect(look(search.completed), [([THE, END], -0.1)], at=at)
    ended = search.completed[0]
    expect((ended.finish_reason, ended.stop_reason), ("stop", END), at="how that text has ended")


def test_06_9_every_end_is_kept_however_unlikely(lab: Any) -> None:
    """Grow: complete texts of all steps are kept until the search is over."""
    search = lab.search([THE], beam_width=1)
    search.grow([lab.proposed({FOX: -0.1, END: -9.0})])
    search.grow([lab.proposed({RAN: -0.1, END: -8.0})])
    expected = [([THE, END], -9.0), ([THE, FOX, END], -8.1)]
    expect(look(search.completed), expected, at="two steps, in each an end that is unlikely")


def test_06_9_with_ignore_eos_nothing_ends(lab: Any) -> None:
    """Grow: the end token is a token like any other then."""
    search = lab.search([THE], beam_width=2, ignore_eos=True)
    search.grow([lab.proposed({END: -0.1, FOX: -1.0})])
    expect(look(search.completed), [], at="ignore_eos: the complete texts")
    expect(look(search.beams), [([THE, END], -0.1), ([THE, FOX], -1.0)], at="ignore_eos: beams")


def test_06_9_proposals_for_another_number_of_beams_are_refused(lab: Any) -> None:
    """Grow: one dict for each beam, or a ValueError."""
    search = lab.search([THE], beam_width=2)
    with pytest.raises(ValueError):
        search.grow([lab.proposed({FOX: -0.5}), lab.proposed({DOG: -1.0})])


def test_06_9_beams_and_complete_texts_compete_at_the_end(lab: Any) -> None:
    """Finished: the length penalty decides between a short text that has ended and a long one."""
    for penalty, expected in (
        (0.0, [([THE, FOX, END], -1.2), ([THE, DOG, RAN, SAT], -1.6)]),
        (1.0, [([THE, DOG, RAN, SAT], -1.6), ([THE, FOX, END], -1.2)]),
    ):
        search = lab.search([THE], beam_width=2, length_penalty=penalty)
        search.completed = [text([THE, END], -9.0), text([THE, FOX, END], -1.2)]
        search.beams = [text([THE, DOG, RAN, SAT], -1.6)]
        at = f"two complete texts and a beam, beam_width 2, length_penalty {penalty}"
        expect(look(search.finished()), expected, at=at)


def test_06_9_a_text_without_an_end_has_reached_its_length(lab: Any) -> None:
    """Finished: its finish_reason is "length", and a complete one keeps "stop"."""
    search = lab.search([THE], beam_width=2)
    search.grow([lab.proposed({END: -0.1, FOX: -1.0})])
    reasons = {tuple(b.tokens): b.finish_reason for b in search.finished()}
    expect(reasons, {(THE, END): "stop", (THE, FOX): "length"}, at="one step, then the end")


def test_06_9_a_garden_path_misleads_greedy_search(lab: Any) -> None:
    """The likelier first word leads to the less likely text; two beams see both ways."""
    for width, expected in ((1, [THE, FOX, RAN]), (2, [THE, DOG, RAN])):
        search = lab.search([THE], beam_width=width, length_penalty=0.0)
        for _ in range(2):
            search.grow([lab.likely(GARDEN_PATH[tuple(b.tokens)]) for b in search.beams])
        at = f"beam_width {width}: the best text of two more words"
        expect(search.finished()[0].tokens, expected, at=at, table=GARDEN_PATH)


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
def test_06_9_wide_enough_it_finds_the_best_of_all_texts(lab: Any, penalty: float) -> None:
    """A vocabulary of three, three steps, room for every beam: equal to trying all texts."""

    def weights(tokens: tuple[int, ...]) -> dict[int, float]:
        parts = [1 + (sum(tokens) * 7 + len(tokens) * 5 + token * 3) % 11 for token in range(3)]
        return {token: part / sum(parts) for token, part in enumerate(parts)}

    all_texts = []
    for length in (1, 2, 3):
        for words in itertools.product(range(3), repeat=length):
            ends = words[-1] == END
            if END not in words[:-1] and (ends or length == 3):
                total = sum(
                    math.log(weights((THE, *words[:i]))[word]) for i, word in enumerate(words)
                )
                all_texts.append((total / (1 + length - ends) ** penalty, [THE, *words]))
    wanted = [words for _, words in sorted(all_texts, key=lambda pair: -pair[0])][:5]
    search = lab.search([THE], beam_width=27, length_penalty=penalty)
    for _ in range(3):
        search.grow([lab.likely(weights(tuple(beam.tokens))) for beam in search.beams])
    at = f"the five best of all texts of up to three tokens, length_penalty {penalty}"
    expect([beam.tokens for beam in search.finished()[:5]], wanted, at=at)
