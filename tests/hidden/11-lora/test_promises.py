"""What the docstrings promise beyond the sizes of random stories: dozens of adapters, hundreds of
tokens, numbers of any size, and slots that held what is no number."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

few = settings(max_examples=12)


def tensor(p: Program, values: Any, dtype: str = "float32") -> Any:
    return p.call("torch:tensor", values, dtype=p.name(f"torch:{dtype}"))


def layer_of(p: Program, inputs: int, widths: list[int], slots: int, rank: int) -> Any:
    cpu, float32 = p.call("torch:device", "cpu"), p.name("torch:float32")
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", slots, 4, cpu)
    return p.new(
        "mini_vllm.lora.layers:LinearLoRA", inputs, widths, slots, rank, meta, float32, cpu
    )


@few
@given(seed=st.integers(0, 2**31), widths=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_11_3_numbers_of_any_size(subject: Any, seed: int, widths: list[int]) -> None:
    """A slot holds what the pair holds, however large or small, in every slice."""
    draw = np.random.default_rng(seed)
    rank, inputs = 3, 4
    shapes = [shape for width in widths for shape in ((rank, inputs), (width, rank))]
    halves = [(10.0 ** draw.uniform(-37, 37, shape)).astype(np.float32) for shape in shapes]
    p = Program()
    layer = layer_of(p, inputs, widths, 2, rank)
    sent = [tensor(p, half.astype(float).tolist()) for half in halves]
    pair = "mini_vllm.lora.checkpoint:LoRAPair"
    pairs = list(zip(sent[::2], sent[1::2], strict=True))
    layer.set_lora(1, [p.new(pair, a, b) for a, b in pairs])
    p.see(layer.lora_a)
    p.see(layer.lora_b)
    a, b = subject.run(p)
    assert not np.any(a[0]) and not np.any(b[0])
    assert np.array_equal(a[1], np.stack(halves[::2]))
    assert np.array_equal(b[1], np.concatenate(halves[1::2]).T)


@pytest.mark.parametrize("broken", ["inf", "-inf", "nan"])
def test_11_3_an_empty_slot_is_zero(subject: Any, broken: str) -> None:
    """Whatever was in it; and where a pair is written, so is the rest of its slot."""
    p = Program()
    layer = layer_of(p, 2, [1, 2], 2, 2)
    pair = p.new("mini_vllm.lora.checkpoint:LoRAPair", tensor(p, [[1.0, 2.0]]), tensor(p, [[3.0]]))
    for write in (layer.reset_lora, lambda slot: layer.set_lora(slot, [pair, None])):
        for half in (layer.lora_a, layer.lora_b):
            half.fill_(p.call("builtins:float", broken))
        write(0)
        for half in (layer.lora_a, layer.lora_b):
            p.see([half[0].flatten().tolist(), half[1].isfinite().any().item()])
    empty = [[[0.0] * 8, False], [[0.0] * 6, False]]
    written = [[[1.0, 2.0] + [0.0] * 6, False], [[3.0] + [0.0] * 5, False]]
    assert subject.run(p) == empty + written


@pytest.mark.parametrize("rank", [1, 2])
def test_11_3_slots_stay_at_their_addresses(subject: Any, rank: int) -> None:
    """What was read before the slot was written reads the new numbers: a recorded graph does."""
    p = Program()
    layer = layer_of(p, 2, [1, 2], 2, 2)
    addresses = [layer.lora_a.data_ptr(), layer.lora_b.data_ptr()]
    a, b = tensor(p, [[1.0, 2.0]] * rank), tensor(p, [[3.0] * rank])
    layer.set_lora(0, [p.new("mini_vllm.lora.checkpoint:LoRAPair", a, b), None])
    addresses += [layer.lora_a.data_ptr(), layer.lora_b.data_ptr()]
    layer.reset_lora(0)
    addresses += [layer.lora_a.data_ptr(), layer.lora_b.data_ptr()]
    for address in addresses:
        p.see(address)
    seen = subject.run(p)
    assert seen[:2] == seen[2:4] == seen[4:]


@few
@given(max_loras=st.integers(1, 40), running=st.integers(0, 60), pinned=st.integers(0, 3))
def test_11_5_dozens_of_slots(subject: Any, max_loras: int, running: int, pinned: int) -> None:
    """As many adapters may run as there are slots, and no more; asked twice, nothing is noted."""
    p = Program()
    config = p.new("mini_vllm.config:LoRAConfig", max_loras=max_loras)
    gate = p.new("mini_vllm.lora.scheduling:LoRASchedulerExtension", config)
    p.set(gate, "pinned", p.call("builtins:set", [f"pinned{n}" for n in range(pinned)]))
    names = [f"a{n}" for n in range(running)] + ["new", "a0"]
    *others, new, first = [
        p.new("mini_vllm.request:Request", f"r{i}", [1], lora_name=n) for i, n in enumerate(names)
    ]
    for _ in range(2):
        for number in (running, 0):
            p.see(gate.may_admit(new, others[:number]))
        p.see(gate.may_admit(first, others))
    full, empty = running + pinned < max_loras, pinned < max_loras
    assert subject.run(p) == [full, empty, running > 0 or empty] * 2


@few
@given(
    slots=st.integers(5, 300),
    sizes=st.lists(st.integers(0, 900), min_size=2, max_size=4),
    seed=st.integers(0, 2**31),
)
def test_11_6_hundreds_of_tokens_and_slots(
    subject: Any, slots: int, sizes: list[int], seed: int
) -> None:
    """Nothing of a large step is left behind a small one."""
    draw, p = np.random.default_rng(seed), Program()
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", slots, 900, p.call("torch:device", "cpu"))
    for size in [900, *sizes]:
        steps = draw.integers(-1, slots, size).tolist()
        meta.prepare_tensors(p.call("numpy:array", steps, dtype="int32"))
    p.see(meta.token_lora_mapping.tolist())
    p.see(meta.token_indices_sorted_by_lora_ids.narrow(0, 0, len(steps)).tolist())
    p.see(meta.active_lora_ids.tolist())
    p.see(meta.num_tokens_per_lora.tolist())
    used, counts = np.unique(steps, return_counts=True) if steps else (np.array([]), np.array([]))
    p.see(meta.lora_token_start_loc.tolist())
    rest = slots + 1 - len(used)
    assert subject.run(p) == [
        steps + [-1] * (900 - len(steps)),
        sorted(range(len(steps)), key=lambda index: steps[index]),
        [int(slot) for slot in used] + [-1] * rest,
        [int(count) for count in counts] + [0] * rest,
        [0, *(int(end) for end in counts.cumsum())] + [0] * rest,
    ]


@few
@given(
    slots=st.integers(1, 40),
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_11_7_dozens_of_adapters(subject: Any, slots: int, widths: list[int], seed: int) -> None:
    """Any number of slots and slices. No number is rounded on its way: those of x, A and B have 12
    bits, one more than half precision keeps, and their products are exact in float32."""
    draw, rank, in_size, out = np.random.default_rng(seed), 1, 2, sum(widths)
    ends = np.cumsum([0, *widths]).tolist()
    chosen = draw.integers(-1, slots, 60)
    x = np.zeros((60, in_size), int)
    x[np.arange(60), draw.integers(0, in_size, 60)] = 2049
    a = draw.integers(-1, 2, (slots, len(widths), rank, in_size))
    b = 2 * draw.integers(-1, 2, (slots, rank, out)) + 2049
    y = draw.integers(-4, 5, (60, out))
    expected = y.copy()
    for row, slot in enumerate(chosen):
        for index, (begin, end) in enumerate(pairwise(ends)):
            if slot >= 0:
                expected[row, begin:end] += a[slot, index] @ x[row] @ b[slot][:, begin:end]
    p = Program()
    columns = [p.call("builtins:slice", begin, end) for begin, end in pairwise(ends)]
    sent = [tensor(p, value.tolist()) for value in (x, a, b)]
    foreign = tensor(p, (chosen[:, None] != np.arange(slots)).tolist(), "bool")
    groups = [
        (slot, tensor(p, np.flatnonzero(chosen == slot).tolist(), "int64"))
        for slot in sorted({int(slot) for slot in chosen if slot >= 0})
    ]
    for name, rows in (("dense", foreign), ("grouped", groups)):
        target = tensor(p, y.tolist())
        p.call(f"mini_vllm.lora.ops:apply_{name}", sent[0], target, sent[1], sent[2], columns, rows)
        p.see(target)
    dense, grouped = subject.run(p)
    assert np.array_equal(dense, expected) and np.array_equal(grouped, expected)


def test_11_7_each_adapter_multiplies_its_own_rows(subject: Any) -> None:
    """Forty adapters with two rows each: a product of all rows with each of them, or of A with B,
    takes many times the FLOPs."""
    slots, rank, inputs, width = 40, 4, 32, 16
    p = Program()
    columns = [p.call("builtins:slice", at, at + width) for at in (0, width)]
    shapes = (
        (2 * slots, inputs), (2 * slots, 2 * width), (slots, 2, rank, inputs),
        (slots, rank, 2 * width),
    )  # fmt: skip
    sent = [p.call("torch:ones", *shape) for shape in shapes]
    groups = [(slot, tensor(p, [slot, slot + slots], "int64")) for slot in range(slots)]
    profile = p.new("torch.autograd.profiler:profile", with_flops=True)
    p.call("builtins:getattr", profile, "__enter__")()
    p.call("mini_vllm.lora.ops:apply_grouped", *sent, columns, groups)
    p.call("builtins:getattr", profile, "__exit__")(None, None, None)
    p.see_each(profile.function_events, "flops")
    [flops] = subject.run(p)
    assert sum(flop or 0 for flop in flops) <= 4 * 2 * 2 * slots * 2 * rank * (inputs + width)
