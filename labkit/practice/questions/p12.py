"""Questions of phase 12: what a grammar allows."""

from __future__ import annotations

import re
from random import Random

from labkit.practice.question import Question

PATTERNS = ("a(bc)*d", "[ab]{2,3}c", "x|xy|xyz", "(ab|a)b?", "a+b+", "(a|b)*abb")
WORDS = ("ad", "abcd", "abc", "aac", "abac", "xy", "xyz", "ab", "abb", "aabb", "babb", "a", "xyzz")


def accepted(rng: Random) -> Question:
    pattern, words = rng.choice(PATTERNS), rng.sample(WORDS, 6)

    def engine() -> int:
        from mini_vllm.structured_output.patterns import parse_regex
        from mini_vllm.structured_output.regex_automaton import compile_pattern, matches

        dfa = compile_pattern(parse_regex(pattern))
        return sum(matches(dfa, word.encode()) for word in words)

    return Question(
        f"How many of these texts does the pattern {pattern} accept as a whole: {', '.join(words)}?",
        engine,
        lambda: sum(re.fullmatch(pattern, word) is not None for word in words),
        "Accepted: " + (", ".join(w for w in words if re.fullmatch(pattern, w)) or "none") + ".",
    )


def words_of_a_mask(rng: Random) -> Question:
    vocabulary, token = rng.choice((100, 1000, 151936)), rng.randint(0, 99)

    def engine() -> str:
        import numpy as np

        from mini_vllm.structured_output.token_index import pack_bits

        allowed = np.zeros(vocabulary, dtype=bool)
        allowed[token] = True
        words = np.asarray(pack_bits(allowed)).view(np.uint32)
        found = int(np.flatnonzero(words)[0])
        return f"{found} {int(words[found]).bit_length() - 1}"

    return Question(
        f"A vocabulary of {vocabulary} in packed words of 32 bits. In which word, and which bit of it,"
        f" counted from the lowest, stands token {token}? (two numbers)",
        engine,
        lambda: f"{token // 32} {token % 32}",
        f"Word {token} // 32, bit {token} % 32.",
    )


KINDS = {"accepted": accepted, "mask": words_of_a_mask}
