"""Questions of phase 06: which tokens stay, and what penalties cost."""

from __future__ import annotations

import math
from random import Random

from labkit.practice.question import Question


def _probabilities(rng: Random) -> list[float]:
    parts = rng.sample(range(1, 60), 5)
    return sorted((round(p / sum(parts), 3) for p in parts), reverse=True)


def nucleus(rng: Random) -> Question:
    p, limit = _probabilities(rng), rng.choice((0.35, 0.55, 0.75, 0.93))

    def engine() -> int:
        import torch

        from mini_vllm.sample.logits_processors import apply_top_p

        logits = torch.log(torch.tensor([p], dtype=torch.float64))
        return int(apply_top_p(logits, torch.tensor([limit], dtype=torch.float64)).isfinite().sum())

    def by_hand() -> int:
        total, kept, whole = 0.0, 0, sum(p)
        for share in p:
            kept, total = kept + 1, total + share / whole
            if total >= limit:
                break
        return kept

    return Question(
        f"Probabilities {p}, top_p {limit}: how many tokens stay?", engine, by_hand,
        "Add from the largest on; the token that reaches the limit stays as well.",
    )  # fmt: skip


def min_p(rng: Random) -> Question:
    p, share = _probabilities(rng), rng.choice((0.1, 0.25, 0.5, 0.8))

    def engine() -> int:
        import torch

        from mini_vllm.sample.logits_processors import apply_min_p

        logits = torch.log(torch.tensor([p], dtype=torch.float64))
        return int(apply_min_p(logits, torch.tensor([share], dtype=torch.float64)).isfinite().sum())

    return Question(
        f"Probabilities {p}, min_p {share}: how many tokens stay?",
        engine,
        lambda: sum(x >= share * max(p) for x in p),
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
        f"A token has the logit {logit} and stands {count} times in the output. repetition_penalty"
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


KINDS = {
    "top-p": nucleus,
    "min-p": min_p,
    "penalties": penalty,
    "temperature": entropy_of_temperature,
}
