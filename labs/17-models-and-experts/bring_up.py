"""Bring up a family: find the first layer whose output differs from the reference.

The outputs of all layers after a wrong layer differ, too. So this is a binary search, as in
`git bisect`: with 32 layers it compares five or six outputs, not 32.

    layer       0  1  2  3  4  5  6  7
    right?      +  +  +  +  -  -  -  -
    asked                   ^1             4 is wrong: it, or one before
                      ^2  ^3               2 and 3 are right: it is 4
"""

from __future__ import annotations

from collections.abc import Callable


def first_difference(num_layers: int, differs: Callable[[int], bool]) -> int | None:
    """The number of the first layer whose output differs; None if no layer's does.

    `differs(index)` runs a model through layer `index` and compares, so it is slow. If a layer's
    output differs, so do those of all layers after it. It is never called twice for one layer, and
    at most `num_layers.bit_length()` times in all. Without layers it is not called.
    """
    # TODO 17.11
    raise NotImplementedError(
        "TODO 17.11: write first_difference in labs/17-models-and-experts/bring_up.py"
        " (phase 17, 02-mini-build.md#task-11)"
    )
