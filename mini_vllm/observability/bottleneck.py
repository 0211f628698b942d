"""Where the next factor of two is: what bounds a step, and which function is worth mending.

A step of an engine takes the longer of two things that go on side by side::

    host    | schedule | prepare | launch launch launch ... | sample |
    device                         | kernel | kernel | ...  |

If the device is busy to the end, its kernels bound the step: by memory or by arithmetic. If it
waits, the host does: by the launches, one for each kernel, or by what comes before them.

Sources: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52(4), 2009; Amdahl,
"Validity of the single processor approach", AFIPS 1967.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class StepProfile:
    """One step, as a profiler has seen it. Times in seconds."""

    seconds: float
    """From begin to end, by a clock on the wall."""
    kernel_seconds: float
    """The device's, added up."""
    num_launches: int
    """Calls that gave the device work. A graph is one."""
    launch_seconds: float
    """Of one such call."""
    memory_seconds: float
    """Moving the step's bytes would take at the machine's bandwidth."""
    arithmetic_seconds: float
    """Its operations would take at the machine's peak."""


@dataclass(frozen=True)
class Bound:
    """What a step is bound by, and what is to be had there."""

    by: str
    """ "launches", "scheduler", "memory" or "arithmetic"."""
    seconds: float
    """That would be saved if this part came down to its floor: launches and the host's work to
    none, kernels to what the machine allows."""
    factor: float
    """By which the step would be faster then, at most."""


def classify_step(profile: StepProfile) -> Bound:
    """What bounds a step: the largest part of it that could go away.

    The device waits for `seconds - kernel_seconds`, and the kernels have a floor, the longer of
    `memory_seconds` and `arithmetic_seconds`. Three parts could go away::

        "launches"                all launches together, at most the wait
        "scheduler"               the rest of the wait: the host does something else
        "memory", "arithmetic"    what kernels take above the floor; called after the floor,
                                  "memory" where both are equal

    Of equal parts the first is named. But a step whose device works at least as long as it waits,
    and whose floor is as large as the largest of these parts or larger, is bound by the floor,
    however little is to be had there.

    Raises:
        ValueError: for a step of no length, kernels that take longer than the step (rounding may
            make them a thousandth longer: nothing is waited for), and times below 0.
    """
    memory, arithmetic = profile.memory_seconds, profile.arithmetic_seconds
    kernels, step = profile.kernel_seconds, profile.seconds
    launching = profile.num_launches * profile.launch_seconds
    if min(memory, arithmetic, kernels, launching) < 0 or step <= 0 or kernels > 1.001 * step:
        raise ValueError(
            f"kernels take {kernels} s of a step of {step} s, launches {launching} s, memory "
            f"{memory} s and arithmetic {arithmetic} s; times are 0 or more, and a step is not "
            "shorter than its kernels"
        )
    waiting = max(step - kernels, 0.0)
    floor, slowest = max(memory, arithmetic), "memory" if memory >= arithmetic else "arithmetic"
    saved = {
        "launches": min(launching, waiting),
        "scheduler": max(waiting - launching, 0.0),
        slowest: max(kernels - floor, 0.0),
    }
    by = max(saved, key=lambda part: saved[part])
    if kernels >= waiting and floor >= saved[by]:
        by = slowest
    return Bound(by, saved[by], amdahl(min(saved[by] / step, 1.0), math.inf))


def amdahl(share: float, faster: float) -> float:
    """By which factor the whole is faster if a `share` of it is `faster` times as fast.

    `faster` may be infinite: the share is free then. If all of it is free, so is the factor.

    Raises:
        ValueError: for a share outside 0 .. 1, NaN among them, and a factor of 0 or less.
    """
    if not 0 <= share <= 1 or faster <= 0:
        raise ValueError(f"share is {share} and the factor {faster}; 0 <= share <= 1, factor > 0")
    left = 1 - share + share / faster
    return 1 / left if left else math.inf


Stacks = Mapping[tuple[str, ...], float]
"""Seconds by stack, the outermost function first: what a flame graph draws."""


@dataclass(frozen=True)
class Candidate:
    """A function that could be mended."""

    name: str
    own: float
    """Share of the time in its own lines."""
    whole: float
    """Share of the time in it and in what it calls."""
    factor: float
    """By which the run is faster at most, if the function and what it calls were free."""


def which_to_mend(stacks: Stacks) -> list[Candidate]:
    """All functions, that with the most time of its own first.

    Of equal ones that with more time in all comes first, then by name. A function that calls
    itself stands several times in a stack and counts once. An empty stack is time that belongs to
    no function, but to the whole. The function on top of a flame graph's widest tower is the one to
    look at; its callers are as wide, because it is in them. Without time there is none. The stacks
    are gone through once for all functions together.
    """
    total = sum(stacks.values())
    if total <= 0:
        return []
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for stack, seconds in stacks.items():
        if stack:
            own[stack[-1]] += seconds  # type: ignore[assignment]
        for name in set(stack):
            whole[name] += seconds  # type: ignore[assignment]
    found = [
        Candidate(name, own[name] / total, share / total, amdahl(min(share / total, 1.0), math.inf))
        for name, share in whole.items()
    ]
    return sorted(found, key=lambda one: (-one.own, -one.whole, one.name))


def read_stacks(path: Path) -> dict[tuple[str, ...], float]:
    """The stacks of a file with a line for each sample: functions, outermost first, and seconds.

    Lines such as `engine.step;forward;matmul 0.004`, what `make profile ARGS="--save FOLDER"`
    writes; those of one stack are added up.

    Raises:
        ValueError: for a line without a number at its end.
    """
    found: dict[tuple[str, ...], float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        names, _, seconds = line.rpartition(" ")
        stack = tuple(names.split(";")) if names else ()
        found[stack] = found.get(stack, 0.0) + float(seconds)
    return found


def read_step_profile(path: Path) -> StepProfile:
    """A step's figures from a TOML file with the names of :class:`StepProfile`'s fields."""
    figures = tomllib.loads(path.read_text(encoding="utf-8"))
    return StepProfile(**{field.name: figures[field.name] for field in fields(StepProfile)})
