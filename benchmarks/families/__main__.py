"""The parity table: every family, whichever way its requests are scheduled."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.families.layers import report
from benchmarks.families.record import read, record
from benchmarks.families.tiny import FAMILIES, write
from benchmarks.families.ways import WAYS, go
from mini_vllm.model.registry import resolve_model_class


def cell(folder: Path, way: str, wanted: list[list[int]], supports: frozenset[str]) -> str:
    """What the table says of one family and one way. A wrong answer is marked with !."""
    if way == "int8":
        if "quantization" not in supports:
            return "refused"
        found = go(folder, way, wanted)
        return f"{found.begun} of {sum(map(len, wanted))}"
    keeps_states = "states" in supports  # of which requests hold as much from first to last
    found = go(folder, way, wanted, keeps_states)
    happened = f" ({found.happened})" if way in ("preempted", "hits") else ""
    idle = way in ("preempted", "hits") and not found.happened and not keeps_states
    mark = "!" if found.same < found.total or idle else ""
    return f"{mark}{found.same} of {found.total}{happened}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="families; all by default")
    parser.add_argument("--record", action="store_true", help="ask transformers anew")
    parser.add_argument(
        "--layer",
        metavar="FAMILY",
        help="which layer of this family, or of the checkpoint in this folder, is the first that "
        "computes something else than transformers' does",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("mini_vllm").setLevel(logging.ERROR)
    names = args.names or list(FAMILIES)
    asked = names if args.layer is None or Path(args.layer).is_dir() else [args.layer]
    if unknown := sorted({*asked} - {*FAMILIES}):
        parser.error(f"there is no family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    if args.layer is not None:
        print(report(args.layer))
        return
    if args.record:
        record(names)
    answers, is_right = read(), True
    print("Answers that are transformers' in float32; in brackets, requests that were preempted or")
    print("had a prefix found. int8: tokens before the first that rounding changes.\n")
    print(f"{'family':<20}", *(f"{way:<11}" for way in WAYS))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), answers[name]["config"], answers[name]["shapes"])
            supports = resolve_model_class(answers[name]["config"]["architectures"]).supports
            wanted = answers[name]["tokens"]
            cells = []
            for way in WAYS:
                try:
                    cells.append(cell(Path(folder), way, wanted, supports))
                except ValueError as error:  # what a family cannot, it says
                    print(f"{name}, {way}: {error}")
                    cells.append("!refused")
        print(f"{name:<20}", *(f"{text:<11}" for text in cells), flush=True)
        is_right = is_right and not any(text.startswith("!") for text in cells)
    if not is_right:
        print("\n! differs; --layer FAMILY finds the first layer that does")
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
