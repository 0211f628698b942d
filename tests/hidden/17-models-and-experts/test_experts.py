"""Sorted experts, tiles and balance: random problems beside loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

many = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)

SORT = """
import torch
from mini_vllm.model.moe.grouped import sort_by_expert

ids = torch.tensor(ids)
before = ids.clone()
pairs, counts = sort_by_expert(ids, experts)
told = [pairs, counts, bool((ids == before).all())]
"""


@many
@given(seed=seeds, tokens=st.integers(1, 80), k=st.integers(1, 4), experts=st.integers(1, 9))
def test_17_6_stable_order(ask: Any, seed: int, tokens: int, k: int, experts: int) -> None:
    """Many pairs of few experts, in the tokens' order, and experts without a pair."""
    ids = np.random.default_rng(seed).integers(0, experts, (tokens, k))
    pairs, counts, same = ask(SORT, ids=ids.tolist(), experts=experts + 3)
    assert np.array_equal(pairs, ids.ravel().argsort(kind="stable")) and same is True
    assert np.array_equal(counts, np.bincount(ids.ravel(), minlength=experts + 3))


PRODUCT = """
import torch
from labkit.inside.cost import elements
from mini_vllm.model.moe.grouped import product_by_expert

x, weight, counts = torch.tensor(x), torch.tensor(weight), torch.tensor(counts)
found = product_by_expert(x.reshape(-1, weight.shape[2]), weight, counts)
told = [found, list(found.shape)]
"""


@many
@given(seed=seeds, experts=st.integers(1, 7), out=st.integers(1, 5), inner=st.integers(1, 5))
def test_17_6_a_product_for_each_expert(
    ask: Any, seed: int, experts: int, out: int, inner: int
) -> None:
    """Any counts, none at all among them."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, experts) * rng.integers(0, 2, experts)
    x = rng.integers(-9, 9, (counts.sum(), inner)).astype(np.float32)
    weight = rng.integers(-9, 9, (experts, out, inner)).astype(np.float32)
    found, shape = ask(PRODUCT, x=x.tolist(), weight=weight.tolist(), counts=counts.tolist())
    owners = np.repeat(np.arange(experts), counts)
    assert shape == [len(x), out]
    wanted = np.einsum("poi,pi->po", weight[owners], x)
    assert np.array_equal(np.asarray(found).reshape(wanted.shape), wanted)


PRODUCT_DTYPE = """
import torch
from mini_vllm.model.moe.grouped import product_by_expert

x, weight = torch.ones(rows, 2, dtype=torch.bfloat16), torch.ones(2, 3, 2, dtype=torch.bfloat16)
told = [str(product_by_expert(x, weight, torch.tensor([rows, 0])).dtype)]
"""


@pytest.mark.parametrize("rows", [0, 2])
def test_17_6_a_product_in_half_precision(ask: Any, rows: int) -> None:
    """The result has the dtype of x and weight, without any rows too."""
    assert ask(PRODUCT_DTYPE, rows=rows) == ["torch.bfloat16"]


COST = """
import torch
from labkit.inside.cost import elements
from mini_vllm.model.moe.grouped import mix_experts, product_by_expert, sort_by_expert

weight, counts = torch.ones(512, 32, 32), torch.zeros(512, dtype=torch.int64)
counts[[3, 400]] = 2
told = [elements(product_by_expert, torch.ones(4, 32), weight, counts)]
narrow = weight.bfloat16()
told += [elements(product_by_expert, torch.ones(4, 32, dtype=narrow.dtype), narrow, counts)]
counts[3] = 254
told += [elements(product_by_expert, torch.ones(256, 32), weight, counts)]
generator = torch.Generator().manual_seed(0)
x, ids = torch.ones(2000, 32), torch.randint(0, 2000, (2000, 8), generator=generator)
told += [elements(mix_experts, x, torch.ones(2000, 8), ids, 2000, lambda rows, counts: rows)]
told += [elements(sort_by_expert, ids, 2000)]
"""


def test_17_6_what_idle_experts_cost(ask: Any) -> None:
    """Two of 512 experts are read; and 16,000 pairs of 2,000 experts are sorted, not compared with
    each expert."""
    product, narrow, prompt, mix, sort = ask(COST)
    assert narrow < 4 * 4 * 32 * 32 + 10_000, f"{narrow:,} numbers for two experts in bfloat16"
    assert product < 4 * 4 * 32 * 32 + 10_000, f"{product:,} numbers for two experts of 1,024"
    assert prompt < 100_000, f"{prompt:,} numbers for 256 rows of two experts"
    assert mix < 12 * 16_000 * 32, f"{mix:,} numbers for 16,000 rows of 32"
    assert sort < 60 * 16_000, f"{sort:,} numbers for 16,000 pairs"


MIX = """
import torch
from mini_vllm.model.moe.grouped import mix_experts

calls = []

def run(rows, counts):
    calls.append([rows.double(), counts.clone()])
    factors = (1.0 + torch.arange(len(counts))).repeat_interleave(counts)
    return (rows * factors[:, None].to(rows.dtype) + 1).to(rows.dtype)

x = torch.tensor(x, dtype=getattr(torch, dtype))
weights, ids = torch.tensor(weights), torch.tensor(ids)
before = [x.clone(), weights.clone(), ids.clone()]
options = {"scales_input": True} if scales_input else {}
found = mix_experts(x, weights, ids, experts, run, **options)
same = all(bool((a == b).all()) for a, b in zip(before, [x, weights, ids]))
told = [found.double(), str(found.dtype), len(calls), *calls[0], same]
"""


@many
@given(
    seed=seeds,
    tokens=st.integers(1, 9),
    k=st.integers(1, 4),
    experts=st.integers(1, 6),
    scales_input=st.booleans(),
)
def test_17_6_weighted_sums(
    ask: Any, seed: int, tokens: int, k: int, experts: int, scales_input: bool
) -> None:
    """Any tokens and experts, also one chosen twice; run is called once, with sorted rows."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, experts, (tokens, k))
    x = rng.integers(-8, 8, (tokens, 3)).astype(np.float32)
    weights = (rng.integers(1, 17, (tokens, k)) / 16).astype(np.float32)
    found, dtype, calls, rows, counts, same = ask(
        MIX, x=x.tolist(), weights=weights.tolist(), ids=ids.tolist(), experts=experts + 1,
        scales_input=scales_input, dtype="float32",
    )  # fmt: skip
    order = ids.ravel().argsort(kind="stable")
    given_rows = x[order // k] * (weights.ravel()[order, None] if scales_input else 1)
    wanted = np.zeros(x.shape)
    for token in range(tokens):
        for slot in range(k):
            factor, weight = ids[token, slot] + 1, weights[token, slot]
            if scales_input:
                wanted[token] += x[token] * weight * factor + 1
            else:
                wanted[token] += weight * (x[token] * factor + 1)
    assert np.allclose(found, wanted, atol=1e-5) and dtype == "torch.float32"
    assert calls == 1 and same is True
    assert np.array_equal(np.asarray(rows).reshape(given_rows.shape), given_rows)
    assert np.array_equal(counts, np.bincount(ids.ravel(), minlength=experts + 1))


@pytest.mark.parametrize("scales_input", [False, True])
def test_17_6_weights_are_rounded_first(ask: Any, scales_input: bool) -> None:
    """In bfloat16 a weight of 1.004 is 1: then a result is exactly what the experts say."""
    found, dtype, *_ = ask(
        MIX, x=[[3.0, -1.0]], weights=[[1.0039]], ids=[[1]], experts=2,
        scales_input=scales_input, dtype="bfloat16",
    )  # fmt: skip
    assert np.asarray(found).tolist() == [[7.0, -1.0]] and dtype == "torch.bfloat16"


ALIGN = """
import torch
from labkit.inside.cost import elements, steps
from mini_vllm.kernels.moe_layout import moe_align_block_size

ids = torch.tensor(ids, dtype=getattr(torch, dtype))
before = ids.clone()
found = moe_align_block_size(ids, tile, experts)
told = [*found, [str(x.dtype) for x in found], bool((ids == before).all())]
"""


def aligned(ids: np.ndarray, tile: int, experts: int) -> tuple[list[int], list[int], list[int]]:
    flat = ids.ravel().tolist()
    places: list[int] = []
    tiles: list[int] = []
    for expert in range(experts):
        own = [pair for pair, one in enumerate(flat) if one == expert]
        places += own + [len(flat)] * (-len(own) % tile)
        tiles += [expert] * -(-len(own) // tile)
    rows = len(places)
    most = min(-(-(len(flat) + experts * (tile - 1)) // tile), len(flat))
    places += [len(flat)] * (most * tile - rows)
    return places, tiles + [-1] * (most - len(tiles)), [rows]


@many
@given(
    seed=seeds,
    tokens=st.integers(1, 40),
    k=st.integers(1, 4),
    experts=st.integers(1, 12),
    tile=st.sampled_from([1, 2, 4, 16, 64]),
    dtype=st.sampled_from(["int64", "int32"]),
)
@example(0, 16, 1, 1, 16, "int64")
@example(1, 2, 1, 12, 16, "int32")
def test_17_7_tiles_of_one_expert(
    ask: Any, seed: int, tokens: int, k: int, experts: int, tile: int, dtype: str
) -> None:
    """Few and many pairs, of one expert or of all; last experts and first ones without any."""
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.integers(0, experts, 2).tolist())
    ids = rng.integers(low, high + 1, (tokens, k))
    *found, dtypes, same = ask(ALIGN, ids=ids.tolist(), tile=tile, experts=experts, dtype=dtype)
    wanted = aligned(ids, tile, experts)
    assert [np.asarray(one).tolist() for one in found] == [*wanted]
    assert dtypes == ["torch.int32"] * 3 and same is True


ALIGN_COST = """
import torch
from torch.overrides import TorchFunctionMode
from labkit.inside.cost import elements, steps
from mini_vllm.kernels.moe_layout import moe_align_block_size

masks = []

class Masks(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__") and args[1:2]:
            is_mask = getattr(args[1], "dtype", None) == torch.bool
            several = name == "__getitem__" or getattr(args[2], "ndim", 0) > 0
            masks.append(is_mask and several)
        return func(*args, **(kwargs or {}))

generator = torch.Generator().manual_seed(0)
ids = torch.randint(0, 512, (4096, 8), generator=generator)
told = [elements(moe_align_block_size, ids, 64, 512), steps(moe_align_block_size, ids, 64, 512)]
try:
    nothing = torch.zeros(5, 2, dtype=torch.int64, device="meta")
    with Masks():
        found = moe_align_block_size(nothing, 4, 3)
    shapes = [[*x.shape, x.device.type] for x in found]
except (NotImplementedError, RuntimeError) as error:
    shapes = str(error)[:200]
told += [shapes, any(masks)]
"""


def test_17_7_a_prompt_of_4096_tokens(ask: Any) -> None:
    """32,768 pairs of 512 experts: sorted, and neither looped over nor held against each expert. On
    a device without numbers the shapes are the same, and all lies there: nothing is asked of it. A
    mask as an index asks how many of it are true, unless all get one number."""
    touched, python, shapes, masks = ask(ALIGN_COST)
    assert touched < 100 * 32_768, f"{touched:,} numbers for 32,768 pairs"
    assert python < 3000, f"{python:,} steps of Python"
    assert shapes == [[20, "meta"], [5, "meta"], [1, "meta"]]
    assert not masks, "indexing by a bool tensor asks the device how many are true"


BALANCE = """
import numpy as np
from mini_vllm.distributed.eplb import policy

loads = np.array(loads)
before = loads.copy()
told = [policy.balanced_packing(loads, packs)]
experts, counts = policy.replicate_experts(loads, physical)
told += [experts, counts, bool((loads == before).all())]
"""


def packed(loads: list[float], packs: int) -> list[int]:
    room = len(loads) // packs
    if room == 1:
        return [*range(len(loads))]
    members: list[list[int]] = [[] for _ in range(packs)]
    sums = [0.0] * packs
    places = [0] * len(loads)
    for index in sorted(range(len(loads)), key=lambda index: -loads[index]):
        free = [pack for pack in range(packs) if len(members[pack]) < room]
        pack = min(free, key=lambda pack: (sums[pack], pack))
        places[index] = pack * room + len(members[pack])
        members[pack].append(index)
        sums[pack] += loads[index]
    return places


@many
@given(seed=seeds, packs=st.integers(1, 6), room=st.integers(1, 9), copies=st.integers(0, 12))
@example(11, 2, 2, 12)  # copies whose loads are less than 1 apart
def test_17_9_packing_and_copies(ask: Any, seed: int, packs: int, room: int, copies: int) -> None:
    """Loads of very different size, some packs full early, and many copies."""
    rng = np.random.default_rng(seed)
    loads = (2.0 ** rng.uniform(0, 12, packs * room)).tolist()
    places, experts, counts, same = ask(
        BALANCE, loads=loads, packs=packs, physical=len(loads) + copies
    )
    assert np.array_equal(places, packed(loads, packs)) and same is True
    wanted, number = [*range(len(loads))], [1] * len(loads)
    for _ in range(copies):
        each = [load / count for load, count in zip(loads, number, strict=True)]
        busiest = each.index(max(each))
        wanted.append(busiest)
        number[busiest] += 1
    assert np.array_equal(experts, wanted) and np.array_equal(counts, number)


def test_17_9_a_pack_without_load(ask: Any) -> None:
    """Experts that no token chose: the first pack that has room, and copies of none of them."""
    places, experts, counts, _ = ask(BALANCE, loads=[0.0, 8.0, 0.0, 4.0], packs=2, physical=6)
    assert np.asarray(places).tolist() == [3, 0, 1, 2] or sorted(places) == [0, 1, 2, 3]
    assert np.asarray(experts).tolist() == [0, 1, 2, 3, 1, 1]
    assert np.asarray(counts).tolist() == [1, 3, 1, 1]


def test_17_9_packs_of_equal_weight(ask: Any) -> None:
    """The second and the third weigh 11 when 0.5 comes, and the second has more things already."""
    loads = [20.0, 9.0, 8.0, 3.0, 1.25, 0.75, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625]
    places = ask(BALANCE, loads=loads, packs=3, physical=12)[0]
    assert np.asarray(places).tolist() == packed(loads, 3)


KEEP = """
import numpy as np
from mini_vllm.distributed.eplb.policy import keep_places

new, old = np.array(new), np.array(old)
before = [new.copy(), old.copy()]
told = [keep_places(new, old, ranks)]
told += [bool((new == before[0]).all() and (old == before[1]).all())]
"""


def kept(new: list[int], old: list[int]) -> list[int]:
    coming, result = [*new], []
    for expert in old:
        result.append(expert if expert in coming else -1)
        if expert in coming:
            coming.remove(expert)
    return [coming.pop(0) if expert < 0 else expert for expert in result]


@many
@given(seed=seeds, ranks=st.integers(1, 4), room=st.integers(1, 7), experts=st.integers(1, 9))
def test_17_9_an_expert_that_stays_keeps_its_place(
    ask: Any, seed: int, ranks: int, room: int, experts: int
) -> None:
    """Copies of one expert on one rank, before and afterwards, and experts that change ranks."""
    rng = np.random.default_rng(seed)
    new, old = rng.integers(0, experts, (2, ranks, room))
    found, same = ask(KEEP, new=new.ravel().tolist(), old=old.ravel().tolist(), ranks=ranks)
    wanted = [kept(mine, before) for mine, before in zip(new.tolist(), old.tolist(), strict=True)]
    assert np.asarray(found).tolist() == [one for rank in wanted for one in rank] and same is True


WHOLE = """
import torch
from mini_vllm.distributed.eplb.policy import rebalance_experts

generator = torch.Generator().manual_seed(seed)
loads = torch.rand(3, 64, generator=generator).pow(4) * 1000
told = [rebalance_experts(loads, 80, 8, 2, 8), loads]
"""


@pytest.mark.parametrize("seed", range(3))
def test_17_9_a_model_of_64_experts(ask: Any, seed: int) -> None:
    """Eight groups, two nodes, eight ranks, 16 copies: every expert has a place, groups keep to a
    node, and no rank has more than 1.4 times the average."""
    places, loads = (np.asarray(one) for one in ask(WHOLE, seed=seed))
    for layer, load in zip(places, loads, strict=True):
        number = np.bincount(layer, minlength=64)
        assert number.min() >= 1 and number.sum() == 80
        halves = [set((half // 8).tolist()) for half in np.split(layer, 2)]
        assert not halves[0] & halves[1] and len(halves[0]) == 4
        ranks = np.split((load / number)[layer], 8)
        assert max(rank.sum() for rank in ranks) < 1.4 * load.sum() / 8
