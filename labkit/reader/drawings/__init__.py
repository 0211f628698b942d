"""The figures of the chapters: drawn by functions, so that a number in one of them is never copied.

`python -m labkit docs figures` draws them all again; with `--check` it says which are not what they
would be drawn as. A figure is a function without arguments that returns a `Canvas`; its file is
`phases/NN-slug/figures/NAME.svg`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labkit.course.files import write_text
from labkit.reader.drawings import (
    adapters,
    books,
    compiling,
    curve,
    experts,
    gap,
    gpu,
    graphs,
    hybrid,
    kernels,
    latent,
    machine,
    masks,
    memory,
    performance,
    queues,
    ranks,
    roofline,
    rounding,
    slot,
    speculation,
    text,
    trace,
    transfer,
)
from labkit.reader.drawings.canvas import Canvas

FIGURES: dict[str, Callable[[], Canvas]] = {
    "00-orientation/figures/the-gap": gap.the_gap,
    "00-orientation/figures/processes": machine.processes,
    "00-orientation/figures/overlap": machine.overlap,
    "01-one-request/figures/roofline": roofline.draw,
    "02-kv-cache/figures/shared-blocks": books.shared_blocks,
    "03-scheduler/figures/budget": books.budget,
    "05-model-runner/figures/flat-batch": books.flat_batch,
    "04-attention-kernels/figures/grid-tile-mask": kernels.grid_tile_mask,
    "04-attention-kernels/figures/reading-pages": kernels.one_program_reads_pages,
    "04-attention-kernels/figures/busy-processors": gpu.busy_processors,
    "04-attention-kernels/figures/latent": latent.latent,
    "05-model-runner/figures/blocks": memory.blocks,
    "05-model-runner/figures/groups": memory.groups,
    "06-sampling/figures/promise": text.promise,
    "07-going-fast/figures/layers": graphs.layers,
    "07-going-fast/figures/stages": compiling.stages,
    "07-going-fast/figures/three-traces": trace.three_traces,
    "07-going-fast/figures/orders": compiling.orders,
    "08-spec-decode/figures/pays": speculation.pays,
    "09-quantization/figures/outlier": rounding.outlier,
    "10-distributed/figures/two-products": ranks.two_products,
    "10-distributed/figures/bubbles": ranks.bubbles,
    "11-lora/figures/segments": adapters.segments,
    "12-structured-output/figures/rows": masks.rows,
    "15-disaggregation/figures/break-even": transfer.break_even,
    "16-policies-and-capstone/figures/split-or-not": transfer.split_or_not,
    "14-serving/figures/one-slot": slot.one_slot,
    "16-policies-and-capstone/figures/latency-throughput": curve.latency_throughput,
    "16-policies-and-capstone/figures/three-queues": queues.three_queues,
    "17-models-and-experts/figures/tiles": experts.tiles,
    "17-models-and-experts/figures/balance": experts.balance,
    "18-hybrid-caches/figures/four-rows": hybrid.four_rows,
    "18-hybrid-caches/figures/memory-by-length": hybrid.memory_by_length,
    "19-performance-engineer/figures/factor-of-two": performance.factor_of_two,
    "19-performance-engineer/figures/knee": performance.knee,
}
"""Path below `phases/`, without ".svg" -> what draws it."""


def path_of(name: str, root: Path) -> Path:
    """Where a figure is kept."""
    return root / "phases" / f"{name}.svg"


def stale(root: Path) -> list[Path]:
    """Figures that are missing, or whose file differs from what is drawn today."""
    return [
        path
        for name, draw in FIGURES.items()
        if not (path := path_of(name, root)).is_file() or path.read_text("utf-8") != str(draw())
    ]


def draw_all(root: Path) -> None:
    """Write every figure's file."""
    for name, draw in FIGURES.items():
        write_text(path_of(name, root), str(draw()))
