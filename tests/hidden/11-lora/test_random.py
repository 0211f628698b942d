"""Names, pairs, slots, queues and mappings: random ones beside the reference or exact arithmetic,
and some by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.judge.collisions import weak_hashes_say_7
from labkit.process.worker import Program

many = settings(max_examples=25)
PEFT = "mini_vllm.lora.peft:"
SLOTS = st.lists(st.integers(-1, 3), min_size=1, max_size=12)


def tensor(p: Program, values: Any, dtype: str = "float32") -> Any:
    return p.call("torch:tensor", values, dtype=p.name(f"torch:{dtype}"))


def numbers(seed: int, *shape: int) -> Any:
    """Small whole numbers as nested lists: products of them are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, size=shape).tolist()


def compare(subject: Any, reference: Any, p: Program) -> None:
    assert subject.run(p) == reference.run(p)


PATTERNS = st.sampled_from(
    ["q_proj", "proj", r"layers\.1\..*", "self_attn.q_proj", ".*", "q", "q|x_proj"]
)


@many
@example(alpha=6, rslora=True, patterns={}, layer=0, rank=4)
@example(alpha=6, rslora=False, patterns={"proj": 9, "q": 7, "q|x_proj": 5}, layer=0, rank=3)
@example(alpha=6, rslora=False, patterns={"q_proj": 9, ".*": 7}, layer=1, rank=3)
@example(alpha=6, rslora=False, patterns={"proj": 3, "q_proj": 0}, layer=1, rank=4)
@example(alpha=6, rslora=False, patterns={".*": 7, "q_proj": 9}, layer=0, rank=3)
@example(alpha=6, rslora=False, patterns={"q": 7, "self_attn": 8}, layer=0, rank=3)
@given(
    alpha=st.integers(1, 64),
    rslora=st.booleans(),
    patterns=st.dictionaries(PATTERNS, st.integers(0, 64), max_size=3),
    layer=st.integers(0, 2),
    rank=st.integers(1, 16),
)
def test_11_1_any_scale(
    subject: Any,
    reference: Any,
    alpha: int,
    rslora: bool,
    patterns: dict[str, int],
    layer: int,
    rank: int,
) -> None:
    """Patterns that fit the end, the whole, nothing; ranks and rsLoRA."""
    p = Program()
    config = p.new(f"{PEFT}PEFTHelper", 8, alpha, rslora, patterns)
    halved = p.new(f"{PEFT}PEFTHelper", 8, alpha / 2, rslora, {"Q_proj": 7, "Wo": 0.5, **patterns})
    for block, rows in ((layer, rank), (layer, rank + 1), (layer + 1, rank)):
        p.see(config.scaling(f"model.layers.{block}.self_attn.q_proj", rows))
        p.see(halved.scaling(f"model.layers.{block}.self_attn.q_proj", rows))
    p.see(halved.scaling("model.layers.0.Attn.Wo", rank))
    assert subject.run(p) == pytest.approx(reference.run(p), rel=1e-12)


@many
@example(parts=["base_model.model", "layers", "base_model.model", "fc"], end="lora_A.weight")
@example(parts=["base_model.model", "fc"], end="lora_B.weight")
@example(parts=["base_model.model", "base_model.model", "fc"], end="lora_A.weight")
@example(parts=["fc", "lora_A.weight", "fc"], end="lora_A.weight")
@example(parts=["fc", "lora_A.weight", "fc"], end="lora_B.weight")
@example(parts=["fc"], end="my_lora_A.weight")
@example(parts=["base_model.model"], end="lora_A.weight")
@given(
    parts=st.lists(
        st.sampled_from(["base_model.model", "layers", "0", "fc", "lora_A.weight"]),
        min_size=1,
        max_size=5,
    ),
    end=st.sampled_from(
        ["lora_A.weight", "lora_B.weight", "weight", "lora_A.default.weight", "my_lora_A.weight"]
    ),
)
def test_11_1_any_name(subject: Any, reference: Any, parts: list[str], end: str) -> None:
    """Prefixes once, twice or not at all; other names are refused."""
    p = Program()
    p.see(p.call(f"{PEFT}parse_fine_tuned_lora_name", ".".join([*parts, end])))
    compare(subject, reference, p)


@pytest.mark.parametrize("name", ["base_model.model.fc.weight", "a.b.lora_A.bias"])
def test_11_1_a_refusal_shows_the_name(subject: Any, name: str) -> None:
    """An adapter has hundreds of tensors: the message says which one it is."""
    p = Program()
    parse = p.name(f"{PEFT}parse_fine_tuned_lora_name")
    p.refuse("ValueError", parse, name, says=name.removeprefix("base_model.model."))
    assert subject.run(p) == []


def targets_of(p: Program, names: tuple[str, ...]) -> dict[str, Any]:
    """Projections of 3 inputs and 2 outputs, the slices of one matrix."""
    inputs, outputs = p.call("builtins:slice", 0, 3), p.call("builtins:slice", 0, 2)
    part = p.new("mini_vllm.model.layout:Part", outputs, inputs)
    return {
        f"a.{name}": p.new(
            "mini_vllm.lora.checkpoint:LoRATarget", "a.qkv_proj", index, len(names), part, part
        )
        for index, name in enumerate(names)
    }


def test_11_2_loaded_twice(subject: Any) -> None:
    """The second time is as the first; v alone has a pair, and half a pair is refused."""
    p = Program()
    a, b = tensor(p, numbers(1, 2, 3)), tensor(p, numbers(2, 2, 2))
    file = {"base_model.model.a.v_proj.lora_A.weight": a}
    file["base_model.model.a.v_proj.lora_B.weight"] = b
    config = p.new(f"{PEFT}PEFTHelper", 8, 16)
    targets = targets_of(p, ("q_proj", "k_proj", "v_proj"))
    for _ in range(2):
        load = "mini_vllm.lora.checkpoint:LoRAModel.from_tensors"
        weights = p.call(load, "k", file, config, targets).weights["a.qkv_proj"]
        p.see(weights[0])
        p.see(weights[1])
        p.see(weights[2].b.tolist())
    p.see(b.tolist())
    del file["base_model.model.a.v_proj.lora_B.weight"]
    p.refuse("ValueError", p.name("mini_vllm.lora.checkpoint:pair_tensors"), file)
    scaled = [[8.0 * value for value in row] for row in numbers(2, 2, 2)]
    assert subject.run(p) == [None, None, scaled, None, None, scaled, numbers(2, 2, 2)]


@many
@given(data=st.data())
def test_11_2_any_pairs(subject: Any, reference: Any, data: Any) -> None:
    """Any projections in any order, each with its own rank."""
    names = ("q_proj", "k_proj", "v_proj")
    chosen = data.draw(st.permutations(names))[: data.draw(st.integers(1, 3))]
    p, tensors = Program(), {}
    targets = targets_of(p, names)
    for index, name in enumerate(chosen):
        rank = data.draw(st.integers(1, 3))
        shapes = data.draw(st.permutations([("A", (rank, 3)), ("B", (2, rank))]))
        for half, shape in shapes:
            tensors[f"base_model.model.a.{name}.lora_{half}.weight"] = tensor(
                p, numbers(index, *shape), "float16"
            )
    config = p.new(f"{PEFT}PEFTHelper", 8, 16)
    model = p.call(
        "mini_vllm.lora.checkpoint:LoRAModel.from_tensors", "k", tensors, config, targets
    )
    for index, name in enumerate(names):
        if name in chosen:
            p.see(model.weights["a.qkv_proj"][index].a)
            p.see(model.weights["a.qkv_proj"][index].b)
        else:
            p.see(model.weights["a.qkv_proj"][index])
    yours, theirs = subject.run(p), reference.run(p)
    assert len(yours) == len(theirs)
    for mine, right in zip(yours, theirs, strict=True):
        assert (mine is None) == (right is None)
        assert right is None or (mine.dtype == right.dtype and np.array_equal(mine, right))


def test_11_2_every_module_has_its_own_slices(subject: Any) -> None:
    """Matrices of one, two and five slices; the last slice of each is adapted, and no other."""
    p = Program()
    inputs, outputs = p.call("builtins:slice", 0, 3), p.call("builtins:slice", 0, 2)
    part = p.new("mini_vllm.model.layout:Part", outputs, inputs)
    targets, file = {}, {}
    sizes = {"a": 2, "b": 2, "c": 1, "d": 5}
    for module, size in sizes.items():
        for index in range(size):
            targets[f"{module}.{index}"] = p.new(
                "mini_vllm.lora.checkpoint:LoRATarget", f"{module}.all", index, size, part, part
            )
        adapted = 0 if module == "a" else size - 1
        for half, shape in (("A", (2, 3)), ("B", (2, 2))):
            file[f"{module}.{adapted}.lora_{half}.weight"] = tensor(p, numbers(1, *shape))
    config = p.new(f"{PEFT}PEFTHelper", 8, 16)
    load = "mini_vllm.lora.checkpoint:LoRAModel.from_tensors"
    model = p.call(load, "k@61ee", file, config, targets)
    p.see([model.key, p.call("builtins:sorted", model.weights)])
    for module in sizes:
        slices = model.weights[f"{module}.all"]
        p.see([p.call("builtins:len", slices), p.call("builtins:list.count", slices, None)])
    p.see([p.call("operator:is_", model.weights["a.all"][i], None) for i in (0, 1)])
    assert subject.run(p) == [
        ["k@61ee", ["a.all", "b.all", "c.all", "d.all"]],
        *([size, size - 1] for size in sizes.values()),
        [False, True],
    ]


def test_11_2_an_alpha_for_each_projection(subject: Any) -> None:
    """A pattern names the projection, and not the matrix whose slice it is."""
    p = Program()
    names = ("q_proj", "k_proj")
    file = {}
    for number, name in enumerate(names):
        for half, shape in (("A", (2, 3)), ("B", (2, 2))):
            file[f"base_model.model.a.{name}.lora_{half}.weight"] = tensor(
                p, numbers(number, *shape)
            )
    config = p.new(f"{PEFT}PEFTHelper", 8, 16, False, {"k_proj": 6, "qkv_proj": 100})
    load = "mini_vllm.lora.checkpoint:LoRAModel.from_tensors"
    weights = p.call(load, "k", file, config, targets_of(p, names)).weights["a.qkv_proj"]
    for index in (0, 1):
        p.see(weights[index].b.tolist())
    scaled = [
        [[factor * value for value in row] for row in numbers(number, 2, 2)]
        for number, factor in ((0, 8.0), (1, 3.0))
    ]
    assert subject.run(p) == scaled


@pytest.mark.parametrize("lacks", [None, 0, 1, 2, 3])
def test_11_2_each_half_has_its_other(subject: Any, lacks: int | None) -> None:
    """Of two pairs any half may be missing; or a fifth tensor may be of another kind."""
    p = Program()
    one = tensor(p, [[1.0]])
    file = {f"a.{name}.lora_{half}.weight": one for name in "qk" for half in "AB"}
    if lacks is None:
        file["a.q.bias"] = one
    else:
        del file[list(file)[lacks]]
    pair = p.name("mini_vllm.lora.checkpoint:pair_tensors")
    p.refuse("ValueError", pair, file)
    assert subject.run(p) == []


def test_11_3_slot_after_slot(subject: Any, reference: Any) -> None:
    """A large adapter in both slots, and over the first one a small one without a middle slice."""
    widths = [4, 2, 2]
    p = Program()
    cpu = p.call("torch:device", "cpu")
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 2, 4, cpu)
    float32 = p.name("torch:float32")
    layer = p.new("mini_vllm.lora.layers:LinearLoRA", 3, widths, 2, 3, meta, float32, cpu)
    for slot, ranks in ((0, [3, 3, 3]), (1, [3, 2, 3]), (0, [1, 0, 2])):
        pairs = [
            p.new(
                "mini_vllm.lora.checkpoint:LoRAPair",
                tensor(p, numbers(rank + 10 * slot, rank, 3)),
                tensor(p, numbers(rank + 20 * slot, width, rank)),
            )
            if rank
            else None
            for rank, width in zip(ranks, widths, strict=True)
        ]
        layer.set_lora(slot, pairs)
        p.see(layer.lora_a.tolist())
        p.see(layer.lora_b.tolist())
    layer.reset_lora(0)
    p.see(layer.lora_a.tolist())
    p.see(layer.lora_b.tolist())
    compare(subject, reference, p)


@many
@given(data=st.data())
def test_11_3_any_slots(subject: Any, reference: Any, data: Any) -> None:
    """Adapters of any rank with any slices, one after another, into a few slots."""
    widths = data.draw(st.sampled_from([[3], [4, 2, 2], [3, 3]]))
    p = Program()
    cpu = p.call("torch:device", "cpu")
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 2, 4, cpu)
    float32 = p.name("torch:float32")
    layer = p.new("mini_vllm.lora.layers:LinearLoRA", 3, widths, 2, 3, meta, float32, cpu)
    for number in range(data.draw(st.integers(1, 4))):
        pairs: list[Any] = []
        for index, width in enumerate(widths):
            rank = data.draw(st.integers(0, 3))
            seed = 10 * number + index
            a, b = (numbers(seed, *shape) for shape in ((rank, 3), (width, rank)))
            pair = (
                p.new("mini_vllm.lora.checkpoint:LoRAPair", tensor(p, a), tensor(p, b))
                if rank
                else None
            )
            pairs.append(pair)
        layer.set_lora(data.draw(st.integers(0, 1)), pairs)
    if data.draw(st.booleans()):
        layer.reset_lora(data.draw(st.integers(0, 1)))
    p.see(layer.lora_a.tolist())
    p.see(layer.lora_b.tolist())
    compare(subject, reference, p)


def manager_of(p: Program, slots: int, room: int) -> Any:
    """The manager of a model without layers."""
    model = p.new("torch.nn:Module")
    p.set(model, "dtype", p.name("torch:float32"))
    p.set(model, "absent", [])
    config = p.new("mini_vllm.config:LoRAConfig", max_loras=slots, max_cpu_loras=room)
    cpu = p.call("torch:device", "cpu")
    return p.new("mini_vllm.lora.slots:LoRAModelManager", model, config, 4, cpu)


def pair_of_one(p: Program) -> Any:
    """A and B of one number each: a module that an adapter changes has a pair at least."""
    one = tensor(p, [[1.0]])
    return p.new("mini_vllm.lora.checkpoint:LoRAPair", one, one)


def test_11_4_each_rule_of_going(subject: Any) -> None:
    """A requested adapter stays, a needed or pinned one stays, and a bad one costs nothing."""
    p = Program()
    manager = manager_of(p, 2, 3)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    bad = p.new("builtins:ValueError", "bad")
    answers = [loaded, loaded, loaded, bad, loaded]
    p.set(manager, "_load", p.new("unittest.mock:Mock", side_effect=answers))
    for key in ("a", "b", "c", "a"):
        manager.add_adapter(key, "/x")
    p.refuse("ValueError", manager.add_adapter, "broken", "/x")
    p.see(p.call("builtins:list", manager.cpu_cache))
    manager.add_adapter("d", "/x")
    p.see(p.call("builtins:list", manager.cpu_cache))
    for key, needed in (("c", ["c"]), ("a", ["a"]), ("d", ["d", "c"])):
        p.see(manager.activate(key, needed))
    p.set(manager, "pinned", p.call("builtins:set", ["c"]))
    p.see(manager.activate("a", ["a"]))
    p.see(manager.slots)
    assert subject.run(p) == [["b", "c", "a"], ["c", "a", "d"], 0, 1, 1, 1, ["c", "a"]]


def test_11_4_a_refusal_moves_nothing(subject: Any) -> None:
    """A bad adapter, known before or not, and a step that needs all slots: everything stays."""
    p = Program()
    manager = manager_of(p, 2, 3)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    bad = p.new("builtins:ValueError", "bad")
    p.set(manager, "_load", p.new("unittest.mock:Mock", side_effect=[loaded] * 3 + [bad]))

    def look() -> None:
        p.see(p.call("builtins:dict", manager.paths))
        p.see([p.call("builtins:list", manager.cpu_cache), manager.slots])
        p.see([p.call("builtins:list", manager.last_used), manager.num_activations])

    for key in "abc":
        manager.add_adapter(key, f"/{key}")
    for key in "ba":
        manager.activate(key, [key])
    look()
    p.refuse("ValueError", manager.add_adapter, "broken", "/broken")
    p.see(manager.activate("c", ["a", "b", "c"]))
    look()
    *before, answer, paths, places, used = subject.run(p)
    assert answer is None and before == [paths, places, used]
    assert paths == {key: f"/{key}" for key in "abc"}


def test_11_4_whose_turn_it_was_least_recently(subject: Any) -> None:
    """Used in another order than they were loaded: a slot goes by its use."""
    p = Program()
    manager = manager_of(p, 2, 3)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    for key in "abc":
        manager.add_adapter(key, "/x")
    for key in "bac":
        p.see(manager.activate(key, [key]))
    p.see(manager.slots)
    assert subject.run(p) == [0, 1, 0, ["c", "a"]]


def test_11_4_the_newest_stays_and_all_others_go(subject: Any) -> None:
    """Where no other may go, the newest stays all the same; later all that are too many go, also
    from their slots, and also where the one that is asked for is there already."""
    p = Program()
    manager = manager_of(p, 1, 1)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    for key, keep in (("a", ""), ("b", "a"), ("c", "ab"), ("d", ""), ("e", "d"), ("e", "")):
        manager.add_adapter(key, "/x", list(keep))
        p.see(p.call("builtins:list", manager.cpu_cache))
        p.see(manager.slots)
        if key < "d":
            manager.activate("a", ["a"])
    found = subject.run(p)
    assert found[::2] == [["a"], ["a", "b"], ["a", "b", "c"], ["d"], ["d", "e"], ["e"]]
    assert found[1::2] == [[None], ["a"], ["a"], [None], [None], [None]]


def test_11_4_an_adapter_in_use_stays_and_is_known(subject: Any) -> None:
    """An adapter that requests use outlives a younger one; folders are kept for loading again."""
    p = Program()
    manager = manager_of(p, 1, 2)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    for key, keep in (("a", ()), ("b", ()), ("c", ["a"]), ("d", ["a", "c", "d"])):
        manager.add_adapter(key, f"/{key}", keep)
        p.see(p.call("builtins:list", manager.cpu_cache))
    p.see(p.call("builtins:dict", manager.paths))
    manager.add_adapter("a", "/new")
    p.see(p.call("builtins:dict", manager.paths))
    paths = {key: f"/{key}" for key in "abcd"}
    caches = [["a"], ["a", "b"], ["a", "c"], ["a", "c", "d"]]
    assert subject.run(p) == [*caches, paths, paths | {"a": "/new"}]


def test_11_4_versions_of_one_name(subject: Any) -> None:
    """Two of pirate, and one of another name with the same digest: three adapters, each is loaded
    and has a slot of its own; to keep one keeps no other."""
    keys = ["pirate@61ee", "pirate@0c03", "json@61ee"]
    p = Program()
    manager = manager_of(p, 3, 3)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    for key in keys:
        manager.add_adapter(key, f"/{key}")
        p.see(manager.activate(key, keys))
    p.see(manager._load.call_count)
    p.see(manager.slots)
    manager.add_adapter("polite@1373", "/polite", keys[:1])
    p.see(p.call("builtins:list", manager.cpu_cache))
    left = [keys[0], keys[2], "polite@1373"]
    assert subject.run(p) == [0, 1, 2, 3, keys, left]


def test_11_4_what_is_there_is_not_read_again(subject: Any) -> None:
    """Asked for from another folder, and when more are there than fit."""
    p = Program()
    manager = manager_of(p, 1, 1)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    for key, path in (("a", "/a"), ("b", "/b"), ("a", "/new"), ("b", "/b"), ("a", "/a")):
        manager.add_adapter(key, path, ["a", "b"])
        p.see(manager._load.call_count)
    assert subject.run(p) == [1, 2, 2, 2, 2]


def test_11_4_an_interrupt_while_a_slot_is_written(subject: Any) -> None:
    """Ctrl-C comes in between: the slot is empty, and nothing counts as done."""
    p = Program()
    manager = manager_of(p, 1, 2)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {"layer": [pair_of_one(p)]})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    layer = p.new("unittest.mock:Mock")
    p.set(manager, "layers", {"layer": layer})
    for key in "ab":
        manager.add_adapter(key, "/x")
    manager.activate("a", ["a"])
    p.set(layer.set_lora, "side_effect", p.name("builtins:KeyboardInterrupt"))
    p.refuse("KeyboardInterrupt", manager.activate, "b", ["b"])
    p.see([manager.slots, p.call("builtins:list", manager.last_used), manager.num_activations])
    p.set(layer.set_lora, "side_effect", None)
    p.see([manager.activate("b", ["b"]), manager.slots, manager.num_activations])
    assert subject.run(p) == [[[None], [], 1], [0, ["b"], 2]]


def test_11_4_a_dozen_stay(subject: Any) -> None:
    """Twelve that are kept stay beside one more; while twelve are needed no slot is free,
    and while eleven are, that of the twelfth."""
    keys = [f"a{number:02}" for number in range(12)]
    p = Program()
    manager = manager_of(p, 12, 12)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    for key in keys:
        manager.add_adapter(key, "/x")
        manager.activate(key, keys)
    manager.add_adapter("b", "/x", keys)
    p.see(p.call("builtins:list", manager.cpu_cache))
    p.see([manager.activate("b", keys), manager.activate("b", keys[:11])])
    assert subject.run(p) == [[*keys, "b"], [None, 11]]


def test_11_4_a_layer_that_is_left_alone(subject: Any) -> None:
    """The first adapter has weights in the layer, the second has none, in the same slot: whether
    the first had it until now, or was removed before."""
    p = Program()
    manager = manager_of(p, 1, 2)
    cpu, float32 = p.call("torch:device", "cpu"), p.name("torch:float32")
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 1, 4, cpu)
    layer = p.new("mini_vllm.lora.layers:LinearLoRA", 1, [1], 1, 1, meta, float32, cpu)
    p.set(manager, "layers", {"layer": layer})
    one = tensor(p, [[5.0]])
    pair = p.new("mini_vllm.lora.checkpoint:LoRAPair", one, one)
    models = [
        p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", weights)
        for weights in ({"layer": [pair]}, {})
    ]
    p.set(manager, "_load", p.new("unittest.mock:Mock", side_effect=models))
    for number, key in enumerate(["full", "empty", "full", "empty"]):
        manager.add_adapter(key, "/x")
        manager.activate(key, [key])
        p.see([layer.lora_a.item(), layer.lora_b.item()])
        if number == 2:
            manager.remove_adapter("full")
    assert subject.run(p) == [[5.0, 5.0], [0.0, 0.0]] * 2


def test_11_4_a_slot_is_written_when_it_is_given(subject: Any) -> None:
    """Twenty steps with two adapters, and a third one: three times each layer is written. It may
    be emptied before it is written."""
    p = Program()
    manager = manager_of(p, 2, 3)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {"layer": [pair_of_one(p)]})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    layer = p.new("unittest.mock:Mock")
    p.set(manager, "layers", {"layer": layer, "other": layer})
    for key in "abc":
        manager.add_adapter(key, "/x")
    for key in ["a", "b"] * 20 + ["c", "b"]:
        manager.activate(key, [key])
    p.see([layer.set_lora.call_count, layer.reset_lora.call_count])
    ((written, emptied),) = subject.run(p)
    assert written == 3 and 3 <= emptied <= 6


@many
@given(
    keys=st.lists(st.integers(0, 5), min_size=1, max_size=14),
    slots=st.integers(1, 3),
    pinned=st.integers(0, 5),
)
def test_11_4_any_order_of_use(
    subject: Any, reference: Any, keys: list[int], slots: int, pinned: int
) -> None:
    """Adapters in any order through both caches; one is pinned."""
    p = Program()
    manager = manager_of(p, slots, slots + 1)
    loaded = p.new("mini_vllm.lora.checkpoint:LoRAModel", "k", {})
    p.set(manager, "_load", p.new("unittest.mock:Mock", return_value=loaded))
    p.set(manager, "pinned", p.call("builtins:set", [f"a{pinned}"]))
    for key in keys:
        manager.add_adapter(f"a{key}", "/x")
        p.see(manager.activate(f"a{key}", [f"a{key}"]))
        p.see(p.call("builtins:list", manager.cpu_cache))
        p.see(manager.slots)
        p.see(p.call("builtins:list", manager.last_used))
    p.see(manager.num_activations)
    compare(subject, reference, p)


@many
@example(names=["a", "a", "a"], wanted="b", pinned=[], max_loras=2)
@example(names=["a", "b"], wanted="c", pinned=["a"], max_loras=3)
@example(names=["a", None], wanted="b", pinned=[], max_loras=1)
@given(
    names=st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=6),
    wanted=st.sampled_from([None, "a", "b", "c"]),
    pinned=st.lists(st.sampled_from(["a", "d"]), max_size=2),
    max_loras=st.integers(1, 3),
)
def test_11_5_any_batch(
    subject: Any, names: list[Any], wanted: Any, pinned: list[str], max_loras: int
) -> None:
    """Any running batch, any pins; asked again when none runs any more."""
    p = Program()
    config = p.new("mini_vllm.config:LoRAConfig", max_loras=max_loras)
    gate = p.new("mini_vllm.lora.scheduling:LoRASchedulerExtension", config)
    p.set(gate, "pinned", p.call("builtins:set", pinned))
    requests = [
        p.new("mini_vllm.request:Request", f"r{i}", [1], lora_name=n) for i, n in enumerate(names)
    ]
    new = p.new("mini_vllm.request:Request", "new", [1], lora_name=wanted)
    expected = []
    for running, holders in ((requests, {*names, *pinned} - {None}), ([], set(pinned))):
        p.see(gate.may_admit(new, running))
        expected.append(wanted is None or wanted in holders or len(holders) < max_loras)
    assert subject.run(p) == expected


@pytest.mark.parametrize("others", [0, 20])
def test_11_5_an_adapter_is_its_whole_key(subject: Any, others: int) -> None:
    """One slot, and pirate@61ee holds it, the first of all that run: neither another version nor
    another name with its digest may come, though `hash()` says 7."""
    p = Program()
    gate = p.new(
        "mini_vllm.lora.scheduling:LoRASchedulerExtension",
        p.new("mini_vllm.config:LoRAConfig", max_loras=1),
    )
    names = ["pirate@61ee"] + [None] * others
    running = [
        p.new("mini_vllm.request:Request", f"r{i}", [1], lora_name=n) for i, n in enumerate(names)
    ]
    asked = ["pirate@61ee", "pirate@0c03", "json@61ee", "Pirate@61ee"]
    with weak_hashes_say_7(p):
        for name in asked:
            new = p.new("mini_vllm.request:Request", "new", [1], lora_name=name)
            p.see(gate.may_admit(new, running))
    assert subject.run(p) == [True, False, False, False]


@pytest.mark.parametrize(("running", "may"), [("a", False), ("ab", False), ("", True)])
def test_11_5_a_waiting_request_holds_no_slot(subject: Any, running: str, may: bool) -> None:
    """The extension knows all unfinished requests; only those that run hold a slot."""
    p = Program()
    config = p.new("mini_vllm.config:LoRAConfig", max_loras=max(len(running), 1))
    gate = p.new("mini_vllm.lora.scheduling:LoRASchedulerExtension", config)
    requests = {n: p.new("mini_vllm.request:Request", f"r{n}", [1], lora_name=n) for n in "abcde"}
    for request in requests.values():
        gate.request_added(request)
    p.see(gate.may_admit(requests["c"], [requests[n] for n in running]))
    assert subject.run(p) == [may]


def test_11_5_asked_anew(subject: Any) -> None:
    """One slot. The same list holds others than before, a request's id returns with another
    adapter, and a pin comes and goes: what was true of the last question says nothing of this."""
    p = Program()
    config = p.new("mini_vllm.config:LoRAConfig", max_loras=1)
    gate = p.new("mini_vllm.lora.scheduling:LoRASchedulerExtension", config)
    expected = []

    def request(name: str, adapter: str | None) -> Any:
        return p.new("mini_vllm.request:Request", name, [1], lora_name=adapter)

    def ask(may: bool, adapter: str = "b") -> None:
        p.see(gate.may_admit(request("new", adapter), running))
        expected.append(may)

    running = p.call("builtins:list", [request("r0", "a"), request("r1", None)])
    ask(False)
    for name, adapter, may in (("r2", None, True), ("r0", "c", False), ("r0", "b", True)):
        p.call("operator:setitem", running, 0, request(name, adapter))
        ask(may)
    ask(False, "a")
    running.clear()
    gate.pinned.add("a")
    ask(False)
    gate.pinned.remove("a")
    ask(True)
    p.see(gate.names)
    assert subject.run(p) == [*expected, {}]


@many
@given(steps=st.lists(SLOTS, min_size=1, max_size=4))
def test_11_6_any_steps(subject: Any, reference: Any, steps: list[list[int]]) -> None:
    """Step after step in the same tensors: what counts of each is right after the last."""
    p = Program()
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 4, 12, p.call("torch:device", "cpu"))
    for slots in steps:
        meta.prepare_tensors(p.call("numpy:array", slots, dtype="int32"))
    total = len(steps[-1])
    p.see(meta.token_lora_mapping.tolist())
    p.see(meta.token_indices_sorted_by_lora_ids.narrow(0, 0, total).tolist())
    p.see(meta.active_lora_ids.tolist())
    p.see(meta.num_tokens_per_lora.tolist())
    p.see(meta.lora_token_start_loc.narrow(0, 0, len(set(steps[-1])) + 1).tolist())
    yours = subject.run(p)
    assert yours == reference.run(p)


def test_11_6_tokens_of_a_slot_keep_their_order(subject: Any) -> None:
    """A long step: a sort of numpy's that is not stable mixes them from 17 tokens on."""
    slots = [(7 * index) % 5 - 1 for index in range(300)]
    p = Program()
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 4, 300, p.call("torch:device", "cpu"))
    meta.prepare_tensors(p.call("numpy:array", slots, dtype="int32"))
    p.see(meta.token_indices_sorted_by_lora_ids.tolist())
    assert subject.run(p) == [sorted(range(300), key=lambda index: slots[index])]


def test_11_6_a_step_without_tokens(subject: Any) -> None:
    """As before a capture: nothing of the step before is left, and what was handed over stays."""
    p = Program()
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 4, 6, p.call("torch:device", "cpu"))
    given_slots = p.call("numpy:array", [3, 0, -1, 1, 0, 3], dtype="int32")
    meta.prepare_tensors(given_slots)
    p.see(given_slots.tolist())
    meta.prepare_tensors(p.call("numpy:array", [], dtype="int32"))
    for name in ("token_lora_mapping", "active_lora_ids", "num_tokens_per_lora"):
        p.see(p.call("builtins:set", getattr(meta, name).tolist()))
    assert subject.run(p) == [[3, 0, -1, 1, 0, 3], {-1}, {-1}, {0}]


def test_11_6_the_same_array_with_other_slots(subject: Any) -> None:
    """The caller may use one array for all its steps."""
    p = Program()
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 4, 3, p.call("torch:device", "cpu"))
    slots = p.call("numpy:array", [3, 0, -1], dtype="int32")
    meta.prepare_tensors(slots)
    p.call("operator:setitem", slots, 0, 1)
    meta.prepare_tensors(slots)
    for name in ("token_lora_mapping", "token_indices_sorted_by_lora_ids", "active_lora_ids"):
        p.see(getattr(meta, name).tolist())
    assert subject.run(p) == [[1, 0, -1], [2, 1, 0], [-1, 0, 1, -1, -1]]


META = (
    "token_lora_mapping", "token_indices_sorted_by_lora_ids", "active_lora_ids",
    "num_tokens_per_lora", "lora_token_start_loc",
)  # fmt: skip


def test_11_6_tensors_stay_where_they_are(subject: Any, reference: Any) -> None:
    """A large step and a small one, in the same tensors."""
    p = Program()
    meta = p.new("mini_vllm.lora.mapping:LoRAKernelMeta", 4, 6, p.call("torch:device", "cpu"))
    places = []
    for slots in ([3, 0, -1, 1, 0, 3], [2, -1]):
        meta.prepare_tensors(p.call("numpy:array", slots, dtype="int32"))
        places.append([getattr(meta, name).data_ptr() for name in META])
        p.see(places[-1])
    for name in META:
        size = 2 if "sorted" in name else 3
        p.see(getattr(meta, name).narrow(0, 0, size).tolist())
    yours = subject.run(p)
    assert yours[0] == yours[1]
    assert yours[2:] == reference.run(p)[2:]


@many
@given(slots=SLOTS, seed=st.integers(0, 99), widths=st.sampled_from([[5], [4, 2, 2], [3, 3]]))
def test_11_7_any_mapping_both_ways(
    subject: Any, slots: list[int], seed: int, widths: list[int]
) -> None:
    """Any rows and slots, dense and grouped, against whole numbers."""
    rank, in_size, num_slots, out = 2, 3, 4, sum(widths)
    ends = np.cumsum([0, *widths]).tolist()
    x, y = (np.array(numbers(seed + i, len(slots), n)) for i, n in enumerate((in_size, out)))
    a = np.array(numbers(seed + 2, num_slots, len(widths), rank, in_size))
    b = np.array(numbers(seed + 3, num_slots, rank, out))
    expected = y.copy()
    for row, slot in enumerate(slots):
        for index, (begin, end) in enumerate(pairwise(ends)):
            if slot >= 0:
                expected[row, begin:end] += a[slot, index] @ x[row] @ b[slot][:, begin:end]
    p = Program()
    columns = [p.call("builtins:slice", begin, end) for begin, end in pairwise(ends)]
    sent = [tensor(p, value.tolist()) for value in (x, a, b)]
    foreign = np.array(slots)[:, None] != np.arange(num_slots)
    used = sorted({slot for slot in slots if slot >= 0})
    groups = [(s, tensor(p, np.flatnonzero(np.array(slots) == s).tolist(), "int64")) for s in used]
    for name, rows in (("dense", tensor(p, foreign.tolist(), "bool")), ("grouped", groups)):
        target = tensor(p, y.tolist())
        p.call(f"mini_vllm.lora.ops:apply_{name}", sent[0], target, sent[1], sent[2], columns, rows)
        p.see(target.tolist())
    assert subject.run(p) == [expected.astype(float).tolist()] * 2


def test_11_7_slices_in_any_place(subject: Any) -> None:
    """Columns that a slice takes need not be in the order of slices, and may leave some out; the
    table of strangers is used by every layer, and stays as it is."""
    x, y = numbers(1, 3, 4), numbers(2, 3, 9)
    a, b = numbers(3, 1, 2, 2, 4), numbers(4, 1, 2, 9)
    places = [(5, 8), (1, 4)]
    expected = np.array(y, dtype=float)
    for index, (begin, end) in enumerate(places):
        expected[:2, begin:end] += (
            np.array(x)[:2] @ np.array(a)[0, index].T @ np.array(b)[0][:, begin:end]
        )
    p = Program()
    columns = [p.call("builtins:slice", *place) for place in places]
    foreign = tensor(p, [[False], [False], [True]], "bool")
    groups = [(0, tensor(p, [0, 1], "int64"))]
    sent = [tensor(p, values) for values in (x, a, b)]
    for name, rows in (("dense", foreign), ("grouped", groups)):
        target = tensor(p, y)
        p.call(f"mini_vllm.lora.ops:apply_{name}", sent[0], target, sent[1], sent[2], columns, rows)
        p.see(target.tolist())
    p.see(foreign.tolist())
    assert subject.run(p) == [expected.tolist()] * 2 + [[[False], [False], [True]]]


def test_11_7_no_row_is_foreign(subject: Any) -> None:
    """One adapter, and all rows use it: there is no table of strangers."""
    p = Program()
    x, y, a, b = numbers(1, 3, 4), numbers(2, 3, 2), numbers(3, 1, 1, 2, 4), numbers(4, 1, 2, 2)
    target = tensor(p, y)
    columns = [p.call("builtins:slice", 0, 2)]
    sent = [tensor(p, values) for values in (x, a, b)]
    p.call("mini_vllm.lora.ops:apply_dense", sent[0], target, sent[1], sent[2], columns, None)
    p.see(target.tolist())
    expected = np.array(y) + np.array(x) @ np.array(a)[0, 0].T @ np.array(b)[0]
    assert subject.run(p) == [expected.astype(float).tolist()]


def test_11_7_a_stranger_is_infinite(subject: Any) -> None:
    """The rows of that adapter are lost, and no others."""
    p = Program()
    infinite = p.call("builtins:float", "inf")
    foreign = tensor(p, [[False, True], [True, False], [True, True]], "bool")
    groups = [(slot, tensor(p, [slot], "int64")) for slot in (0, 1)]
    for name, rows in (("dense", foreign), ("grouped", groups)):
        x, y = tensor(p, numbers(1, 3, 4)), tensor(p, numbers(2, 3, 2))
        a, b = tensor(p, numbers(3, 2, 1, 2, 4)), tensor(p, numbers(4, 2, 2, 2))
        a[1].fill_(infinite)
        columns = [p.call("builtins:slice", 0, 2)]
        p.call(f"mini_vllm.lora.ops:apply_{name}", x, y, a, b, columns, rows)
        p.see(y.isfinite().all(1).tolist())
    assert subject.run(p) == [[True, False, True]] * 2
