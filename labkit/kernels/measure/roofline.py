"""Where a kernel stands under the roof of a GPU: bytes and FLOPs against bandwidth and FLOP rate.

Without a GPU the floor of a case is a prediction from datasheets: what the counted bytes would take
at full bandwidth, and the counted FLOPs at the full rate, whichever is longer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.kernels.verdict.report import CheckResult


@dataclass(frozen=True)
class Gpu:
    """Ceilings of one GPU: bytes and 16-bit tensor-core FLOPs a second; where they are from."""

    name: str
    bandwidth: float
    flops: float
    source: str


DATASHEETS = {
    "A100": Gpu("A100 80GB SXM", 2.039e12, 312e12, "datasheet"),
    "H100": Gpu("H100 SXM", 3.35e12, 989e12, "datasheet"),
    "H200": Gpu("H200 SXM", 4.8e12, 989e12, "datasheet"),
    "L4": Gpu("L4", 0.3e12, 121e12, "datasheet"),
}


@dataclass(frozen=True)
class Point:
    """One problem under the roof.

    Attributes:
        num_bytes, flops: what the kernel moves and computes.
        least_bytes, least_flops: what the problem needs.
        microseconds: measured; None = predicted only.
    """

    name: str
    num_bytes: int
    flops: int
    least_bytes: int
    least_flops: int
    microseconds: float | None = None

    @property
    def intensity(self) -> float:
        """FLOPs a byte, of the problem."""
        return self.least_flops / max(self.least_bytes, 1)

    def floor(self, gpu: Gpu) -> float:
        """Microseconds that the problem takes at least."""
        return 1e6 * max(self.least_bytes / gpu.bandwidth, self.least_flops / gpu.flops)

    def predicted(self, gpu: Gpu) -> float:
        """Microseconds that this kernel takes at least, with what it moves and computes."""
        return 1e6 * max(self.num_bytes / gpu.bandwidth, self.flops / gpu.flops)

    def bound(self, gpu: Gpu) -> str:
        by_memory = self.least_bytes / gpu.bandwidth >= self.least_flops / gpu.flops
        return "memory" if by_memory else "compute"

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def points_of(result: CheckResult) -> list[Point]:
    """The graded cases that ran."""
    points = []
    for case in result.cases:
        if case.graded and case.traffic is not None:
            moved = case.traffic["bytes_read"] + case.traffic["bytes_written"]
            flops = case.traffic["dot_flops"] or case.minimum["flops"]
            least = (case.minimum["bytes"], case.minimum["flops"])
            points.append(Point(f"{result.kernel} {case.name}", moved, flops, *least))
    return points


def draw(points: list[Point], gpu: Gpu, file: Path) -> None:
    """A roofline plot: the roof, and each problem where it stands or may stand at best."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    draw_roof(axes, points, gpu)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def draw_roof(axes: Any, points: list[Point], gpu: Gpu) -> None:
    """The same on axes of a larger figure."""
    lowest = min([point.intensity for point in points if point.intensity] or [0.1])
    xs = [min(lowest, 0.1) / 2 * 1.3**i for i in range(50)]
    roof = [min(x * gpu.bandwidth, gpu.flops) / 1e12 for x in xs]
    axes.loglog(xs, roof, color="black", label=f"{gpu.name}, {gpu.source}")
    for point in points:
        seconds = (point.microseconds or point.predicted(gpu)) / 1e6
        x = max(point.intensity, xs[0])
        y = max(point.least_flops, point.least_bytes * xs[0]) / seconds / 1e12
        word = "measured" if point.microseconds else "predicted"
        axes.plot(x, y, "o" if point.microseconds else "^", label=f"{point.name} ({word})")
    axes.set_xlabel("FLOPs a byte")
    axes.set_ylabel("TFLOP/s")
    measured = any(point.microseconds for point in points)
    axes.set_title("Roofline" if measured else "Roofline: a prediction, nothing ran on a GPU")
    axes.legend(fontsize=7)
