"""Task 17.3: which expert a tensor holds, in every form of file."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.model.moe.expert_names import ExpertPart, expert_parts, rows_of

BASE = "model.layers.0.mlp.experts"


def parts(name: str, shape: list[int], turned: bool = False, mixed: bool = False) -> dict:
    """Our names, without what is before the experts' number, and where each part is."""
    found = expert_parts(name, shape, turned, mixed)
    for part in found.values():
        if not isinstance(part, ExpertPart):
            raise AssertionError(f"a part is {part!r}; it must be an ExpertPart")
    rows = range(shape[2] if turned and len(shape) == 3 else shape[1])
    return {
        key.removeprefix(f"{BASE}."): (part.expert, [*rows[part.rows]], part.shape)
        for key, part in found.items()
    }


def test_17_3_halves() -> None:
    """8 rows: 4 of the gate, then 4 of up."""
    found = {name: [*range(8)[rows]] for name, rows in rows_of("gate_up_proj", 8, False).items()}
    expect(found, {"gate_proj": [0, 1, 2, 3], "up_proj": [4, 5, 6, 7]}, at="8 rows in halves")


def test_17_3_interleaved() -> None:
    """gate 0, up 0, gate 1, up 1."""
    picked = {name: [*range(8)[rows]] for name, rows in rows_of("gate_up_proj", 8, True).items()}
    expect(picked, {"gate_proj": [0, 2, 4, 6], "up_proj": [1, 3, 5, 7]}, at="8 rows interleaved")


def test_17_3_a_projection_alone_has_all_rows() -> None:
    """A projection alone has all rows, also where gate and up are interleaved."""
    found = {name: [*range(5)[rows]] for name, rows in rows_of("down_proj", 5, True).items()}
    expect(found, {"down_proj": [0, 1, 2, 3, 4]}, at="down_proj of 5 rows")


def test_17_3_stacked_gate_and_up() -> None:
    """Two experts of size 3 over 5 features: [2, 6, 5]."""
    found = parts(f"{BASE}.gate_up_proj", [2, 6, 5])
    wanted = {
        f"{e}.{name}.weight": (e, rows, (3, 5))
        for e in (0, 1)
        for name, rows in (("gate_proj", [0, 1, 2]), ("up_proj", [3, 4, 5]))
    }
    expect(found, wanted, at="gate_up_proj [2, 6, 5]")
    expect([*found], [*wanted], at="the order of the names")


def test_17_3_stacked_down() -> None:
    """Two experts of size 3 over 5 features: down is [2, 5, 3]."""
    found = parts(f"{BASE}.down_proj.weight", [2, 5, 3])
    wanted = {f"{e}.down_proj.weight": (e, [0, 1, 2, 3, 4], (5, 3)) for e in (0, 1)}
    expect(found, wanted, at="down_proj.weight [2, 5, 3]")


def test_17_3_transposed() -> None:
    """Llama 4's file has [E, in, out]; rows are those of [out, in]."""
    found = parts(f"{BASE}.gate_up_proj", [1, 5, 6], turned=True)
    wanted = {
        "0.gate_proj.weight": (0, [0, 1, 2], (3, 5)),
        "0.up_proj.weight": (0, [3, 4, 5], (3, 5)),
    }
    expect(found, wanted, at="gate_up_proj [1, 5, 6], transposed")


def test_17_3_biases_are_never_transposed() -> None:
    """gpt-oss: [E, 2I], interleaved."""
    found = parts(f"{BASE}.gate_up_proj_bias", [1, 6], turned=True, mixed=True)
    wanted = {
        "0.gate_proj.bias": (0, [0, 2, 4], (3,)),
        "0.up_proj.bias": (0, [1, 3, 5], (3,)),
    }
    expect(found, wanted, at="gate_up_proj_bias [1, 6]")


def test_17_3_the_tensor_s_own_name_is_made_ours() -> None:
    """`feed_forward` is called `mlp` here."""
    found = expert_parts("model.layers.0.feed_forward.experts.down_proj", [1, 2, 3], False, False)
    expect([*found], [f"{BASE}.0.down_proj.weight"], at="feed_forward.experts.down_proj")


def test_17_3_others_hold_no_parts() -> None:
    """An expert by itself, a router, an MLP, a scale of another form."""
    for name in (f"{BASE}.3.down_proj.weight", "model.layers.0.mlp.gate.weight",
                 "model.layers.0.mlp.gate_up_proj.weight", BASE + ".up_proj_sum"):  # fmt: skip
        expect(expert_parts(name, [4, 3], False, False), {}, at=name)
