"""When does it pay to split a fleet? Eight replicas beside three machines for prompts and five for
tokens, on the trace `documents`, while the promise about time per token gets shorter.

    python -m benchmarks.fleet_split
    python -m benchmarks.fleet_split --save        writes benchmarks/results/arena/split.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from labkit.arena.fleet.contest import FleetMatch, play_class
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm.policies.fleet import LeastLoaded

PATH = ROOT / "benchmarks" / "results" / "arena" / "split.json"
PROMISES = (0.003, 0.004, 0.005, 0.006, 0.008, 0.012)
FLEETS = {"replicas": 0, "split": 3}
SEEDS = (0, 1, 2)


def share(prefill: int, tpot: float) -> float:
    """Of the requests of all seeds, those that kept both promises."""
    found = [
        play_class(
            FleetMatch("least-loaded", "documents", seed, 8, prefill, tpot=tpot), LeastLoaded
        )
        for seed in SEEDS
    ]
    return sum(f.in_time for f in found) / sum(f.requests for f in found)


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser("fleet_split", description=(__doc__ or "").split(".")[0])
    parser.add_argument("--save", action="store_true", help=f"write {PATH.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    rows = []
    print("promise   8 replicas   3 + 5")
    for tpot in PROMISES:
        row = {name: round(share(prefill, tpot), 4) for name, prefill in FLEETS.items()}
        rows.append({"tpot": tpot, **row})
        print(f"{1e3 * tpot:4.0f} ms{row['replicas']:12.0%}{row['split']:9.0%}")
    if options.save:
        data = {"trace": "documents", "policy": "least-loaded", "seeds": SEEDS, "results": rows}
        write_text(PATH, json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
