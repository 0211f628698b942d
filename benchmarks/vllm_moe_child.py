"""vLLM's experts on a CPU for `benchmarks/bench_moe.py`, in an environment of its own.

    .venv-real-vllm/bin/python benchmarks/vllm_moe_child.py

Each line of stdin is `{"load": FILE}` (weights `w13` `[E, 2 * inner, hidden]` and `w2`
`[E, hidden, inner]`), answered by the name of the path that vLLM takes, or `{"run": FILE}`
(`x`, `scale`, `ids`), answered by milliseconds of processor time; the output then lies in
`FILE.out`. It imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def load(file: str) -> tuple[Any, Any]:
    """A layer with these weights, packed as vLLM packs them, and what multiplies with it."""
    import torch
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE

    layer = torch.nn.Module()
    for name, weight in torch.load(file).items():
        setattr(layer, f"{name}_weight", torch.nn.Parameter(weight, requires_grad=False))
    return layer, CPUFusedMOE(layer)


def run(layer: Any, experts: Any, file: str) -> float:
    """One pass, and its milliseconds."""
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    inputs = torch.load(file)
    chosen = inputs["scale"].float(), inputs["ids"].int()
    begin = time.process_time_ns()
    output = experts.forward_method(layer, inputs["x"], *chosen, MoEActivation.SILU)
    seconds = (time.process_time_ns() - begin) / 1e6
    torch.save(output, f"{file}.out")
    return seconds


def main() -> None:
    channel = os.fdopen(os.dup(1), "w", buffering=1)  # vLLM writes to stdout itself
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    layer = experts = None
    with torch.inference_mode():
        for line in sys.stdin:
            asked = json.loads(line)
            if "load" in asked:
                layer, experts = load(asked["load"])
                print(json.dumps(experts.forward_method.__name__), file=channel)
            else:
                print(json.dumps(run(layer, experts, asked["run"])), file=channel)


if __name__ == "__main__":
    main()
