"""Prompt lookup: against a search that tries every place, and on long texts."""

import random
import time

import numpy as np
import pytest

from mini_vllm.spec_decode.ngram_proposer import find_longest_matched_ngram_and_propose_tokens


def brute_force(tokens: list[int], min_n: int, max_n: int, max_len: int, k: int) -> list[int]:
    k = min(k, max_len - len(tokens))
    for n in range(min(max_n, len(tokens)), min_n - 1, -1):
        for start in range(len(tokens) - n):
            if k > 0 and tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k]
    return []


def find(tokens: list[int], min_n: int, max_n: int, max_len: int = 10_000, k: int = 3) -> list[int]:
    return find_longest_matched_ngram_and_propose_tokens(
        np.array(tokens), min_n, max_n, max_len, k
    ).tolist()


@pytest.mark.parametrize(
    ("tokens", "min_n", "max_n", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, 4, [4, 1, 2]),
        ([1, 2, 3, 1, 2, 3, 1, 2], 3, 3, [3, 1, 2]),  # "3 1 2" overlaps the end
        ([7, 7, 7, 7], 1, 3, [7]),  # the longest match ends one token before the text does
        ([1, 2, 9, 3, 2, 8, 1, 2], 1, 2, [9, 3, 2]),  # the longer match before the later one
        ([5, 1, 6, 1, 7, 1], 1, 1, [6, 1, 7]),  # of equal ones the first
        ([1, 2, 3, 4], 1, 4, []),
        ([1, 2, 3, 9, 2, 3], 3, 4, []),  # two tokens match, three are asked for
        ([1], 1, 1, []),
        ([], 1, 1, []),
    ],
)
def test_examples(tokens: list[int], min_n: int, max_n: int, expected: list[int]) -> None:
    assert find(tokens, min_n, max_n) == expected


def test_equals_a_search_of_every_place() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        vocabulary = draw.choice((2, 3, 8))
        tokens = [draw.randrange(vocabulary) for _ in range(draw.randrange(1, 40))]
        min_n = draw.randint(1, 4)
        args = (min_n, min_n + draw.randrange(4), len(tokens) + draw.randint(-1, 6))
        k = draw.randint(1, 6)
        assert find(tokens, *args, k) == brute_force(tokens, *args, k), (tokens, args, k)


def test_never_past_the_models_length() -> None:
    assert find([1, 2, 3, 1, 2], 1, 2, max_len=7, k=5) == [3, 1]
    assert find([1, 2, 3, 1, 2], 1, 2, max_len=5, k=5) == []


def test_a_long_text_costs_milliseconds() -> None:
    for tokens in (np.zeros(100_000, dtype=np.int64), np.arange(100_000) % 1000):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            find_longest_matched_ngram_and_propose_tokens(tokens, 2, 5, 200_000, 4)
            times.append(time.perf_counter() - start)
        assert min(times) < 0.05
