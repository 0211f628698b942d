"""Random loads, and what upstream's algorithm makes of them: recorded in `eplb_upstream.json`.

python -m tests.engine.distributed.eplb_cases     records it anew; needs `make upstream`
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RECORDED = Path(__file__).with_name("eplb_upstream.json")
SHAPES = [  # experts, redundant, groups, nodes, ranks
    (8, 0, 1, 1, 2), (8, 4, 1, 1, 4), (12, 4, 4, 2, 8), (16, 2, 1, 1, 6), (16, 8, 8, 2, 4),
    (16, 16, 4, 4, 8), (24, 8, 3, 2, 4), (32, 0, 8, 4, 4), (40, 8, 5, 1, 3), (64, 8, 8, 2, 8),
]  # fmt: skip
KINDS = ("even", "hot", "ties", "idle")


def cases() -> list[tuple[str, Tensor, tuple[int, ...]]]:
    """(name, loads [2, E], (num_replicas, num_groups, num_nodes, num_ranks))"""
    found = []
    for seed, (experts, redundant, *others) in enumerate(SHAPES):
        generator = torch.Generator().manual_seed(seed)
        for kind in KINDS:
            loads = torch.rand(2, experts, generator=generator) * 1000
            if kind == "hot":
                loads = (loads / 1000) ** 8 * 1e5
            elif kind == "ties":
                loads = torch.randint(0, 4, (2, experts), generator=generator)
            elif kind == "idle":
                loads[:, ::2] = 0
            name = f"{experts}+{redundant} experts, {others}: {kind}"
            found.append((name, loads, (experts + redundant, *others)))
    return found


def results(rebalance: Any) -> dict[str, list[Any]]:
    """What a policy says of each case: from nothing, and then of turned loads from there."""
    found = {}
    for name, loads, sizes in cases():
        first = rebalance(loads, *sizes)
        again = rebalance(loads.flip(-1), *sizes, first)
        found[name] = [first.tolist(), again.tolist()]
    return found


def upstreams_policy(vllm: Path) -> Any:
    """`DefaultEplbPolicy.rebalance_experts` of vLLM's own file, which needs two others."""
    folder = vllm / "distributed" / "eplb" / "policy"
    package = types.ModuleType("eplb_policy")
    package.__path__ = [str(folder)]
    sys.modules["eplb_policy"] = package
    spec = importlib.util.spec_from_file_location("eplb_policy.default", folder / "default.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["eplb_policy.default"] = module
    spec.loader.exec_module(module)
    return module.DefaultEplbPolicy.rebalance_experts


if __name__ == "__main__":
    upstream = Path(".upstream/vllm-0.22.1/vllm")
    text = json.dumps(results(upstreams_policy(upstream)), separators=(",", ":"))
    RECORDED.write_text(text.replace('],"', '],\n"') + "\n")
