"""Random ranks, layers, vocabularies, plans, messages and routes, beside the reference or exact
arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25)
few = settings(many, max_examples=12)
DIST = "mini_vllm.distributed."
RANKS = f"""
import torch
from {DIST}simulated import interleave, run_messages, run_ranks
"""
"""What programs on several ranks begin with: ranks are threads of the child."""


def code(p: Program, text: str, **values: Any) -> Any:
    """The names that a piece of Python leaves behind."""
    names = p.execute(RANKS + text, **values)
    return names


def compare(subject: Any, reference: Any, p: Program) -> None:
    """The same answers, kinds of numbers included."""
    yours, theirs = subject.run(p), reference.run(p)
    assert len(yours) == len(theirs)
    for mine, right in zip(yours, theirs, strict=True):
        assert type(mine) is type(right)
        assert np.array_equal(mine, right) if isinstance(right, np.ndarray) else mine == right


def group(p: Program, rank: int, world_size: int, first: int = 0) -> Any:
    """Place ``rank`` of a group; ``first`` is its first rank's number in the engine."""
    members = list(range(first, first + world_size))
    return p.new(f"{DIST}parallel_state:GroupCoordinator", members, first + rank)


def numbers(seed: int, *shape: int) -> Any:
    """Small whole numbers as nested lists: their sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, size=shape).tolist()


@few
@given(
    ranks=st.integers(1, 5),
    size=st.sampled_from([0, 1, 2, 3, 5, 8, 17, 40]),
    seed=st.integers(0, 99),
)
def test_10_1_any_sum(subject: Any, ranks: int, size: int, seed: int) -> None:
    """Any number of ranks and numbers: the sum, to the next rank only, nothing overwritten."""
    values = np.random.default_rng(seed).integers(-(10**12), 10**12, size=(ranks, size))
    p = Program()
    names = code(
        p,
        f"""
from {DIST}collectives import ring_all_reduce
inputs = [torch.tensor(row, dtype=torch.long) for row in rows]
results, sent = run_messages(inputs, ring_all_reduce)
""",
        rows=values.tolist(),
    )
    p.see(names["results"])
    p.see(names["inputs"])
    p.see(names["sent"])
    results, inputs, sent = subject.run(p)
    for rank in range(ranks):
        assert results[rank].dtype == np.int64
        assert np.array_equal(results[rank], values.sum(0))
        assert np.array_equal(inputs[rank], values[rank])
        each, told = -(-size // ranks), [list(message) for message in sent[rank]]
        rounds = [[(rank + 1) % ranks, each]] * (2 * (ranks - 1))
        assert told == rounds or (not size and told == [])  # of nothing, no message is needed


@pytest.mark.parametrize("ranks", [9, 12])
def test_10_1_around_a_large_ring(subject: Any, ranks: int) -> None:
    """More ranks than one has in mind, and more than there are numbers."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}collectives import ring_all_reduce
inputs = [torch.arange(10) * (rank + 1) for rank in range(ranks)]
results, _ = run_messages(inputs, ring_all_reduce)
results = [result.tolist() for result in results]
""",
        ranks=ranks,
    )
    p.see(names["results"])
    total = ranks * (ranks + 1) // 2
    assert subject.run(p) == [[[total * i for i in range(10)]] * ranks]


@few
@given(ranks=st.integers(2, 4), shape=st.sampled_from([(2, 3), (3, 2, 2), (1, 5)]))
def test_10_1_any_shape(subject: Any, ranks: int, shape: tuple[int, ...]) -> None:
    """Any shape, also a view; floating-point sums are the same to the bit on every rank."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}collectives import ring_all_reduce
torch.manual_seed(1)
inputs = [torch.randn(*shape).transpose(0, 1) for _ in range(ranks)]
results, _ = run_messages(inputs, ring_all_reduce)
total = torch.stack(inputs).double().sum(0)
same = all(torch.equal(result, results[0]) for result in results)
shapes = [list(result.shape) for result in results]
error = float((results[-1].double() - total).abs().max())
""",
        shape=shape,
        ranks=ranks,
    )
    p.see([names["same"], names["shapes"], names["error"]])
    ((same, shapes, error),) = subject.run(p)
    assert same is True
    assert shapes == [[shape[1], shape[0], *shape[2:]]] * ranks
    assert error < 1e-5


@pytest.mark.parametrize("ranks", [1, 3])
def test_10_1_a_number_has_a_shape_too(subject: Any, ranks: int) -> None:
    """A loss, for one: a tensor without dimensions, whose sum has none."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}collectives import ring_all_reduce
inputs = [torch.tensor(rank + 1.5) for rank in range(ranks)]
results, _ = run_messages(inputs, ring_all_reduce)
told = [[list(each.shape), each.item()] for each in results]
""",
        ranks=ranks,
    )
    p.see(names["told"])
    assert subject.run(p) == [[[[], sum(rank + 1.5 for rank in range(ranks))]] * ranks]


def test_10_1_where_the_input_is(subject: Any) -> None:
    """The sum is on the device of the input, and so is all that is made on the way."""
    p = Program()
    alone = p.call("types:SimpleNamespace", rank_in_group=0, world_size=1)
    x = p.call("torch:ones", [2, 3], device="meta")
    total = p.call(f"{DIST}collectives:ring_all_reduce", x, alone)
    p.see(p.call("builtins:str", total.device))
    p.see(p.call("builtins:list", total.shape))
    assert subject.run(p) == ["meta", [2, 3]]


@pytest.mark.parametrize(
    ("ranks", "rank", "kind"),
    [(2, 0, "float32"), (3, 1, "bfloat16"), (5, 4, "float64"), (2, 1, "float16"), (3, 0, "int8")],
)
def test_10_1_all_messages_are_over(subject: Any, ranks: int, rank: int, kind: str) -> None:
    """A rank that returns has waited for what it sent, too: until then its memory is read. What
    is sent and received has the input's dtype: a wider one would cost its bytes."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}collectives import ring_all_reduce

class Group:
    rank_in_group, world_size = rank, ranks
    begun = over = 0
    dtypes = set()
    def begin(self, x, other):
        Group.begun += 1
        Group.dtypes.add(str(x.dtype))
        class Message:
            done = False
            def wait(self):
                Group.over += not self.done
                self.done = True
        return Message()
    isend = irecv = begin

total = ring_all_reduce(torch.ones(7, dtype=getattr(torch, kind)), Group())
counts = [Group.begun, Group.over]
dtypes = [*Group.dtypes, str(total.dtype)]
""",
        ranks=ranks,
        rank=rank,
        kind=kind,
    )
    p.see(names["counts"])
    p.see(names["dtypes"])
    assert subject.run(p) == [[4 * (ranks - 1)] * 2, [f"torch.{kind}"] * 2]


@pytest.mark.parametrize("size", [0, 4])
def test_10_1_alone_it_is_a_new_tensor_too(subject: Any, size: int) -> None:
    """To change the sum changes no input."""
    p = Program()
    alone = p.call("types:SimpleNamespace", rank_in_group=0, world_size=1)
    x = p.call("torch:ones", [size])
    total = p.call(f"{DIST}collectives:ring_all_reduce", x, alone)
    p.see(p.call("operator:is_", total, x))
    total.add_(1)
    p.see(x.tolist())
    assert subject.run(p) == [False, [1.0] * size]


@many
@given(
    size=st.integers(0, 10**8),
    ranks=st.integers(1, 64),
    alpha=st.sampled_from([0.0, 1e-6, 5e-6, 1e-3]),
    speed=st.sampled_from([1e8, 1e10, 4e11]),
)
def test_10_2_any_link(subject: Any, size: int, ranks: int, alpha: float, speed: float) -> None:
    """Any message, ranks and links."""
    p = Program()
    for name in ("ring_time", "one_shot_time"):
        p.see(p.call(f"{DIST}collectives:{name}", size, ranks, alpha, 1 / speed))
    ring, one_shot = subject.run(p)
    rounds = 2 * (ranks - 1)
    assert ring == pytest.approx(rounds * alpha + rounds / ranks * size / speed, rel=1e-6)
    right = alpha + (ranks - 1) * size / speed if ranks > 1 else 0.0
    assert one_shot == pytest.approx(right, rel=1e-6)


@many
@given(
    ranks=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    odd=st.integers(0, 1),
    inputs=st.integers(1, 9),
    data=st.data(),
)
def test_10_3_any_rows(
    subject: Any, reference: Any, ranks: int, sizes: list[int], odd: int, inputs: int, data: Any
) -> None:
    """Any projections; what does not come out even is refused."""
    p = Program()
    rank = data.draw(st.integers(0, ranks - 1))
    rows = [size * ranks for size in sizes]
    rows[-1] += odd
    ours = group(p, rank, ranks, data.draw(st.integers(0, 3)) * ranks)
    layout = p.new(f"{DIST}linear:ColumnParallel", ours)
    p.see(p.call("builtins:repr", layout.parts(inputs, rows)))
    compare(subject, reference, p)


@pytest.mark.parametrize("rows", [[3, 5], [5, 3], [4, 3, 1]])
def test_10_3_each_projection_comes_out_even(subject: Any, rows: list[int]) -> None:
    """That their sum does is not enough: every rank has some of each."""
    p = Program()
    layout = p.new(f"{DIST}linear:ColumnParallel", group(p, 0, 2))
    p.refuse("ValueError", layout.parts, 7, rows)
    p.see("refused")
    assert subject.run(p) == ["refused"]


@many
@given(
    kv_heads=st.integers(1, 6),
    queries=st.integers(1, 4),
    head_dim=st.sampled_from([1, 4, 6]),
    data=st.data(),
)
def test_10_4_any_heads(
    subject: Any, reference: Any, kv_heads: int, queries: int, head_dim: int, data: Any
) -> None:
    """Any heads on any ranks; what does not come out even is refused."""
    heads = kv_heads * queries
    whole = [p for p in range(1, heads + 1) if heads % p == 0]
    ranks = data.draw(st.sampled_from([*whole, *whole[1:], heads + 1, 4]))
    p = Program()
    for rank in range(ranks):
        ours = group(p, rank, ranks, ranks)
        layout = p.new(f"{DIST}linear:QKVParallel", ours, heads, kv_heads)
        sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        p.see(p.call("builtins:repr", layout.parts(7, sizes)))
    compare(subject, reference, p)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(6, 3, 2), (6, 2, 3), (12, 4, 6)])
def test_10_4_kv_heads_are_not_cut(subject: Any, heads: int, kv_heads: int, ranks: int) -> None:
    """Three KV heads for two ranks, or two for three: refused on all, though the query heads come
    out even."""
    for rank in range(ranks):
        p = Program()
        names = code(
            p,
            f"""
from {DIST}linear import QKVParallel
from {DIST}parallel_state import GroupCoordinator

layout = QKVParallel(GroupCoordinator(list(range(ranks)), rank), heads, kv_heads)
try:
    layout.parts(7, [4 * heads, 4 * kv_heads, 4 * kv_heads])
    is_refused = False
except ValueError:
    is_refused = True
""",
            rank=rank,
            ranks=ranks,
            heads=heads,
            kv_heads=kv_heads,
        )
        p.see(names["is_refused"])
        assert subject.run(p) == [True]


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(6, 2, 4), (6, 1, 4), (3, 1, 2)])
def test_10_4_query_heads_are_not_cut(subject: Any, heads: int, kv_heads: int, ranks: int) -> None:
    """Rows of 4 numbers a head come out even where heads do not: half a head is on no rank."""
    for rank in range(ranks):
        p = Program()
        layout = p.new(f"{DIST}linear:QKVParallel", group(p, rank, ranks), heads, kv_heads)
        p.refuse("ValueError", layout.parts, 7, [4 * heads, 4 * kv_heads, 4 * kv_heads])
        p.see("refused")
        assert subject.run(p) == ["refused"]


@many
@given(
    ranks=st.integers(1, 6),
    each=st.integers(1, 5),
    odd=st.integers(0, 1),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    data=st.data(),
)
def test_10_5_any_columns(
    subject: Any, reference: Any, ranks: int, each: int, odd: int, sizes: list[int], data: Any
) -> None:
    """Any columns and projections, any place in any group."""
    p = Program()
    place = data.draw(st.integers(0, ranks - 1))
    ours = group(p, place, ranks, data.draw(st.integers(0, 3)) * ranks)
    layout = p.new(f"{DIST}linear:RowParallel", ours)
    p.see(layout.adds_bias)
    p.see(p.call("builtins:repr", layout.parts(each * ranks + odd, sizes)))
    compare(subject, reference, p)


@pytest.mark.parametrize("ranks", [7, 8, 16])
def test_10_5_one_of_many_adds_the_bias(subject: Any, ranks: int) -> None:
    """The first rank does, and no other."""
    p = Program()
    p.see([p.new(f"{DIST}linear:RowParallel", group(p, rank, ranks, ranks)).adds_bias
           for rank in range(ranks)])  # fmt: skip
    assert subject.run(p) == [[True] + [False] * (ranks - 1)]


@few
@given(ranks=st.integers(1, 4), seed=st.integers(0, 99), biased=st.booleans())
def test_10_5_any_layer(subject: Any, ranks: int, seed: int, biased: bool) -> None:
    """All ranks' parts of a layer together are the layer."""
    weight, bias, x = numbers(seed, 5, 12), numbers(seed + 1, 5), numbers(seed + 2, 3, 12)
    p = Program()
    names = code(
        p,
        f"""
from {DIST}linear import RowParallel
from mini_vllm.model.layers import PLAIN, Linear
weight, bias, x = (torch.tensor(n, dtype=torch.float32) for n in (weight, bias, x))

def work(group):
    layer = Linear(12, 5, biased, PLAIN, RowParallel(group))
    columns = layer.parts[0].in_
    layer.weight.data.copy_(weight[:, columns])
    if biased:
        layer.bias.data.copy_(bias)
    return layer(x[:, columns]), group.num_exchanged

outputs, exchanged = zip(*run_ranks(ranks, work))
""",
        weight=weight,
        bias=bias,
        x=x,
        ranks=ranks,
        biased=biased,
    )
    p.see(names["outputs"])
    p.see(names["exchanged"])
    outputs, exchanged = subject.run(p)
    right = np.array(x) @ np.array(weight).T + (np.array(bias) if biased else 0)
    assert all(np.array_equal(y, right) for y in outputs)
    allowed = (15,) if ranks > 1 else (0, 15)  # alone an exchange is nothing at all
    for count in exchanged:
        assert count["all_reduce"] == sum(count.values()) in allowed


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_10_5_sums_in_the_dtype_of_the_parts(subject: Any, kind: str) -> None:
    """What comes out of a layer has the dtype that its partial results have."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}linear import RowParallel
parts = [torch.tensor([[1.0, 2.0], [3.0, -4.0]]).to(getattr(torch, kind)) for _ in range(2)]
sums = run_ranks(2, lambda group: RowParallel(group).finish(parts[group.rank_in_group]))
told = [[str(each.dtype), each.tolist()] for each in sums]
""",
        kind=kind,
    )
    p.see(names["told"])
    assert subject.run(p) == [[[f"torch.{kind}", [[2.0, 4.0], [6.0, -8.0]]]] * 2]


NOTED = """
class Noted:
    \"\"\"The first of two that both have the same; it notes what is handed to each exchange.\"\"\"
    rank = rank_in_group = 0
    world_size, is_first_rank, is_last_rank = 2, True, False
    def __init__(self):
        self.told = []
    def all_reduce(self, x):
        self.told.append(["all_reduce", str(x.dtype), list(x.shape)])
        return x + x
    def all_gather(self, x, dim=-1):
        self.told.append(["all_gather", str(x.dtype), list(x.shape)])
        return torch.cat([x, x], dim)

group = Noted()
"""


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_10_5_parts_travel_in_their_own_dtype(subject: Any, kind: str) -> None:
    """One exchange, of as many bytes as the partial results have."""
    p = Program()
    names = code(
        p,
        NOTED
        + f"""
from {DIST}linear import RowParallel
RowParallel(group).finish(torch.ones(3, 5, dtype=getattr(torch, kind)))
""",
        kind=kind,
    )
    p.see(names["group"].told)
    assert subject.run(p) == [[["all_reduce", f"torch.{kind}", [3, 5]]]]


@many
@given(data=st.data())
def test_10_6_any_targets(subject: Any, reference: Any, data: Any) -> None:
    """Any projections of any layout, held whole, packed, turned or one by one."""
    p = Program()
    part_class, slice_ = "mini_vllm.model.layout:Part", "builtins:slice"
    kind = data.draw(st.sampled_from(["plain", "packed", "turned", "each", "each cut", "none"]))
    pack = 2 if kind == "packed" else 1
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rank, ranks = data.draw(st.integers(0, 1)), 2
    columns = data.draw(st.sampled_from([(0, 4), (0, 2), (2, 4)]))
    parts, wholes, rows = [], [], 0
    for count in counts:
        size = 2 * count
        begin, end = rank * size, (rank + 1) * size
        parts.append(p.new(part_class, p.call(slice_, begin, end), p.call(slice_, *columns)))
        whole = p.call(slice_, 0, ranks * size)
        wholes.append(p.new(part_class, whole, p.call(slice_, 0, 4)))
        rows += size // pack
    width = columns[1] - columns[0]
    options: dict[str, Any] = {
        "plain": {"out_dim": 0, "in_dim": 1},
        "packed": {"out_dim": 0, "in_dim": None, "out_pack": 2, "optional": True},
        "turned": {"out_dim": 1, "in_dim": 0},
        "each": {"out_dim": None, "per_part": True, "optional": True},
        "each cut": {"out_dim": None, "in_dim": 0, "per_part": True},
        "none": {},
    }
    shape = {
        "plain": (rows, width), "packed": (rows, 3), "turned": (width, rows),
        "each": (len(counts), 2), "each cut": (len(counts), width), "none": (4,),
    }[kind]  # fmt: skip
    parameter = p.call("torch:zeros", list(shape))
    if kind != "none":
        p.set(parameter, "spec", p.new("mini_vllm.model.layout:ParamSpec", **options[kind]))
    module = p.new("types:SimpleNamespace", parts=parts, whole_parts=wholes)
    found = p.call(
        "builtins:list",
        p.call("mini_vllm.model.sharded_loader:projection_targets", module, parameter),
    )
    for number in range(1 if kind == "none" else len(counts)):
        target = found[number]
        target.view.fill_(number + 1)
        p.see(p.call("builtins:sorted", p.call("builtins:repr", target.cuts)))
        p.see(p.call("builtins:list", target.shape))
        p.see(target.optional)
    p.see(p.call("builtins:len", found))
    p.see(parameter)
    compare(subject, reference, p)


def test_10_6_a_tensor_for_each_projection(subject: Any) -> None:
    """With `per_part` every projection fills its own entry, and none of the others'."""
    p = Program()
    names = code(
        p,
        """
from types import SimpleNamespace
from mini_vllm.model.layout import ParamSpec, Part
from mini_vllm.model.sharded_loader import projection_targets

sizes = (4, 2, 2, 6, 2)
parts = [Part(slice(size, 2 * size), slice(0, 4)) for size in sizes]
wholes = [Part(slice(0, 2 * size), slice(0, 4)) for size in sizes]
parameter = torch.zeros(5, 2)
parameter.spec = ParamSpec(out_dim=None, per_part=True)
module = SimpleNamespace(parts=parts, whole_parts=wholes)
shapes = []
for number, target in enumerate(projection_targets(module, parameter)):
    target.view.fill_(number + 1)
    shapes.append(list(target.shape))
filled = parameter.tolist()
""",
    )
    p.see(names["filled"])
    p.see(names["shapes"])
    assert subject.run(p) == [[[float(n)] * 2 for n in range(1, 6)], [[2]] * 5]


@pytest.mark.parametrize("out_dim", [0, 1])
def test_10_6_the_last_word_may_be_begun(subject: Any, out_dim: int) -> None:
    """Six rows, four to an entry, are two entries; the next projection begins behind both."""
    p = Program()
    names = code(
        p,
        """
from types import SimpleNamespace
from mini_vllm.model.layout import ParamSpec, Part
from mini_vllm.model.sharded_loader import projection_targets

wholes = [Part(slice(0, size), slice(0, 5)) for size in (6, 4, 1)]
parameter = torch.zeros(4, 5) if out_dim == 0 else torch.zeros(5, 4)
parameter.spec = ParamSpec(out_dim=out_dim, out_pack=4)
module = SimpleNamespace(parts=wholes, whole_parts=wholes)
shapes = []
for number, target in enumerate(projection_targets(module, parameter)):
    target.view.fill_(number + 1)
    shapes.append([list(target.shape), list(target.view.shape)])
filled = (parameter if out_dim == 0 else parameter.T)[:, 0].tolist()
shapes = [[shape[out_dim] for shape in both] for both in shapes]
""",
        out_dim=out_dim,
    )
    p.see(names["filled"])
    p.see(names["shapes"])
    assert subject.run(p) == [[1.0, 1.0, 2.0, 3.0], [[2, 2], [1, 1], [1, 1]]]


@many
@given(
    size=st.integers(1, 9),
    width=st.integers(1, 4),
    start=st.integers(0, 10),
    length=st.integers(1, 5),
    turned=st.booleans(),
    half=st.booleans(),
)
def test_10_6_any_slice(
    subject: Any, size: int, width: int, start: int, length: int, turned: bool, half: bool
) -> None:
    """Any rows or columns, inside, over the end and behind it; nothing else is read."""
    dim = int(turned)
    shape = [width, size] if turned else [size, width]
    view_shape = [width, length] if turned else [length, width]
    whole = np.arange(1, size * width + 1).reshape(shape)
    p = Program()
    names = code(
        p,
        """
from pathlib import Path
from mini_vllm.model.sharded_loader import Target, copy_slice

class File:
    read = 0
    def get_slice(self, name):
        return self
    def get_shape(self):
        return list(tensor.shape)
    def __getitem__(self, index):
        piece = tensor[index]
        File.read += piece.numel()
        return piece

tensor = torch.tensor(whole, dtype=torch.float16 if half else torch.float32)
view = torch.full(view_shape, 99.0)
copy_slice(Target(view, {dim: slice(start, end)}, shape), File(), "w", Path("w"))
read = File.read
""",
        whole=whole.tolist(),
        half=half,
        view_shape=view_shape,
        dim=dim,
        start=start,
        end=start + length,
        shape=shape,
    )
    p.see(names["view"])
    p.see(names["read"])
    view, read = subject.run(p)
    right = np.zeros((length, width))
    piece = (whole.T if turned else whole)[start : start + length]
    right[: len(piece)] = piece
    assert np.array_equal(view, right.T if turned else right)
    assert read == piece.size


FILE = """
from pathlib import Path
from mini_vllm.model.sharded_loader import Target, copy_slice

class File:
    \"\"\"Takes a tuple of slices within the tensor, as safetensors does.\"\"\"
    def get_slice(self, name):
        return self
    def get_shape(self):
        return list(tensor.shape)
    def __getitem__(self, index):
        if not isinstance(index, tuple):
            raise TypeError(f"index is {index!r}; a tuple, one slice a dimension, is asked for")
        for cut, size in zip(index, tensor.shape):
            if max(cut.start or 0, cut.stop or 0) > size:
                raise IndexError(f"{cut} of {size} entries")
        return tensor[index]
"""


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -1.0])
def test_10_6_what_is_not_in_the_file_is_zero(subject: Any, rubbish: float) -> None:
    """Whatever lay in the memory before: a product with zero would leave what is no number."""
    p = Program()
    names = code(
        p,
        FILE
        + """
tensor = torch.ones(5, 3)
view = torch.full((4, 3), rubbish)
copy_slice(Target(view, {0: slice(3, 7)}, [5, 3]), File(), "w", Path("w"))
rest = torch.full((2, 3), rubbish)
copy_slice(Target(rest, {0: slice(6, 8)}, [5, 3]), File(), "w", Path("w"))
found = [view.tolist(), rest.tolist()]
""",
        rubbish=rubbish,
    )
    p.see(names["found"])
    assert subject.run(p) == [[[[1.0] * 3] * 2 + [[0.0] * 3] * 2, [[0.0] * 3] * 2]]


@pytest.mark.parametrize("kind", ["int32", "uint8", "int64", "float64"])
@pytest.mark.parametrize("rows", [(2, 6), (1, 4)])
def test_10_6_words_keep_all_their_bits(subject: Any, kind: str, rows: tuple[int, int]) -> None:
    """A word of eight 4-bit numbers has more bits than a float32 keeps: nothing is converted on
    the way that lies in the file as it is held here."""
    p = Program()
    names = code(
        p,
        FILE
        + """
dtype = getattr(torch, kind)
most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
tensor = torch.tensor([[most - 3 * row - column for column in range(3)] for row in range(5)],
                      dtype=dtype)
view = torch.full((rows[1] - rows[0], 3), 7, dtype=dtype)
copy_slice(Target(view, {0: slice(*rows)}, [5, 3]), File(), "w", Path("w"))
right = torch.zeros_like(view)
right[: min(rows[1], 5) - rows[0]] = tensor[slice(*rows)]
same = torch.equal(view, right)
""",
        kind=kind,
        rows=rows,
    )
    p.see(names["same"])
    assert subject.run(p) == [True]


@pytest.mark.parametrize(
    ("rows", "columns"), [((2, 4), (1, 3)), ((3, 6), (2, 4)), ((4, 6), (0, 1)), ((0, 2), (3, 5))]
)
def test_10_6_cut_both_ways(subject: Any, rows: tuple[int, int], columns: tuple[int, int]) -> None:
    """Some rows and some columns of five by four, over the end of either as well."""
    p = Program()
    names = code(
        p,
        """
from pathlib import Path
from mini_vllm.model.sharded_loader import Target, copy_slice

tensor = torch.arange(1.0, 21.0).view(5, 4)
view = torch.full((rows[1] - rows[0], columns[1] - columns[0]), 99.0)

class File:
    def get_slice(self, name):
        return self

    def get_shape(self):
        return list(tensor.shape)

    def __getitem__(self, index):
        asked.append([[cut.start or 0, cut.stop] for cut in index])
        return tensor[index]

asked = []
copy_slice(Target(view, {0: slice(*rows), 1: slice(*columns)}, [5, 4]), File(), "w", Path("w"))
""",
        rows=rows,
        columns=columns,
    )
    p.see(names["view"])
    p.see(names["asked"])
    right = np.zeros((rows[1] - rows[0], columns[1] - columns[0]))
    piece = np.arange(1.0, 21.0).reshape(5, 4)[slice(*rows), slice(*columns)]
    right[: len(piece), : piece.shape[1]] = piece
    view, asked = subject.run(p)
    assert np.array_equal(view, right)
    for each in asked:
        assert all(stop <= size for (_, stop), size in zip(each, (5, 4), strict=True)), each


@many
@example(vocab=60, ranks=4)
@example(vocab=65, ranks=6)
@given(vocab=st.integers(1, 3000), ranks=st.integers(1, 9))
def test_10_7_any_range(subject: Any, reference: Any, vocab: int, ranks: int) -> None:
    """Any vocabulary on any ranks."""
    p = Program()
    for rank in range(ranks):
        p.see(p.call("builtins:repr", p.call(f"{DIST}vocab:vocab_range", vocab, rank, ranks)))
    compare(subject, reference, p)


@few
@given(vocab=st.integers(1, 300), ranks=st.integers(1, 4), seed=st.integers(0, 99))
def test_10_7_any_tokens(subject: Any, vocab: int, ranks: int, seed: int) -> None:
    """Any tokens' vectors, exact; rows of padding are full of something else."""
    draw = np.random.default_rng(seed)
    ids = [0, vocab - 1, *draw.integers(0, vocab, 5).tolist()]
    p = Program()
    names = code(
        p,
        f"""
from {DIST}vocab import VocabParallelEmbedding
torch.manual_seed(seed)
table = torch.randn(vocab, 3)

def work(group):
    embedding = VocabParallelEmbedding(group, vocab)
    rows = embedding.rows
    weight = torch.full((rows.stop - rows.start, 3), 7.0)
    weight[: len(table[rows])] = table[rows]
    return embedding.lookup(torch.tensor(ids), weight)

good = [torch.equal(vectors, table[ids]) for vectors in run_ranks(ranks, work)]
""",
        vocab=vocab,
        ranks=ranks,
        seed=seed,
        ids=ids,
    )
    p.see(names["good"])
    assert subject.run(p) == [[True] * ranks]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_10_7_in_the_dtype_of_the_table(subject: Any, kind: str) -> None:
    """Half of a table: its vectors stay in its dtype, and the tokens that were asked for stay as
    they are."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}vocab import VocabParallelEmbedding
table = torch.arange(200 * 2).view(200, 2).to(getattr(torch, kind))
ids = torch.tensor([0, 127, 128, 199])

def work(group):
    embedding = VocabParallelEmbedding(group, 200)
    rows = embedding.rows
    weight = torch.full((rows.stop - rows.start, 2), 7.0, dtype=table.dtype)
    weight[: len(table[rows])] = table[rows]
    return embedding.lookup(ids, weight)

found = run_ranks(2, work)
good = [torch.equal(vectors, table[[0, 127, 128, 199]]) for vectors in found]
kinds = [str(vectors.dtype) for vectors in found]
after = ids.tolist()
""",
        kind=kind,
    )
    p.see([names["good"], names["kinds"], names["after"]])
    assert subject.run(p) == [[[True] * 2, [f"torch.{kind}"] * 2, [0, 127, 128, 199]]]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_10_7_vectors_and_logits_travel_in_their_own_dtype(subject: Any, kind: str) -> None:
    """One exchange each, of as many bytes as the vectors and the logits have."""
    p = Program()
    names = code(
        p,
        NOTED
        + f"""
from {DIST}vocab import VocabParallelEmbedding, VocabParallelHead
dtype = getattr(torch, kind)
table = torch.ones(64, 5, dtype=dtype)
vectors = VocabParallelEmbedding(group, 100).lookup(torch.tensor([3, 99]), table)
logits = VocabParallelHead(group, 100).finish(torch.ones(2, 64, dtype=dtype))
kinds = [str(vectors.dtype), str(logits.dtype), list(logits.shape)]
""",
        kind=kind,
    )
    p.see(names["group"].told)
    p.see(names["kinds"])
    told, kinds = subject.run(p)
    name = f"torch.{kind}"
    assert told == [["all_reduce", name, [2, 5]], ["all_gather", name, [2, 64]]]
    assert kinds == [name, name, [2, 100]]


@pytest.mark.parametrize("ranks", [2, 8])
def test_10_7_a_large_vocabulary(subject: Any, ranks: int) -> None:
    """Of 151,936 tokens each is in its row: numbers beyond 65,536, and odd ones beyond 2,048."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}vocab import VocabParallelEmbedding
ids = torch.tensor([0, 2049, 32767, 32768, 65535, 65537, 75967, 75968, 151935])
table = torch.arange(151_936, dtype=torch.float64)[:, None]

def work(group):
    embedding = VocabParallelEmbedding(group, 151_936)
    return embedding.lookup(ids, table[embedding.rows])[:, 0].long().tolist()

found = run_ranks(ranks, work)
asked = ids.tolist()
""",
        ranks=ranks,
    )
    p.see(names["found"])
    p.see(names["asked"])
    found, asked = subject.run(p)
    assert found == [asked] * ranks


@few
@given(vocab=st.integers(1, 300), ranks=st.integers(1, 4), rows=st.integers(1, 3))
def test_10_7_any_logits(subject: Any, vocab: int, ranks: int, rows: int) -> None:
    """All logits in order on all ranks, and none of padding."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}vocab import VocabParallelHead

def work(group):
    head = VocabParallelHead(group, vocab)
    first = torch.arange(head.rows.start, head.rows.stop).float()
    return head.finish(first + 1000 * torch.arange(rows)[:, None])

logits = run_ranks(ranks, work)
right = torch.arange(vocab).float() + 1000 * torch.arange(rows)[:, None]
good = [torch.equal(each, right) for each in logits]
""",
        vocab=vocab,
        ranks=ranks,
        rows=rows,
    )
    p.see(names["good"])
    assert subject.run(p) == [[True] * ranks]


@many
@given(layers=st.integers(1, 130), data=st.data())
def test_10_8_any_stages(subject: Any, reference: Any, layers: int, data: Any) -> None:
    """Any layers on any stages."""
    size = data.draw(st.integers(1, layers))
    p = Program()
    for rank in {0, size // 2, max(size - 2, 0), size - 1}:
        p.see(p.call(f"{DIST}utils:get_pp_indices", layers, rank, size))
    compare(subject, reference, p)


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [(7, [2, 2, 2, 1]), (3, [2, 1]), (8, [3, 3, 2]), (6, [1, 2, 2, 1]), (4, [1] * 4), (5, [5])],
)
def test_10_8_stages_by_hand(subject: Any, layers: int, sizes: list[int]) -> None:
    """Every layer is on one stage, though all but the last have one more."""
    p = Program()
    for rank in range(len(sizes)):
        p.see(p.call(f"{DIST}utils:get_pp_indices", layers, rank, len(sizes)))
    ends = [sum(sizes[: rank + 1]) for rank in range(len(sizes))]
    assert subject.run(p) == list(zip([0, *ends], ends, strict=False))


STAGE = f"""
from {DIST}pipeline import PipelineStage
from mini_vllm.model.interface import IntermediateTensors

class Line:
    def __init__(self):
        self.log, self.tensors = [], []
        self.rank_in_group, self.world_size = place, size
        self.is_first_rank, self.is_last_rank = place == 0, place == size - 1
    def begin(self, what, x, other):
        number = len(self.tensors)
        self.log.append([what, number, other])
        self.tensors.append(x)
        class Waiting:
            wait = lambda _: self.log.append(["wait", number, 0])
        return Waiting()
    def isend(self, x, dst):
        return self.begin("send", x, dst)
    def irecv(self, x, src):
        x.fill_(len(self.tensors))
        return self.begin("receive", x, src)

group = Line()
stage = PipelineStage(group, 3, torch.float16, torch.device("cpu"))
"""


@many
@given(
    size=st.integers(2, 4), tokens=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    data=st.data(),
)  # fmt: skip
def test_10_9_any_stage(subject: Any, size: int, tokens: list[int], data: Any) -> None:
    """Any stage of any pipeline, steps of any length: what each rank is told and waits for."""
    place = data.draw(st.integers(0, size - 1))
    p = Program()
    names = code(
        p,
        STAGE
        + """
seen = []
for count in tokens:
    group.log.append(["step", 0, 0])
    got = stage.receive(count)
    if place == 0:
        seen.append([got == {}])
    else:
        both = got["intermediate"]
        for x in (both.hidden_states, both.residual):
            seen.append([list(x.shape), str(x.dtype), float(x[0, 0])])
    group.log.append(["hand on", 0, 0])
    wide = torch.ones(count, 6, dtype=torch.float16)
    result = wide if place == size - 1 else IntermediateTensors(wide[:, :3], 2 * wide[:, 3:])
    out = stage.hand_on(result)
    seen.append(out is result if place == size - 1 else out is None)
sends = [[float(group.tensors[n][0, 0]), group.tensors[n].is_contiguous()]
         for what, n, _ in group.log if what == "send"]
log = group.log
""",
        place=place,
        size=size,
        tokens=tokens,
    )
    p.see([names["log"], names["seen"], names["sends"]])
    ((log, seen, sends),) = subject.run(p)
    steps: list[list[Any]] = []
    for entry in log:
        if entry[0] in ("step", "hand on"):
            steps.append([])
        else:
            steps[-1].append(entry)
    receives, hands = steps[0::2], steps[1::2]
    number, left = 0, []
    for received, handed in zip(receives, hands, strict=True):
        right = []
        if place > 0:
            right = [["receive", number, place - 1], ["receive", number + 1, place - 1]]
            waits = [["wait", number, 0], ["wait", number + 1, 0]]
            assert sorted(received) == sorted(right + waits)
            number += 2
        else:
            assert received == []
        if place == size - 1:
            assert handed == []
            continue
        waited = sorted(entry for entry in handed if entry[0] == "wait")
        assert waited == [["wait", n, 0] for n in left]
        sent = [["send", number, place + 1], ["send", number + 1, place + 1]]
        assert handed[len(left) :] == sent
        left, number = [number, number + 1], number + 2
    each = 3 if place else 2
    for count, told in zip(tokens, range(0, len(seen), each), strict=True):
        answers = seen[told : told + each]
        assert answers[-1] is True
        if place == 0:
            assert answers[0] == [True], "at the first stage the model is called with nothing more"
        else:
            (shape, dtype, first), (shape2, _, second) = answers[:2]
            assert shape == shape2 == [count, 3] and dtype == "torch.float16"
            assert second == first + 1
    assert sends == [[1.0, True], [2.0, True]] * (len(sends) // 2)


def test_10_9_a_tensor_that_is_being_sent_is_held(subject: Any) -> None:
    """Nothing else may hold what leaves: it is kept, contiguous, until the next call has waited."""
    p = Program()
    names = code(
        p,
        STAGE
        + """
import weakref
group.begin = lambda what, x, other: (gone.append(weakref.ref(x)), group)[1]
group.wait = lambda: None
gone, alive = [], []
for count in (2, 3):
    wide = torch.ones(count, 6, dtype=torch.float16)
    stage.hand_on(IntermediateTensors(wide[:, :3], wide[:, 3:]))
    del wide
    alive.append([ref() is not None for ref in gone])
""",
        place=0,
        size=2,
    )
    p.see(names["alive"])
    assert subject.run(p) == [[[True] * 2, [False] * 2 + [True] * 2]]


def test_10_9_what_comes_does_not_lie_over_what_leaves(subject: Any) -> None:
    """A stage in the middle receives while what it received before is still being sent: in memory
    of its own, step after step."""
    p = Program()
    names = code(
        p,
        STAGE
        + """
kept = []
for step in range(3):
    both = stage.receive(2)["intermediate"]
    stage.hand_on(both)
    kept += [both.hidden_states, both.residual]
places = len({x.data_ptr() for x in kept})
""",
        place=1,
        size=3,
    )
    p.see(names["places"])
    assert subject.run(p) == [6]


def test_10_9_what_leaves_is_contiguous(subject: Any) -> None:
    """Turned, a part of a wider tensor, one row for all: a message has no gaps, and the numbers
    in their order."""
    p = Program()
    names = code(
        p,
        STAGE
        + """
wide = torch.arange(24, dtype=torch.float16).view(4, 6)
one = wide[:1, :3].expand(4, 3)
pairs = [(wide[:3].T[:3], wide.T[:3]), (wide[:, :3], wide[:, 3:]), (one, wide[:, ::2])]
same = []
for pair in pairs:
    del group.tensors[:]
    stage.hand_on(IntermediateTensors(*pair))
    for sent, right in zip(group.tensors, pair):
        same += [sent.is_contiguous(), torch.equal(sent, right)]
""",
        place=0,
        size=2,
    )
    p.see(names["same"])
    assert subject.run(p) == [[True] * 12]


def test_10_9_on_its_device(subject: Any) -> None:
    """What is received lies where the activations are, in their dtype."""
    p = Program()
    names = code(
        p,
        STAGE
        + """
there = PipelineStage(group, 3, torch.bfloat16, torch.device("meta"))
both = there.receive(4)["intermediate"]
told = [[str(x.device), str(x.dtype), list(x.shape)] for x in (both.hidden_states, both.residual)]
""",
        place=1,
        size=2,
    )
    p.see(names["told"])
    assert subject.run(p) == [[["meta", "torch.bfloat16", [4, 3]]] * 2]


def test_10_9_a_plan_without_tokens(subject: Any) -> None:
    """It goes its way like any other: two tensors of no rows come, and are handed on."""
    p = Program()
    names = code(
        p,
        STAGE
        + """
both = stage.receive(0)["intermediate"]
told = [list(x.shape) for x in (both.hidden_states, both.residual)]
stage.hand_on(both)
what = [entry[0] for entry in group.log]
""",
        place=1,
        size=3,
    )
    p.see([names["told"], names["what"]])
    ((told, what),) = subject.run(p)
    assert told == [[0, 3]] * 2
    assert sorted(what) == ["receive"] * 2 + ["send"] * 2 + ["wait"] * 2


@many
@given(
    known=st.integers(1, 12),
    computed=st.integers(0, 12),
    new=st.lists(st.integers(0, 9), max_size=8),
)
def test_10_9_any_tokens(
    subject: Any, reference: Any, known: int, computed: int, new: list[int]
) -> None:
    """Any chunk of any request."""
    assume(computed <= known)
    p = Program()
    p.see(p.call(f"{DIST}pipeline:missing_tokens", known, computed, new))
    compare(subject, reference, p)


@pytest.mark.parametrize("known", [3, 5, 9])
def test_10_9_the_plan_keeps_its_tokens(subject: Any, known: int) -> None:
    """None, some or all of the tokens are missing: what becomes of them is not the plan's."""
    p = Program()
    new = p.call("builtins:list", [7, 8, 9])
    missing = p.call(f"{DIST}pipeline:missing_tokens", known, 3, new)
    p.see(missing)
    missing.append(0)
    p.see(new)
    assert subject.run(p) == [[7, 8, 9][known - 3 :], [7, 8, 9]]


@many
@given(
    sizes=st.lists(st.sampled_from([1, 1, 2, 0]), min_size=3, max_size=8),
    depth=st.integers(1, 4),
    answers=st.lists(st.integers(0, 5), min_size=3, max_size=8),
    under_way=st.integers(0, 4),
)
def test_10_10_any_plans(
    subject: Any, reference: Any, sizes: list[int], depth: int, answers: list[int], under_way: int
) -> None:
    """Any plans, room for any number, answers at any time, also while a plan is submitted: the same
    order of the same things."""
    p = Program()
    names = code(
        p,
        """
from collections import deque
from concurrent.futures import Future
from mini_vllm.core.scheduler_output import CachedRequestData, SchedulerOutput
from mini_vllm.engine.batch_queue import Batch, step_with_batch_queue

no_cached = CachedRequestData([], [], set(), {})
queue, log, futures, left = deque(), [], [], list(sizes)

def submit():
    number, size = len(futures), left.pop(0)
    futures.append(Future())
    if number < len(answers) and not answers[number]:  # it is there at once
        futures[-1].set_result(None)
    log.append(["submit", number])
    tokens = {"a": size} if size else {}
    plan = SchedulerOutput([], no_cached, tokens, size, {}, {}, [], set())
    return Batch(plan, futures[-1], [], float(number), 0.0)

def finish(batch):
    log.append(["finish", int(batch.started)])
    return int(batch.started)

for _ in range(min(under_way, depth, len(left))):
    queue.appendleft(submit())
for step in range(2 * len(sizes) + 2):
    for number, when in enumerate(answers):
        if when <= step and number < len(futures) and not futures[number].done():
            futures[number].set_result(None)
    log.append([step, step_with_batch_queue(queue, depth, lambda: bool(left), submit, finish)])
    log.append([int(batch.started) for batch in queue])
""",
        sizes=sizes,
        depth=depth,
        answers=answers,
        under_way=under_way,
    )
    p.see(names["log"])
    compare(subject, reference, p)


@pytest.mark.parametrize("what", ["submit", "finish"])
def test_10_10_a_plan_that_fails(subject: Any, what: str) -> None:
    """It is raised on. A plan that was not submitted is nowhere, and one whose answer is an error
    is out of the queue, before it is finished and after."""
    p = Program()
    names = code(
        p,
        """
from collections import deque
from concurrent.futures import Future
from mini_vllm.core.scheduler_output import CachedRequestData, SchedulerOutput
from mini_vllm.engine.batch_queue import Batch, step_with_batch_queue

no_cached = CachedRequestData([], [], set(), {})
log, steps = [], []

def make(number):
    plan = SchedulerOutput([], no_cached, {"a": 1}, 1, {}, {}, [], set())
    return Batch(plan, Future(), [], number, 0.0)

def submit():
    if what == "submit":
        raise KeyError("no plan")
    return make(3)

def finish(batch):
    log.append([batch.started, [each.started for each in queue]])
    raise KeyError("no answer")

queue = deque([make(2), make(1)])
for size in (3, 2):
    try:
        step_with_batch_queue(queue, size, lambda: True, submit, finish)
        steps.append("done")
    except KeyError as error:
        steps.append(error.args[0])
    log.append([each.started for each in queue])
""",
        what=what,
    )
    p.see([names["steps"], names["log"]])
    if what == "submit":
        assert subject.run(p) == [[["no plan", "no answer"], [[2, 1], [1, [2]], [2]]]]
    else:
        assert subject.run(p) == [[["no answer"] * 2, [[1, [3, 2]], [3, 2], [2, [3]], [3]]]]


@many
@given(data=st.data())
def test_10_10_any_new_tokens(subject: Any, reference: Any, data: Any) -> None:
    """Any requests, resumed or not, any tokens of them."""
    p = Program()
    requests, starts, scheduled, resumed = {}, [], {}, []
    names = ["ada", "ben", "cyd"]
    for index, name in enumerate(names):
        request = p.new("mini_vllm.request:Request", name, list(range(10 * index, 10 * index + 5)))
        for token in range(data.draw(st.integers(0, 4))):
            request.append_output_token_ids(100 + token)
        requests[name] = request
        starts.append(data.draw(st.integers(0, 5)))
        scheduled[name] = data.draw(st.integers(1, 5))
        resumed += [name] * data.draw(st.integers(0, 1))
    cached = p.new(
        "mini_vllm.core.scheduler_output:CachedRequestData",
        names, starts, p.call("builtins:set", resumed), {},
    )  # fmt: skip
    plan = p.new(
        "mini_vllm.core.scheduler_output:SchedulerOutput",
        [], cached, scheduled, sum(scheduled.values()), {}, {}, [], p.call("builtins:set"),
    )  # fmt: skip
    p.see(p.call("mini_vllm.engine.batch_queue:new_token_ids", plan, requests))
    p.see(p.call("builtins:sorted", cached.resumed_req_ids))
    compare(subject, reference, p)


RING = f"""
from {DIST}shm_broadcast import ShmRingBuffer
memory = bytearray(ShmRingBuffer.num_bytes(readers, 16, chunks))
writer, *sides = [ShmRingBuffer(memory, readers, 16, chunks) for _ in range(readers + 1)]
"""


@many
@given(
    readers=st.integers(1, 3),
    chunks=st.integers(1, 3),
    moves=st.lists(
        st.tuples(st.sampled_from([-1, -1, 0, 1, 2]), st.binary(max_size=8)),
        min_size=8,
        max_size=24,
    ),
)
def test_10_11_any_moves(
    subject: Any, reference: Any, readers: int, chunks: int, moves: list[tuple[int, bytes]]
) -> None:
    """Any writes and reads that are allowed, in any order; what lies in memory, too. Behind a
    message there may be anything."""
    p = Program()
    names = code(
        p,
        RING
        + """
def held():
    whole = [bytes(memory[16 * n : 16 * n + 16]) for n in range(chunks)]
    sizes = [int.from_bytes(chunk[:4], "little") % (1 << 30) for chunk in whole]
    return [chunk[: 4 + size] for chunk, size in zip(whole, sizes)], bytes(memory[16 * chunks :])

log = []
for side, message in moves:
    if side < 0 and writer.can_write():
        writer.commit_write(message, (1 + len(message) % 3) << 30)
    elif 0 <= side < readers and sides[side].can_read(side):
        log.append(list(sides[side].commit_read(side)))
    log.append([writer.can_write(), *[side.can_read(i) for i, side in enumerate(sides)]])
    log.append([held(), [side.current for side in (writer, *sides)]])
""",
        readers=readers,
        chunks=chunks,
        moves=[[side, message] for side, message in moves],
    )
    p.see(names["log"])
    compare(subject, reference, p)


@pytest.mark.parametrize("size", [255, 256, 300, 65_535, 65_536, 70_000, 16_777_301])
@pytest.mark.parametrize("last", [b"\0\0", b"\xff"], ids=["zeros", "ones"])
def test_10_11_long_messages(subject: Any, size: int, last: bytes) -> None:
    """Their length takes more than one byte of the header, or three, and zeros at the end are
    theirs. They fill the chunk to its end."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}shm_broadcast import FIRST, ShmRingBuffer
memory = bytearray(ShmRingBuffer.num_bytes(1, size + 4, 2))
writer, reader = [ShmRingBuffer(memory, 1, size + 4, 2) for _ in range(2)]
message = bytes(range(1, 200)) * (size // 199 + 1)
message = message[: size - len(last)] + last
same = []
for header in (0, FIRST):
    writer.commit_write(message, header)
    same.append(reader.commit_read(0) == (message, header))
""",
        size=size,
        last=last,
    )
    p.see(names["same"])
    assert subject.run(p) == [[True, True]]


@pytest.mark.parametrize("late", range(5))
def test_10_11_the_last_reader_counts(subject: Any, late: int) -> None:
    """Of five readers four have read, in every order: the chunk is theirs until the fifth has."""
    p = Program()
    names = code(
        p,
        RING
        + """
writer.commit_write(b"news")
seen = []
for rank in [*range(late), *range(late + 1, readers), late]:
    seen.append(writer.can_write())
    assert sides[rank].can_read(rank)
    sides[rank].commit_read(rank)
seen.append(writer.can_write())
""",
        readers=5,
        chunks=1,
        late=late,
    )
    p.see(names["seen"])
    assert subject.run(p) == [[False] * 5 + [True]]


@few
@given(
    chunks=st.integers(1, 3),
    messages=st.lists(st.binary(min_size=1, max_size=9), min_size=2, max_size=5),
    every=st.integers(1, 3),
)
def test_10_11_any_moment(subject: Any, chunks: int, messages: list[bytes], every: int) -> None:
    """A look between two lines sees whole messages, each once."""
    p = Program()
    names = code(
        p,
        RING
        + """
reader, seen, looks = sides[0], [], [0]

def look():
    looks[0] += 1
    if looks[0] % every == 0 and reader.can_read(0):
        seen.append(reader.commit_read(0)[0])

def rest():
    while reader.can_read(0):
        seen.append(reader.commit_read(0)[0])

for message in messages:
    if not writer.can_write():
        rest()
    interleave(look, writer.commit_write, message)
rest()

got = []
def write():
    if writer.can_write() and not_yet:
        writer.commit_write(not_yet.pop())

for message in messages:
    writer.commit_write(message)
    not_yet = [b"another" for _ in range(chunks)]
    got.append(interleave(write, reader.commit_read, 0)[0])
    rest()
""",
        readers=1,
        chunks=chunks,
        messages=messages,
        every=every,
    )
    p.see(names["seen"])
    p.see(names["got"])
    seen, got = subject.run(p)
    again = seen[len(messages) :]
    assert seen[: len(messages)] == messages
    assert all(message == b"another" for message in again)
    assert got == messages


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_10_11_the_order_of_a_write(subject: Any, readers: int) -> None:
    """Between any two lines: nothing of the chunk is new before `written` is taken away, all of it
    when `written` is set, and no `read` is cleared before that. A reader may have looked at
    `written` before it was taken away, and would take half of a message."""
    p = Program()
    names = code(
        p,
        RING
        + """
def look():
    states.append([bytes(memory[:12]), *memory[16:]])

is_old, is_new, is_late = [], [], []
writer.commit_write(b"anything")
for message in (b"one more", b"and", b"the last"):
    for rank, side in enumerate(sides):
        side.commit_read(rank)
    states = []
    look()
    interleave(look, writer.commit_write, message)
    look()
    before, after = states[0][0], states[-1][0]
    free = [written for _, written, *_ in states].index(0)
    is_old += [chunk == before for chunk, *_ in states[:free]]
    is_new += [chunk == after for chunk, written, *_ in states[free:] if written]
    is_late += [chunk == after for chunk, _, *read in states if 0 in read]
""",
        readers=readers,
        chunks=1,
    )
    for name in ("is_old", "is_new", "is_late"):
        p.see(p.call("builtins:all", names[name]))
    assert subject.run(p) == [True, True, True]


@pytest.mark.parametrize("size", [0, 1, 12])
def test_10_11_a_message_is_a_copy(subject: Any, size: int) -> None:
    """Once it is read the writer writes over the chunk; what was read is `bytes`, and stays."""
    p = Program()
    names = code(
        p,
        RING
        + """
writer.commit_write(b"a" * size)
message, _ = sides[0].commit_read(0)
writer.commit_write(b"b" * 12)
told = [type(message).__name__, list(message)]
""",
        readers=1,
        chunks=1,
        size=size,
    )
    p.see(names["told"])
    assert subject.run(p) == [["bytes", [97] * size]]


def test_10_11_the_fence(subject: Any) -> None:
    """At some fence of a write the message is whole, and no reader may read it. What a read finds
    is what lies there once it has called the fence: header, length and message."""
    p = Program()
    names = code(
        p,
        f"import {DIST}shm_broadcast as module\n"
        + RING
        + """
states, real = [], module.memory_fence
module.memory_fence = lambda: states.append([bytes(memory[4:7]), list(writer.get_metadata())])
writer.commit_write(b"abc")
first, states[:] = list(states), []
for rank, side in enumerate(sides):
    side.commit_read(rank)
states[:] = []
writer.commit_write(b"def")  # over what all have read
module.memory_fence = lambda: memory.__setitem__(slice(0, 6), b"\\2\\0\\0\\x40xy")
found = list(sides[0].commit_read(0))
module.memory_fence = real
""",
        readers=2,
        chunks=1,
    )
    p.see(names["first"])
    p.see(names["states"])
    p.see(names["found"])
    first, again, found = subject.run(p)
    assert found == [b"xy", 1 << 30]
    assert [b"abc", [0, 0, 0]] in first and [b"def", [0, 0, 0]] in again


@many
@given(data=st.data())
def test_10_12_any_requests(subject: Any, reference: Any, data: Any) -> None:
    """Requests, counts and ends in any order, with choices and without."""
    engines = data.draw(st.integers(1, 4))
    p = Program()
    router = p.new(f"{DIST}dp_router:DPRouter", engines)
    for number in range(data.draw(st.integers(1, 12))):
        move = data.draw(st.sampled_from(["ask", "ask", "ask", "choose", "tell", "end"]))
        if move == "ask":
            p.see(router.get_core_engine_for_request(f"r{number}"))
        elif move == "choose":
            rank = data.draw(st.integers(0, engines - 1))
            p.see(router.get_core_engine_for_request(f"r{number}", rank))
        elif move == "tell":
            counts = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9))
            router.set_counts(data.draw(st.integers(0, engines - 1)), *counts)
        else:
            router.finish([f"r{data.draw(st.integers(0, 12))}"])
        p.see([router.score(engine) for engine in range(engines)])
        p.see(router.counts)
        p.see(router.engines)
    nowhere = data.draw(st.sampled_from([-1, engines, 99]))
    p.refuse("ValueError", router.get_core_engine_for_request, "out", nowhere)
    compare(subject, reference, p)


def test_10_12_turns_by_hand(subject: Any) -> None:
    """Whose turn it is among equals is not moved by a request that names its engine; one that comes
    again is where it was sent last; hundreds that run are counted."""
    p = Program()
    router = p.new(f"{DIST}dp_router:DPRouter", 3)
    for rank in (1, None, 1, None, None):
        p.see(router.get_core_engine_for_request("same", rank))
    p.see([router.engines, router.counts])
    for engine, running in enumerate((300, 300, 260)):
        router.set_counts(engine, 0, running)
    p.see(router.get_core_engine_for_request("late"))
    p.see([router.score(engine) for engine in range(3)])
    assert subject.run(p) == [
        1, 0, 1, 2, 0, [{"same": 0}, [[2, 0], [2, 0], [1, 0]]], 2, [300, 300, 264]
    ]  # fmt: skip


@many
@given(engines=st.integers(1, 5), picks=st.lists(st.integers(0, 4), min_size=3, max_size=12))
def test_10_12_any_turns(subject: Any, engines: int, picks: list[int]) -> None:
    """Idle engines take turns, from the one behind the last."""
    p = Program()
    router = p.new(f"{DIST}dp_router:DPRouter", engines)
    right, turn = [], 0
    for number, pick in enumerate(picks):
        for engine in range(engines):
            busy = number % 3 == 2 and engine != pick % engines
            router.set_counts(engine, int(busy), 0)
        turn = pick % engines if number % 3 == 2 else turn
        right.append(turn)
        p.see(router.get_core_engine_for_request(f"r{number}"))
        turn = (turn + 1) % engines
    assert subject.run(p) == right


def test_10_12_a_refused_choice(subject: Any, reference: Any) -> None:
    """Nothing is counted of a request that goes nowhere."""
    p = Program()
    names = code(
        p,
        f"""
from {DIST}dp_router import DPRouter
router, caught = DPRouter(2), []
for rank in (-1, 2):
    try:
        router.get_core_engine_for_request("ada", rank)
    except ValueError:
        caught.append(rank)
left = [router.counts, router.engines, router.next_engine]
""",
    )
    p.see(names["caught"])
    p.see(names["left"])
    compare(subject, reference, p)
