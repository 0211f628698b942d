"""Questions of phase 12: what a grammar allows."""

from __future__ import annotations

import re
from itertools import product
from random import Random
from typing import Any

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


def _pattern(rng: Random) -> str:
    return "".join(rng.choice("ab") + rng.choice(("", "", "*", "+", "?")) for _ in range(4))


def _words(length: int) -> list[str]:
    """All texts of a and b up to a length, the shortest first."""
    return ["".join(word) for n in range(length + 1) for word in product("ab", repeat=n)]


def _dfa(pattern: str) -> Any:
    from mini_vllm.structured_output.patterns import parse_regex
    from mini_vllm.structured_output.regex_automaton import compile_pattern

    return compile_pattern(parse_regex(pattern))


def states(rng: Random) -> Question:
    pattern = _pattern(rng)

    def by_hand() -> int:
        """Texts are told apart by what may follow them (Myhill and Nerode)."""
        fits, words = re.compile(pattern), _words(5)
        futures = {
            tuple(bool(fits.fullmatch(before + after)) for after in words) for before in words
        }
        return sum(map(any, futures))

    return Question(
        f"How many states has the smallest automaton of {pattern}, without a dead one?",
        lambda: len(_dfa(pattern)),
        by_hand,
        "Two texts lead to one state if the same texts may follow them.",
    )


def legal(rng: Random) -> Question:
    pattern, tokens = _pattern(rng), rng.sample([word for word in _words(3) if word], 6)
    fits = re.compile(pattern)

    def may_begin(text: str) -> bool:
        return any(fits.fullmatch(text + after) for after in _words(5))

    begun = rng.choice([word for word in _words(2) if may_begin(word)])

    def engine() -> str:
        from mini_vllm.structured_output.pushdown import Machine, Pushdown
        from mini_vllm.structured_output.token_index import DEAD, TokenTable, lift_state

        machine = Pushdown(Machine({"root": _dfa(pattern)}, "root"))
        state = machine.start
        for byte in begun.encode():
            state = machine.next(state, byte)
        found = lift_state(machine, TokenTable([word.encode() for word in tokens]), state)
        legal = (word for word, end in zip(tokens, found, strict=True) if end != DEAD)
        return " ".join(legal) or "none"

    def by_hand() -> str:
        return " ".join(word for word in tokens if may_begin(begun + word)) or "none"

    return Question(
        f"The pattern is {pattern}, the text so far {begun!r}. Which of these tokens may come next, in"
        f" the same order: {' '.join(tokens)}? (none: no token)",
        engine,
        by_hand,
        "A token may come if the pattern can still be completed behind it.",
    )


def rows(rng: Random) -> Question:
    drafts = [rng.randint(0, 2) for _ in range(3)]
    held = rng.sample(range(3), 2)

    def engine() -> str:
        from mini_vllm.structured_output.utils import mask_rows

        counts = [d + 1 for d in drafts]
        first, second = held
        masks = {f"r{first}": (0, counts[first]), f"r{second}": (counts[first], counts[second])}
        return " ".join(map(str, mask_rows(["r0", "r1", "r2"], counts, masks)[0]))

    def by_hand() -> str:
        owner = [request for request in range(3) for _ in range(drafts[request] + 1)]
        return " ".join(str(row) for row, request in enumerate(owner) if request in held)

    return Question(
        f"A batch of r0, r1, r2 with {drafts} drafts. Only r{min(held)} and r{max(held)} have a grammar."
        " Which rows of the logits are masked?",
        engine,
        by_hand,
        "A request with k drafts has k + 1 rows, with a grammar or without.",
    )


KINDS = {
    "accepted": accepted,
    "mask": words_of_a_mask,
    "states": states,
    "legal": legal,
    "rows": rows,
}
