"""Questions of phase 06: which tokens stay, and what penalties cost."""

from __future__ import annotations

import math
from itertools import accumulate
from random import Random

from labkit.practice.question import Question, counted


def _thousandths(rng: Random) -> list[int]:
    """Five probabilities, the largest first, that add up to 1000 thousandths."""
    parts = rng.sample(range(1, 60), 5)
    shares = sorted((1000 * part // sum(parts) for part in parts), reverse=True)
    return [shares[0] + 1000 - sum(shares), *shares[1:]]


def nucleus(rng: Random) -> Question:
    limit, shares = rng.choice((350, 550, 750, 930)), _thousandths(rng)
    while limit in accumulate(shares):  # on the very limit the engine's rounding would decide
        shares = _thousandths(rng)
    p, top_p = [share / 1000 for share in shares], limit / 1000

    def engine() -> int:
        import torch

        from mini_vllm.sample.logits_processors import apply_top_p

        logits = torch.log(torch.tensor([p], dtype=torch.float64))
        return int(apply_top_p(logits, torch.tensor([top_p], dtype=torch.float64)).isfinite().sum())

    def by_hand() -> int:
        return 1 + sum(total < limit for total in accumulate(shares))

    return Question(
        f"Probabilities {p}, top_p {top_p}: how many tokens stay?", engine, by_hand,
        "Add from the largest on; the token that reaches the limit stays as well.",
    )  # fmt: skip


def min_p(rng: Random) -> Question:
    percent, shares = rng.choice((10, 25, 50, 80)), _thousandths(rng)
    while any(100 * x == percent * shares[0] for x in shares):  # see `nucleus`
        shares = _thousandths(rng)
    p, share = [x / 1000 for x in shares], percent / 100

    def engine() -> int:
        import torch

        from mini_vllm.sample.logits_processors import apply_min_p

        logits = torch.log(torch.tensor([p], dtype=torch.float64))
        return int(apply_min_p(logits, torch.tensor([share], dtype=torch.float64)).isfinite().sum())

    return Question(
        f"Probabilities {p}, min_p {share}: how many tokens stay?",
        engine,
        lambda: sum(100 * x > percent * shares[0] for x in shares),
        f"The limit is a share of the largest: {share} x {max(p)} = {share * max(p):.4f}.",
    )


def penalty(rng: Random) -> Question:
    logit = rng.choice((-4.0, -2.0, 1.0, 2.0, 6.0))
    repetition, frequency, presence = rng.choice((1.0, 2.0)), rng.choice((0.0, 0.5)), 0.25
    count = rng.randint(1, 4)

    def engine() -> float:
        import torch

        from mini_vllm.sample.logits_processors import apply_penalties

        def one(value: float) -> torch.Tensor:
            return torch.tensor([value])

        ids, counts = torch.tensor([0]), torch.tensor([[float(count), 0.0]])
        out = apply_penalties(
            torch.tensor([[logit, 0.0]]), ids, ids, counts,
            one(repetition), one(presence), one(frequency),
        )  # fmt: skip
        return float(out[0, 0])

    def by_hand() -> float:
        value = logit / repetition if logit > 0 else logit * repetition
        return value - frequency * count - presence

    return Question(
        f"A token has the logit {logit} and stands {counted(count, 'time')} in the output."
        f" repetition_penalty"
        f" {repetition}, frequency_penalty {frequency}, presence_penalty {presence}: what is its logit"
        " afterwards?",
        engine,
        by_hand,
        "Repetition first: divide a positive logit, multiply a negative one. Then subtract frequency"
        " times the count, and presence once.",
        tolerance=1e-4,
    )


def entropy_of_temperature(rng: Random) -> Question:
    gap, temperature = rng.choice((1.0, 2.0, 3.0)), rng.choice((0.5, 1.0, 2.0))

    def engine() -> float:
        import torch

        from mini_vllm.sample.logits_processors import apply_temperature

        logits = apply_temperature(torch.tensor([[gap, 0.0]]), torch.tensor([temperature]))
        return float(logits.softmax(-1)[0, 0])

    return Question(
        f"Two tokens, logits {gap} and 0, temperature {temperature}: how probable is the first, to two"
        " digits?",
        engine,
        lambda: 1 / (1 + math.exp(-gap / temperature)),
        f"The gap becomes {gap / temperature:g}; 1 / (1 + exp(-{gap / temperature:g})).",
        tolerance=0.01,
    )


def drawn(rng: Random) -> Question:
    shares = _thousandths(rng)
    rng.shuffle(shares)
    number = rng.randrange(50, 1000, 100)
    while number in accumulate(shares):  # see `nucleus`
        number = rng.randrange(1, 1000)

    def engine() -> int:
        import torch

        from mini_vllm.sample.sampler import sample_from_logits

        logits = torch.log(torch.tensor([shares], dtype=torch.float64))
        return int(sample_from_logits(logits, torch.tensor([number / 1000]))[0])

    return Question(
        f"Tokens 0 to 4 have the probabilities {[share / 1000 for share in shares]}. The random number"
        f" is {number / 1000}. Which token is drawn?",
        engine,
        lambda: sum(total <= number for total in accumulate(shares)),
        "The first whose running sum is above the number.",
    )


def held_back(rng: Random) -> Question:
    stops = rng.sample(["###", "END", "stop here", "\\n\\n", "User:"], 2)
    text = "so " + rng.choice(stops)[: rng.randint(1, 4)] + rng.choice(("", "", "x"))

    def engine() -> int:
        from mini_vllm.engine.detokenizer import possible_stop_length

        return possible_stop_length(text, stops)

    def by_hand() -> int:
        ends = [
            n for n in range(len(text) + 1) for s in stops if n < len(s) and text.endswith(s[:n])
        ]
        return max(ends)

    return Question(
        f"Stop strings {stops}; the text so far is {text!r}. How many of its characters must not be"
        " shown yet?",
        engine,
        by_hand,
        "As many as the end of the text has in common with the beginning of a stop string, but not"
        " a whole one: that would have ended the request.",
    )


KINDS = {
    "top-p": nucleus,
    "min-p": min_p,
    "penalties": penalty,
    "temperature": entropy_of_temperature,
    "drawn": drawn,
    "held-back": held_back,
}
