"""Builders of phase 11 that compute: `conftest.py` runs this file when a test asks for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.kernels.cases import lora as cases
from labkit.kernels.cases.draw import Draw
from labkit.kernels.direct import expect_close, solve
from labkit.kernels.verdict import oracles
from labkit.testing import expect
from mini_vllm.config import LoRAConfig
from mini_vllm.kernels.lora import LORA_EXPAND, LORA_SHRINK
from mini_vllm.lora.checkpoint import LoRAModel, LoRAPair, LoRATarget
from mini_vllm.lora.layers import LinearLoRA
from mini_vllm.lora.mapping import LoRAKernelMeta
from mini_vllm.lora.slots import LoRAModelManager
from mini_vllm.model.layout import Part

CPU = torch.device("cpu")
QKV, GATE_UP = "layers.0.self_attn.qkv_proj", "layers.0.mlp.gate_up_proj"


# ---------------------------------------------------------------- adapters
def pair(rank: int, in_size: int, out_size: int, first: float = 1.0) -> LoRAPair:
    """A pair of counted numbers, none of them 0."""
    a = torch.arange(rank * in_size).view(rank, in_size) + first
    b = torch.arange(out_size * rank).view(out_size, rank) + 10 * first
    return LoRAPair(a.float(), b.float())


def targets() -> dict[str, LoRATarget]:
    """q, k, v of sizes 4, 2, 2 and gate, up of size 3; inputs have 2 numbers."""
    found = {}
    for module, names, sizes in (
        (QKV, ("q_proj", "k_proj", "v_proj"), (4, 2, 2)),
        (GATE_UP, ("gate_proj", "up_proj"), (3, 3)),
    ):
        block = module.rpartition(".")[0]
        for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
            part = Part(slice(0, size), slice(0, 2))
            found[f"{block}.{name}"] = LoRATarget(module, index, len(names), part, part)
    return found


def file_of(pairs: Mapping[str, LoRAPair], order: str = "AB") -> dict[str, Tensor]:
    """The tensors of an adapter's file: all A and then all B, or the other way round."""
    return {
        f"base_model.model.{module}.lora_{part}.weight": p.a if part == "A" else p.b
        for part in order
        for module, p in pairs.items()
    }


# ---------------------------------------------------------------- slots
def make_layer(widths: Sequence[int] = (4, 2, 2), slots: int = 2, rank: int = 3) -> LinearLoRA:
    """The slots of a layer with 2 inputs, full of sevens: what another has left there."""
    meta = LoRAKernelMeta(slots, 16, CPU)
    layer = LinearLoRA(2, widths, slots, rank, meta, torch.float32, CPU)
    layer.lora_a.fill_(7.0)
    layer.lora_b.fill_(7.0)
    return layer


class Shelf(LoRAModelManager):
    """A manager of one layer whose disk is a dictionary; the rest is as in the engine."""

    def __init__(self, max_loras: int, max_cpu_loras: int, disk: Iterable[str]) -> None:
        model = torch.nn.Module()
        model.dtype, model.absent = torch.float32, ()  # type: ignore[assignment]
        config = LoRAConfig(max_loras=max_loras, max_cpu_loras=max_cpu_loras, max_lora_rank=1)
        super().__init__(model, config, 16, CPU)  # type: ignore[arg-type]
        self.layers = {
            name: LinearLoRA(1, [1], max_loras, 1, self.meta, torch.float32, CPU)
            for name in ("first", "second")
        }
        self.disk = {key: float(number) for number, key in enumerate(disk, 1)}
        self.log: list[str] = []

    def _load(self, key: str, path: str) -> LoRAModel:
        self.num_loads += 1
        if key not in self.disk:
            raise ValueError(f"there is no adapter {key!r}")
        self.log.append(f"load {key}")
        value = torch.full((1, 1), self.disk[key])
        layers = ("first",) if key.endswith("-small") else ("first", "second")
        return LoRAModel(key, {name: [LoRAPair(value, value)] for name in layers})

    def remove_adapter(self, key: str) -> bool:
        self.log.append(f"remove {key}")
        return super().remove_adapter(key)

    def held(self, layer: str = "first") -> list[float]:
        """The number in each slot of a layer; 0 for an empty one."""
        return self.layers[layer].lora_a.flatten().tolist()


# ---------------------------------------------------------------- a step
def meta_of(*steps: Sequence[int], max_loras: int = 3, room: int = 8) -> LoRAKernelMeta:
    """The mapping after some steps, the slot of each token in each."""
    meta = LoRAKernelMeta(max_loras, room, CPU)
    for slots in steps:
        meta.prepare_tensors(np.array(slots, dtype=np.int32))
    return meta


class Rows:
    """Random rows, slots and adapters, and the answer row by row in float64."""

    def __init__(
        self, slots: Sequence[int], widths: Sequence[int] = (4, 2, 2), num_slots: int = 3,
        rank: int = 2, in_size: int = 5,
    ) -> None:  # fmt: skip
        draw = torch.Generator().manual_seed(11)
        self.slots, self.widths = list(slots), list(widths)
        ends = torch.tensor([0, *widths]).cumsum(0).tolist()
        self.columns = [slice(a, b) for a, b in pairwise(ends)]
        self.x = torch.randn(len(slots), in_size, generator=draw)
        self.y = torch.randn(len(slots), sum(widths), generator=draw)
        self.lora_a = torch.randn(num_slots, len(widths), rank, in_size, generator=draw)
        self.lora_b = torch.randn(num_slots, rank, sum(widths), generator=draw)

    @property
    def foreign(self) -> Tensor | None:
        columns = torch.arange(len(self.lora_a))
        foreign = torch.tensor(self.slots)[:, None] != columns
        return foreign if bool(foreign.any()) else None

    @property
    def groups(self) -> list[tuple[int, Tensor]]:
        slots = torch.tensor(self.slots)
        used = sorted({slot for slot in self.slots if slot >= 0})
        return [(slot, (slots == slot).nonzero().flatten()) for slot in used]

    def expected(self) -> Tensor:
        y = self.y.double().clone()
        for row, slot in enumerate(self.slots):
            for index, part in enumerate(self.columns):
                if slot >= 0:
                    h = self.lora_a[slot, index].double() @ self.x[row].double()
                    y[row, part] += h @ self.lora_b[slot, :, part].double()
        return y.float()

    def check(self, y: Tensor, at: str) -> None:
        """Every row has its own adapter; rows of the base are the same to the bit."""
        __tracebackhide__ = True
        expect_close(y, self.expected(), axes=("row", "column"), at=at)
        for row, slot in enumerate(self.slots):
            if slot < 0:
                same = torch.equal(y[row], self.y[row])
                expect(same, True, at=f"{at}: row {row} has no adapter and keeps every bit")


# ---------------------------------------------------------------- kernels
def check_shrink(at: str, counts: Sequence[int], base: int, **shape: Any) -> None:
    """Run the learner's shrink kernel; what it may not read is NaN, and watched."""
    __tracebackhide__ = True
    shape = {"in_size": 8, "rank": 4} | shape
    make = cases.shrink(counts, base, **shape)
    problem, rules = make(Draw(11, "public", f"{counts}{base}"), torch.float32)
    expected = oracles.lora_shrink(problem)["hidden"].float()
    solve(LORA_SHRINK, problem, rules)
    expect_close(problem["hidden"], expected, axes=("slice", "row", "rank"), at=at)


def check_expand(at: str, counts: Sequence[int], base: int, **shape: Any) -> None:
    """The same for the expand kernel."""
    __tracebackhide__ = True
    shape = {"widths": [8], "rank": 4} | shape
    make = cases.expand(counts, base, **shape)
    problem, rules = make(Draw(11, "public", f"{counts}{base}"), torch.float32)
    expected = oracles.lora_expand(problem)["y"].float()
    solve(LORA_EXPAND, problem, rules)
    expect_close(problem["y"], expected, axes=("row", "column"), at=at)
