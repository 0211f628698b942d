"""Bring up a family: which layer is the first to compute something else than it should?

A wrong layer makes everything behind it wrong. So the search halves what is left, as `git bisect`
does: with 32 layers it looks at five or six outputs, not at 32.

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
    output differs, so do those of all layers behind it. For none is it asked twice, and at most
    `num_layers.bit_length()` times in all. Without layers it is not called.
    """
    # TODO 17.11
    raise NotImplementedError(
        "TODO 17.11: write first_difference in labs/17-models-and-experts/bring_up.py"
        " (phase 17, 02-mini-build.md#task-11)"
    )
