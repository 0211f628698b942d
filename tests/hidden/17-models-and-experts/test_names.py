"""Layers, names and experts in files: random configs and names beside loops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

many = settings(max_examples=30)
kinds = st.sampled_from(["full_attention", "sliding_attention", "chunked_attention", "mamba"])

WINDOWS = """
from mini_vllm.model.families.layer_kinds import layer_windows
before = repr(config)
found = layer_windows(config, every)
told = [found, type(found).__name__, repr(config) == before]
"""


@many
@given(data=st.data(), layers=st.integers(1, 70), every=st.integers(1, 80))
def test_17_1_windows_of_any_config(ask: Any, data: Any, layers: int, every: int) -> None:
    """Kinds that are there, absent, null or empty; windows of any size, null or absent."""
    config: dict[str, Any] = {"num_hidden_layers": layers}
    named = data.draw(st.booleans())
    if named:
        config["layer_types"] = data.draw(st.lists(kinds, min_size=layers, max_size=layers))
    elif data.draw(st.booleans()):
        config["layer_types"] = data.draw(st.sampled_from([None, []]))
    if data.draw(st.booleans()):
        config["sliding_window"] = data.draw(st.one_of(st.none(), st.integers(1, 10**6)))
    window = config.get("sliding_window")
    slides = [
        config["layer_types"][index] == "sliding_attention" if named else (index + 1) % every != 0
        for index in range(layers)
    ]
    wanted = tuple(window if one else None for one in slides)
    found, kind, same = ask(WINDOWS, config=config, every=every)
    assert (tuple(found), kind, same) == (wanted, "tuple", True)


def test_17_1_a_kind_is_a_whole_word(ask: Any) -> None:
    """Only "sliding_attention" slides; and a pattern may be longer than eight layers."""
    names = ["sliding_attention", "sliding_attention_sink", "non_sliding_attention", "sliding"]
    config = {"num_hidden_layers": 4, "sliding_window": 8, "layer_types": names}
    assert [*ask(WINDOWS, config=config, every=2)[0]] == [8, None, None, None]
    config = {"num_hidden_layers": 24, "sliding_window": 8}
    wanted = [None if index == 11 or index == 23 else 8 for index in range(24)]
    assert [*ask(WINDOWS, config=config, every=12)[0]] == wanted


def test_17_1_a_pattern_of_one(ask: Any) -> None:
    """Every first layer sees everything: all do. And entries that are there and say nothing."""
    config: dict[str, Any] = {"num_hidden_layers": 3, "sliding_window": 8}
    assert [*ask(WINDOWS, config=config, every=1)[0]] == [None] * 3
    for kinds in (None, []):
        found = ask(WINDOWS, config=config | {"layer_types": kinds}, every=3)[0]
        assert [*found] == [8, 8, None]
    config["sliding_window"] = 0
    assert [*ask(WINDOWS, config=config, every=3)[0]] == [0, 0, None], "0 is a window"
    for nothing in ({"num_hidden_layers": 3}, config | {"sliding_window": None}):
        assert [*ask(WINDOWS, config=nothing, every=3)[0]] == [None] * 3


DENSE = """
from mini_vllm.model.families.layer_kinds import dense_layers
before = repr(config)
found = dense_layers(config)
told = [list(found), type(found).__name__, repr(config) == before]
"""


@many
@given(
    layers=st.integers(1, 64),
    front=st.one_of(st.none(), st.integers(0, 70)),
    listed=st.one_of(st.none(), st.lists(st.integers(0, 70), max_size=5)),
    step=st.one_of(st.none(), st.integers(1, 6)),
    every=st.one_of(st.none(), st.integers(1, 6)),
    absent=st.sets(st.integers(0, 3)),
)
@example(61, 3, None, None, 1, set())
@example(48, None, [], 1, None, set())
@example(6, 0, [], 2, 2, set())
@example(20, 3, [4], None, 2, set())
@example(9, None, [1], 2, None, set())
@example(9, None, [1], None, 3, set())
def test_17_1_dense_layers_of_any_config(
    ask: Any, layers: int, front: Any, listed: Any, step: Any, every: Any, absent: set[int]
) -> None:
    """Any of the four entries, alone and together, null or absent."""
    names = ("first_k_dense_replace", "mlp_only_layers", "decoder_sparse_step", "moe_layer_freq")
    values = dict(zip(names, (front, listed, step, every), strict=True))
    config = {name: values[name] for at, name in enumerate(names) if at not in absent}
    known = {name: config.get(name) for name in names}
    wanted = []
    for index in range(layers):
        is_dense = index < (known[names[0]] or 0) or index in (known[names[1]] or [])
        if known[names[2]]:
            is_dense = is_dense or (index + 1) % known[names[2]] != 0
        if known[names[3]]:
            is_dense = is_dense or index % known[names[3]] != 0
        wanted += [index] * is_dense
    found = ask(DENSE, config=config | {"num_hidden_layers": layers})
    assert found == [wanted, "tuple", True]


PROJECTIONS = """
from mini_vllm.model.families.names import projections
told = [projections(name, stacked) for name in names]
"""
pieces = st.sampled_from(["qkv_proj", "gate_up_proj", "xqkv_proj", "qkv_proj2", "o_proj", "mlp"])


@many
@given(
    names=st.lists(st.lists(pieces, min_size=1, max_size=5).map(".".join), min_size=1, max_size=6),
    own=st.booleans(),
)
@example(["qkv_proj"], False)
@example(["xqkv_proj.qkv_proj.bias", "base-qkv_proj.qkv_proj", "qkv_proj2.0.qkv_proj"], False)
@example(["layers.0.gate_up_proj.weight", "gate_up_proj.qkv_proj"], True)
def test_17_2_projections_of_any_name(ask: Any, names: list[str], own: bool) -> None:
    """At the beginning, in the middle and at the end; whole pieces only; the first one alone."""
    stacked = {
        "gate_up_proj": ["gate_up_proj"] if own else ["gate_proj", "up_proj"],
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    }
    wanted = []
    for name in names:
        parts = name.split(".")
        at = next((index for index, part in enumerate(parts) if part in stacked), None)
        wanted.append([name] if at is None else
                      [".".join([*parts[:at], one, *parts[at + 1 :]]) for one in stacked[parts[at]]]
                      )  # fmt: skip
    assert ask(PROJECTIONS, names=names, stacked=stacked) == wanted


RENAMED = """
from mini_vllm.model.families.names import renamed
told = [renamed(name, pieces) for name in names]
"""


@many
@given(
    names=st.lists(st.text("ab.", max_size=12), min_size=1, max_size=6),
    table=st.lists(st.tuples(st.text("ab.", min_size=1, max_size=3), st.text("abc.", max_size=3)),
                   max_size=4, unique_by=lambda pair: pair[0]),
)  # fmt: skip
@example(["a.a"], [("a", "b"), ("b", "c")])
def test_17_2_renamed_in_order(ask: Any, names: list[str], table: list[tuple[str, str]]) -> None:
    """Each piece, wherever it is, one after the other."""
    wanted = []
    for name in names:
        for ours, theirs in table:
            name = name.replace(ours, theirs)
        wanted.append(name)
    assert ask(RENAMED, names=names, pieces=dict(table)) == wanted


PARTS = """
from mini_vllm.model.moe.expert_names import expert_parts, rows_of
found = expert_parts(name, shape, is_transposed, is_interleaved)
rows = shape[2] if is_transposed and len(shape) > 2 else shape[1]
told = [shape] + [
    [ours, part.expert, list(range(rows)[part.rows]), list(part.shape), type(part).__name__]
    for ours, part in found.items()
]
"""
FORMS = ("", ".weight", "_bias", ".bias", "_blocks", "_scales")


@many
@given(
    projection=st.sampled_from(["gate_up_proj", "gate_proj", "up_proj", "down_proj"]),
    form=st.sampled_from(FORMS),
    base=st.sampled_from(["mlp", "block_sparse_moe", "feed_forward"]),
    experts=st.integers(1, 12),
    out=st.integers(1, 9),
    inner=st.integers(1, 7),
    turned=st.booleans(),
    mixed=st.booleans(),
)
@example("gate_up_proj", "_bias", "mlp", 2, 3, 1, True, True)
@example("gate_up_proj", "", "mlp", 12, 4, 5, True, False)
def test_17_3_parts_of_any_stack(
    ask: Any, projection: str, form: str, base: str, experts: int, out: int, inner: int,
    turned: bool, mixed: bool,
) -> None:  # fmt: skip
    """Every projection, form of name, and way to lie; up to twelve experts."""
    rows = 2 * out if projection == "gate_up_proj" else out
    is_bias = "bias" in form
    shape = [experts, rows] if is_bias else [experts, rows, inner]
    given_shape = [experts, inner, rows] if turned and not is_bias else shape
    places = {projection: [*range(rows)]}
    if projection == "gate_up_proj":
        gate = [*range(0, rows, 2)] if mixed else [*range(out)]
        places = {"gate_proj": gate, "up_proj": [r for r in range(rows) if r not in gate]}
    wanted = [
        [f"model.layers.7.mlp.experts.{expert}.{part}.{'bias' if is_bias else 'weight'}", expert,
         own, [len(own), *shape[2:]], "ExpertPart"]
        for expert in range(experts)
        for part, own in places.items()
    ]  # fmt: skip
    name = f"model.layers.7.{base}.experts.{projection}{form}"
    found = ask(PARTS, name=name, shape=given_shape, is_transposed=turned, is_interleaved=mixed)
    assert found == [given_shape, *wanted]


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.mlp.experts.3.gate_proj.weight", "model.layers.0.mlp.gate_up_proj.weight",
     "model.layers.0.mlp.experts.gate_up_proj_extra", "model.layers.0.mlp.experts.w1",
     "lm_head.weight"],
)  # fmt: skip
def test_17_3_names_that_are_no_stack(ask: Any, name: str) -> None:
    """Near misses: they hold no parts."""
    assert ask(PARTS, name=name, shape=[4, 6, 5], is_transposed=False, is_interleaved=False) == [
        [4, 6, 5]
    ]


ROWS = """
from mini_vllm.model.moe.expert_names import rows_of
told = [[[*range(size)[rows]] for rows in rows_of(name, size, mixed).values()]
        for name in ("gate_up_proj", "down_proj", "gate_up") for mixed in (False, True)]
told += [[*rows_of("gate_up_proj", size, mixed)] for mixed in (False, True)]
"""


@many
@given(half=st.integers(0, 3000))
def test_17_3_rows_of_any_size(ask: Any, half: int) -> None:
    """Halves and turns, gate before up; all rows for others."""
    size = 2 * half
    every = [*range(size)]
    assert ask(ROWS, size=size) == [
        [every[:half], every[half:]], [every[::2], every[1::2]],
        [every], [every], [every], [every],
        ["gate_proj", "up_proj"], ["gate_proj", "up_proj"],
    ]  # fmt: skip


def test_17_3_a_model_of_256_experts(ask: Any) -> None:
    """512 names, in the experts' order: 10 stands behind 9 and not behind 1."""
    found = ask(PARTS, name="a.experts.gate_up_proj", shape=[256, 4, 2], is_transposed=False,
                is_interleaved=False)  # fmt: skip
    wanted = [f"a.experts.{e}.{part}_proj.weight" for e in range(256) for part in ("gate", "up")]
    assert [row[0] for row in found[1:]] == wanted
