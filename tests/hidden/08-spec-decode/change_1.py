"""Change request 1, over random texts."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.spec_decode.ngram_proposer import find_longest_matched_ngram_and_propose_tokens


@pytest.mark.parametrize("seed", range(200))
def test_change_1_as_a_slow_search_says(seed: int) -> None:
    rng = Random(seed)
    text = [rng.randint(1, 3) for _ in range(rng.randint(1, 14))]
    low, k, limit = rng.choice((1, 2)), rng.randint(1, 4), rng.choice((100, len(text) + 1))
    expected: list[int] = []
    for n in range(3, low - 1, -1):
        places = [i for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
        if places:
            begin = places[-1] + n
            expected = text[begin : begin + min(k, limit - len(text))]
            break
    found = find_longest_matched_ngram_and_propose_tokens(text, low, 3, limit, k)
    assert [int(token) for token in found] == expected
