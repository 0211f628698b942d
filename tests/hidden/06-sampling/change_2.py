"""Change request 2, over random texts."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.engine.detokenizer import find_stop_string, possible_stop_length

LETTERS = "aAbBßIiİ x"


def small(text: str) -> str:
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


@pytest.mark.parametrize("seed", range(200))
def test_change_2_as_a_slow_search_says(seed: int) -> None:
    rng = Random(seed)
    text = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 12)))
    stop = ["".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 3))) for _ in range(2)]
    new = rng.randint(1, len(text))
    expected = None
    for string in stop:
        ends = [i for i in range(len(text)) if small(text[i : i + len(string)]) == small(string)]
        fresh = [i for i in ends if i + len(string) > len(text) - new]
        if fresh and expected is None:
            expected = (string, fresh[0])
    assert find_stop_string(text, new, stop) == expected
    held = [n for n in range(1, len(text) + 1)
            if any(n < len(s) and small(s[:n]) == small(text[-n:]) for s in stop)]  # fmt: skip
    assert possible_stop_length(text, stop) == max(held, default=0)
