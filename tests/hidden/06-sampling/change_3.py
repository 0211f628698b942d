"""Change request 3, over random texts: as if letters came one by one."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.engine.detokenizer import find_stop_string


@pytest.mark.parametrize("seed", range(300))
def test_change_3_as_letter_by_letter(seed: int) -> None:
    rng = Random(seed)
    text = "".join(rng.choice("abc") for _ in range(rng.randint(1, 12)))
    stop = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(3)]
    new = rng.randint(1, len(text))
    expected = None
    for end in range(len(text) - new + 1, len(text) + 1):
        ready = [string for string in stop if text[:end].endswith(string)]
        if ready:
            expected = (ready[0], end - len(ready[0]))
            break
    assert find_stop_string(text, new, stop) == expected
