"""Questions of phase 08: what is kept, and what it brings."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question, counted


def kept(rng: Random) -> Question:
    drafts = [rng.randint(1, 9) for _ in range(4)]
    says = [d if rng.random() < 0.65 else d + 10 for d in drafts]

    def engine() -> str:
        import torch

        from mini_vllm.sample.rejection_sampler import rejection_greedy_sample

        out = rejection_greedy_sample(
            torch.tensor(drafts), [4], torch.tensor(says), torch.tensor([50])
        )
        return " ".join(str(t) for t in out[0].tolist() if t >= 0)

    def by_hand() -> str:
        text = []
        for draft, said in zip(drafts, says, strict=True):
            text.append(said)
            if draft != said:
                return " ".join(map(str, text))
        return " ".join(map(str, [*text, 50]))

    return Question(
        f"Greedy. The drafts are {drafts}; in their places the target says {says}, and behind them 50."
        " Which tokens does the step bring?",
        engine,
        by_hand,
        "Drafts stay while they are what the target says; then its own token; behind all of them the"
        " bonus.",
    )


def expected(rng: Random) -> Question:
    acceptance, k = rng.choice((0.5, 0.6, 0.7, 0.8)), rng.randint(2, 5)

    def engine() -> float:
        from mini_vllm.spec_decode.metrics import expected_tokens_per_step

        return expected_tokens_per_step(acceptance, k)

    return Question(
        f"Each of {k} drafts is accepted with probability {acceptance}, if those before it were. How"
        " many tokens does a step bring on average, to two digits?",
        engine,
        lambda: (1 - acceptance ** (k + 1)) / (1 - acceptance),
        "The target's own token, and each draft if it and all before it stand: "
        + " + ".join(f"{acceptance**j:.3g}" for j in range(k + 1)),
        tolerance=0.01,
    )


def lookup(rng: Random) -> Question:
    text = [rng.randint(1, 4) for _ in range(9)]
    text += text[-6:-4] if rng.random() < 0.5 else []

    def engine() -> str:
        from mini_vllm.spec_decode.ngram_proposer import (
            find_longest_matched_ngram_and_propose_tokens,
        )

        found = find_longest_matched_ngram_and_propose_tokens(text, 1, 3, 100, 2)
        return " ".join(str(int(t)) for t in found) or "none"

    def by_hand() -> str:
        for n in (3, 2, 1):
            for start in range(len(text) - n):
                if text[start : start + n] == text[-n:]:
                    return " ".join(map(str, text[start + n : start + n + 2]))
        return "none"

    return Question(
        f"Prompt lookup, n-grams of 1 to 3, two drafts: the text is {text}. What is drafted? (none: no"
        " match)",
        engine,
        by_hand,
        "Take the longest n-gram at the end that occurs earlier, and of its places the first; draft"
        " what followed there.",
    )


def judging_rows(rng: Random) -> Question:
    drafts = [rng.randint(0, 3) for _ in range(3)]
    scheduled = [d + rng.choice((1, 1, 4)) for d in drafts]
    ends = [sum(scheduled[: i + 1]) for i in range(3)]

    def engine() -> str:
        from mini_vllm.spec_decode.metadata import calc_spec_decode_metadata

        found = calc_spec_decode_metadata(drafts, ends).logits_indices
        return " ".join(map(str, found.tolist()))

    def by_hand() -> str:
        rows = [range(end - d - 1, end) for d, end in zip(drafts, ends, strict=True)]
        return " ".join(str(row) for part in rows for row in part)

    return Question(
        f"Three requests compute {scheduled} tokens in a step; {drafts} of them are drafts. Which rows"
        " of the flat batch need logits?",
        engine,
        by_hand,
        "Of each request the last drafts + 1: the row before a draft judges it, the last gives the"
        " bonus.",
    )


def valid(rng: Random) -> Question:
    drafts = rng.randint(1, 5)
    sampled, rest = rng.randint(1, drafts + 1), rng.choice((1, 1, 7))

    def engine() -> int:
        import numpy as np

        from mini_vllm.spec_decode.proposer import num_valid_tokens

        counts = (np.array([n], np.int32) for n in (rest + drafts, drafts, sampled))
        return int(num_valid_tokens(*counts)[0])

    return Question(
        f"A request computed {rest + drafts} tokens in a step, {drafts} of them drafts, and the step"
        f" gave {counted(sampled, 'token')}. How many of the computed tokens stay?",
        engine,
        lambda: rest + sampled - 1,
        f"Accepted drafts: {sampled - 1}. The last token is the target's own, which is not computed"
        " yet.",
    )


KINDS = {
    "kept": kept,
    "expected": expected,
    "lookup": lookup,
    "judging-rows": judging_rows,
    "valid": valid,
}
