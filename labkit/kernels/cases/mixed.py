"""Small cases in which any two things meet: one request *and* half precision, a window *and* an odd
size.

Elsewhere a case is hard in one way, and usual in all others. A kernel may be wrong only where two
of its arguments are unusual together: it has a way of its own for one token, and forgets the
residual there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, product
from typing import Any

import torch

from labkit.kernels.cases.draw import Case, Draw, Setup

DTYPES = ("float32", "float16", "bfloat16")


def mixed(
    make: Callable[..., Callable[[Draw, torch.dtype], Setup]], **ways: Mapping[str, Any]
) -> tuple[Case, ...]:
    """Cases in which any two values of any two arguments of `make` meet, and any value each dtype.

    `ways`: the values of each argument, by the words in which a case tells it; "" tells nothing.
    """
    choices = covering({"dtype": DTYPES} | {name: tuple(values) for name, values in ways.items()})
    return tuple(
        Case(
            f"mixed-{number}",
            ", ".join(words for name, words in choice.items() if words and name != "dtype"),
            choice["dtype"],
            make(**{name: values[choice[name]] for name, values in ways.items()}),
        )
        for number, choice in enumerate(choices, 1)
    )


def covering(values: Mapping[str, tuple[str, ...]]) -> list[dict[str, str]]:
    """Few choices of one value a name, in which any two values of two names meet.

    Each begins with the first pair that is missing, and takes those values by which most others
    are met.
    """
    missing = {
        pair: None  # in the order in which they are named
        for one, other in combinations(values, 2)
        for pair in product([(one, value) for value in values[one]],
                            [(other, value) for value in values[other]])
    }  # fmt: skip
    choices = []
    while missing:
        choice = dict(next(iter(missing)))
        for name in values:
            if name not in choice:
                choice[name] = max(
                    values[name], key=lambda value: _met({**choice, name: value}, values, missing)
                )
        choices.append({name: choice[name] for name in values})
        for pair in combinations(choices[-1].items(), 2):
            missing.pop(pair, None)
    return choices


def _met(
    choice: Mapping[str, str], values: Mapping[str, tuple[str, ...]], missing: Mapping[Any, None]
) -> int:
    """How many of the missing pairs meet in what is chosen so far."""
    chosen = [(name, choice[name]) for name in values if name in choice]
    return sum(pair in missing for pair in combinations(chosen, 2))
