"""How kernels are timed, and what a list of times means. Nothing here needs a GPU.

Two kernels are timed in turns, A B A B, each time on other inputs and after the caches have been
overwritten, so that drift of clocks and neighbours hits both alike. What counts is the median, and
the median of the ratios of neighbours; the spread says whether to believe it. A launch waits in the
queue behind the overwriting of the caches, so the host's launch time is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol

MIN_MICROSECONDS = 100_000.0  # of measured time for each candidate
MIN_SAMPLES = 30
MAX_SECONDS = 2.0  # of wall time for each candidate
NOISY = 1.15  # p80 / p20
BELOW_FLOOR = 0.9  # a time shorter than this share of the floor is no time
STREAM_RATIO = 1.5


class Clock(Protocol):
    """What times one launch: CUDA events on a GPU, a script in tests."""

    def time(self, launch: Callable[[], None]) -> float:
        """Microseconds of one launch on the stream, with cold caches."""
        ...

    def wall(self) -> float:
        """Seconds since any moment."""
        ...


@dataclass(frozen=True)
class Times:
    """Microseconds of many launches, in a few numbers."""

    p20: float
    median: float
    p80: float
    samples: int

    @property
    def noisy(self) -> bool:
        return self.p80 > NOISY * self.p20

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"noisy": self.noisy}


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """By linear interpolation between neighbours."""
    place = share * (len(sorted_values) - 1)
    low = int(place)
    high = min(low + 1, len(sorted_values) - 1)
    return sorted_values[low] + (place - low) * (sorted_values[high] - sorted_values[low])


def summarise(samples: Sequence[float]) -> Times:
    """Raises:
    ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples; a kernel must have been launched at least once")
    ordered = sorted(samples)
    return Times(
        quantile(ordered, 0.2), quantile(ordered, 0.5), quantile(ordered, 0.8), len(ordered)
    )


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of launches that were neighbours."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def interleave(
    clock: Clock, candidates: Mapping[str, Sequence[Callable[[], None]]]
) -> dict[str, list[float]]:
    """Time the candidates in turns; each holds one launch for each set of inputs.

    Ends when each has `MIN_SAMPLES` samples and `MIN_MICROSECONDS`, or its share of wall time is
    used up.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    end = clock.wall() + MAX_SECONDS * len(candidates)
    turn = 0
    while True:
        for name, launches in candidates.items():
            samples[name].append(clock.time(launches[turn % len(launches)]))
        turn += 1
        enough = all(sum(times) >= MIN_MICROSECONDS for times in samples.values())
        if (turn >= MIN_SAMPLES and enough) or clock.wall() >= end:
            return samples


def suspicion(times: Times, floor: float, stream: float, device_wide: float) -> str:
    """Why a time cannot be true, or "".

    Args:
        floor: microseconds that the bytes and FLOPs take at the rates measured here.
        stream, device_wide: one launch timed on its stream, and by waiting for the whole device.
    """
    if times.median < BELOW_FLOOR * floor:
        return (
            f"{times.median:.1f} µs is less than {BELOW_FLOOR:.0%} of the {floor:.1f} µs that its"
            " bytes and FLOPs take on this GPU"
        )
    if device_wide > STREAM_RATIO * stream and device_wide - stream > 50.0:
        return (
            f"the device works {device_wide:.1f} µs for a launch that takes {stream:.1f} µs on its"
            " stream: work goes on elsewhere"
        )
    return ""
