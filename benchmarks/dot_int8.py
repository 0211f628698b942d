"""How near each step of the int8 dot product comes to what the machine can read.

    python -m benchmarks.dot_int8                   the solution, one thread; about 20 seconds
    python -m benchmarks.dot_int8 labs/09-quantization/dot_int8.cpp     yours
    python -m benchmarks.dot_int8 --save            keep the figures for the chapter

For each step the instructions that it executes for 64 numbers, counted, and GB/s: the bytes of both
arrays over the shortest of 60 turns, from the fastest cache and from memory. `only reads` does
nothing but load both arrays: no dot product of them can be faster. With a processor that has
AVX512-VNNI the last step is measured a second time without AVX-512.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from labkit.arena.measure import processor
from labkit.course.root import ROOT
from labkit.practice import dot_product

SAVED = ROOT / "benchmarks/results/dot_int8.json"
SOLUTION = ROOT / "solutions/09-quantization/dot_int8/solution.cpp"
PLACES = {"cache": 1 << 13, "memory": 1 << 25}
"""Bytes of each array."""
NARROW = ("-mno-avx512f", "-mno-avxvnni")


def measure(file: Path) -> dict[str, Any]:
    """Raises `dot_product.NotHere` without a compiler, ValueError if `file` cannot be built."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    rows = measure_build(file)
    if "avx512_vnni" in flags:
        rows["dot_vector, AVX2"] = measure_build(file, *NARROW)["dot_vector"]
    return {"processor": processor(), "rows": rows}


def measure_build(file: Path, *flags: str) -> dict[str, dict[str, float | None]]:
    with tempfile.TemporaryDirectory() as folder:
        program = dot_product.build(file, Path(folder), *flags)
        counts = [None, *dot_product.count(program)[1:]]
        rates = {}
        for place, size in PLACES.items():
            done = dot_product.run(program, "time", str(size), seconds=300)
            rates[place] = [float(word) for word in done.stdout.split()]
    names = ("only reads", *dot_product.STEPS)
    return {
        name: {"instructions": counts[i], **{place: own[i] for place, own in rates.items()}}
        for i, name in enumerate(names)
    }


def report(saved: dict[str, Any] | None = None) -> str:
    """The table of the chapter, of what was saved unless given."""
    found = saved or json.loads(SAVED.read_text("utf-8"))
    lines = [
        f"One thread of {found['processor']}:",
        "",
        "| step | instructions for 64 numbers | GB/s, cache | GB/s, memory |",
        "|---|---|---|---|",
    ]
    for name, row in found["rows"].items():
        count = "" if row["instructions"] is None else f"{row['instructions']:.0f}"
        lines.append(f"| {name} | {count} | {row['cache']:.1f} | {row['memory']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    begun = SOLUTION if SOLUTION.exists() else dot_product.FILE  # students have no solutions
    parser.add_argument("file", nargs="?", type=Path, default=begun)
    parser.add_argument("--save", action="store_true", help="keep the figures for the chapter")
    args = parser.parse_args()
    try:
        found = measure(args.file)
    except dot_product.NotHere as reason:
        sys.exit(f"skipped: {reason}")
    print(report(found))
    if args.save:
        SAVED.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
