"""The cases cover what they promise, and the oracles are right without the engine."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from labkit.course.root import ROOT
from labkit.kernels import cases
from labkit.kernels.cases import SPECS, build, cases_of, find_case
from labkit.kernels.cases.draw import Case, Draw, lazy_zeros
from labkit.kernels.cases.mixed import covering
from labkit.kernels.cases.pages import IMPOSSIBLE_BLOCK
from labkit.kernels.verdict import numbers as verdict
from labkit.kernels.verdict import oracles, tolerances
from labkit.kernels.verdict.controls import BUGS
from labkit.kernels.watch.crosscompile import SHARED_LIMIT
from labkit.kernels.watch.extract import reference_source
from mini_vllm.kernels.attention import NO_WINDOW

ALL = [(spec, case.name) for spec in SPECS for case in cases_of(spec)]
ATTENTION = ("paged_decode", "split_decode", "paged_prefill")
PAGED = (*ATTENTION, "paged_decode_int8")


def problems(spec: str) -> list[dict[str, Any]]:
    return [build(spec, case.name, 1)[0] for case in cases_of(spec)]


def test_the_oracles_import_nothing_of_the_engine() -> None:
    tree = ast.parse(Path(oracles.__file__).read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} == {
        "__future__",
        "collections",
        "itertools",
        "typing",
        "torch",
    }


def drawn(spec: str, case: str, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of a case; of one of which few programs run, their rows."""
    problem, rules = build(spec, case, seed)
    tensors = {k: v for k, v in problem.items() if isinstance(v, torch.Tensor)}
    if rules.rows is None:
        return tensors
    few = list(rules.rows)
    return {k: tensor[few] if len(tensor) > max(few) else tensor for k, tensor in tensors.items()}


@pytest.mark.parametrize(("spec", "case"), ALL)
def test_a_case_is_drawn_from_its_seed(spec: str, case: str) -> None:
    first, again, other = (drawn(spec, case, seed) for seed in (1, 1, 2))
    differs = False
    for name, value in first.items():
        if value.numel() < 2**24:
            bits = [problem[name].contiguous().view(torch.uint8) for problem in (first, again)]
            assert torch.equal(*bits), name
            differs |= value.shape != other[name].shape or not torch.equal(
                bits[0], other[name].contiguous().view(torch.uint8)
            )
    assert differs, "another seed gives the very same problem"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reserve nothing by themselves")
def test_a_huge_tensor_reserves_no_memory() -> None:
    """A laptop of 8 GiB runs the same cases; what Linux would reserve it refuses beyond that."""
    huge = lazy_zeros(2**40, dtype=torch.int8)  # more than any machine of a learner has
    huge[-1] = 3
    assert huge[[0, -1]].tolist() == [0, 3]


def test_the_chapter_says_how_many_cases_there_are() -> None:
    text = (ROOT / "phases/04-attention-kernels/03-labs.md").read_text(encoding="utf-8")
    counts = [len(cases_of(spec)) for spec in ("store_kv", "reduce_splits", *ATTENTION)]
    assert f"from {min(counts)} to {max(counts)} cases a kernel" in text


@pytest.mark.parametrize("spec", SPECS)
def test_each_kernel_has_enough_cases_of_each_dtype(spec: str) -> None:
    known = cases_of(spec)
    assert len(known) >= 6 and len({case.name for case in known}) == len(known)
    assert {case.dtype for case in known} == {"float32", "float16", "bfloat16"}
    assert any(case.graded for case in known)


@pytest.mark.parametrize("spec", ["paged_decode", "paged_decode_int8", "mla_decode"])
def test_a_kernel_is_judged_by_the_cases_whose_parameters_it_has(spec: str) -> None:
    every, older = cases_of(spec), cases_of(spec, ())
    assert cases_of(spec, ("order_ptr",)) == every
    gone = [case for case in every if case not in older]
    assert {case.dtype for case in gone} == {"float32", "float16", "bfloat16"}
    for case in gone:
        problem, _ = build(spec, case.name, 1)
        assert case.optional == "order_ptr"
        assert sorted(problem["order"].tolist()) == list(range(len(problem["seq_lens"])))


@pytest.mark.parametrize("spec", ["paged_decode", "paged_prefill"])
def test_attention_meets_every_block_size_group_and_window(spec: str) -> None:
    found = problems(spec)
    caches = [problem["key_cache"] for problem in found]
    groups = {p["query"].shape[1] // p["key_cache"].shape[2] for p in found}
    assert {cache.shape[1] for cache in caches} >= {1, 4, 16, 32}
    assert {cache.shape[3] for cache in caches} >= {32, 64, 80, 128}
    assert groups >= {1, 2, 3, 4, 8}
    assert {p["window"] for p in found} >= {None, 1}
    assert any(p["window"] and p["window"] > 1 and p["window"] % 2 for p in found)
    queries = [p["query"] for p in found if len(p["query"]) > 1 and p["query"].numel() < 2**32]
    assert not any(query.is_contiguous() for query in queries)
    assert any(0 in p["seq_lens"] for p in found) and any(1 in p["seq_lens"] for p in found)


@pytest.mark.parametrize("spec", ["store_kv", "paged_decode", "paged_prefill"])
def test_a_cache_is_larger_than_32_bits(spec: str) -> None:
    problem, rules = build(spec, "big-cache", 3)
    assert problem["key_cache"].numel() > 2**32
    used = problem["slot_mapping"] if spec == "store_kv" else problem["block_table"]
    row = problem["key_cache"].stride(1 if spec == "store_kv" else 0)
    real = used[used != 2**31 - 1]
    assert int(real.max()) * row > 2**32, "the slots in use do not lie behind the 2^32nd element"
    assert rules.rule("key_cache").axes[0] == "block"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", [name for name in SPECS if name != "split_decode"])
def test_each_kernel_meets_an_offset_beyond_32_bits_by_its_program_alone(spec: str) -> None:
    """A row's number times its stride; the programs of split decode are those of paged decode."""
    furthest = 0
    for case in cases_of(spec):
        problem, rules = build(spec, case.name, 3)
        for name, tensor in problem.items():
            if isinstance(tensor, torch.Tensor) and "cache" not in name and tensor.numel():
                programs = rules.programs if rules.axis == 0 else None
                rows = rules.rows or programs or range(len(tensor))
                rows = [row for row in rows if row < len(tensor)]
                furthest = max(furthest, max(rows) * tensor.stride(0))
    assert furthest >= 2**32


# ---------------------------------------------------------------- nothing is always the same
ALWAYS = {
    "NUM_SPLITS of paged_decode": "split_decode has the others",
    "ROW_TILE of gemm": "its grid is made for it",
    "ROW_TILE of w8a8_gemm": "its grid is made for it",
    "ROW_TILE of w4a16_gemm": "its grid is made for it",
    "TILE of draw_tokens": "a tile's largest logit and mass are results",
}
"""Arguments that have one value in all cases of a spec, with the reason."""


def passed(spec: str) -> dict[str, set[Any]]:
    """What all cases together pass as each argument that is a number."""
    values: dict[str, set[Any]] = {}
    for case in cases_of(spec):
        problem, rules = build(spec, case.name, 3)
        for launch in SPECS[spec].plan(**problem):
            for name, value in (launch.args | launch.constexprs | dict(rules.constants)).items():
                if not isinstance(value, torch.Tensor):
                    values.setdefault(name, set()).add(value)
    return values


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", SPECS)
def test_every_argument_of_a_kernel_differs_in_two_cases(spec: str) -> None:
    """`pytest -s -k every_argument` lists them: what a kernel may ignore, it must be asked for."""
    for name, values in passed(spec).items():
        print(f"{spec}: {name}: {', '.join(map(str, sorted(values)[:8]))}")
        excused = name in ALWAYS or f"{name} of {spec}" in ALWAYS
        assert excused or len(values) > 1, f"{name} is always {values}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", SPECS)
def test_every_argument_of_a_branch_differs_in_two_cases(spec: str) -> None:
    """A kernel may ignore an argument where a constant, or a dtype, chooses another way, too."""
    values: dict[tuple[str, Any, str], set[Any]] = {}
    for case in cases_of(spec):
        for launch in SPECS[spec].plan(**build(spec, case.name, 3)[0]):
            flags = {k: v for k, v in launch.constexprs.items() if isinstance(v, bool)}
            flags |= {"dtype": case.dtype}
            if "GROUP" in launch.constexprs:
                flags["GROUP is 1"] = launch.constexprs["GROUP"] == 1
            for (flag, value), (name, passed) in product(flags.items(), launch.args.items()):
                if isinstance(passed, (int, float)):
                    values.setdefault((flag, value, name), set()).add(passed)
    few = {branch: found for branch, found in values.items() if len(found) == 1}
    assert not few, few


# ---------------------------------------------------------------- any two things meet
SLICES = ("x", "key", "value", "y", "logits", "bitmask", "target_probs", "draft_probs")
"""Tensors whose rows may be slices of a wider matrix; queries always are."""
NEVER = {
    ("axis 1: one program", "GROUP: several"): "heads that share a key are several",
    ("axis 1: one program", "NUM_SLICES: several"): "several slices have several programs",
    ("NO_DRAFT_PROBS: True", "draft_probs: a slice"): "there are none",
    ("NO_DRAFT_PROBS: True", "draft_probs: contiguous"): "there are none",
    ("GROUPS: several", "K: odd"): "an odd number has no equal parts",
    ("axis 0: one program", "context: none in one row"): "rows are inert to fill a batch",
    ("axis 2: one program", "context: none in one row"): "rows are inert to fill a batch",
} | {("axis 0: one program", f"{name}: a slice"): "one row lies anywhere" for name in SLICES}


def size_of(number: int) -> str:
    """Sizes that a kernel may treat alike."""
    return "odd" if number % 2 else "2^n" if number & (number - 1) == 0 else "even"


def ways(spec: str, case: Case) -> dict[str, str]:
    """What a kernel could have a way of its own for in a case."""
    problem, _ = build(spec, case.name, 3)
    launch = SPECS[spec].plan(**problem)[0]
    found = {"dtype": case.dtype}
    for axis, count in enumerate(launch.grid):
        found[f"axis {axis}"] = "one program" if count == 1 else "several"
    for name, value in launch.constexprs.items():
        if isinstance(value, bool):
            found[name] = str(value)
        elif name in ("GROUP", "GROUPS", "NUM_SLICES"):
            found[name] = "one" if value == 1 else "several"
        elif isinstance(value, int) and not name.endswith(("TILE", "WORDS", "PLACES")):
            found[name] = size_of(value)
    for name in ("window", "least"):
        found[name] = "none" if problem.get(name) is None else "some"
    if spec in PAGED:
        lengths = problem["seq_lens"].clamp(max=problem["window"] or NO_WINDOW)
        found["tiles"] = "several" if lengths.max() > launch.constexprs["KEY_TILE"] else "one"
        found["context"] = "none in one row" if lengths.min() == 0 else "some"
        usual = problem["scale"] == launch.constexprs["HEAD_DIM"] ** -0.5
        found["scale"] = "usual" if usual else "other"
    if spec == "rms_norm":
        found["eps"] = "large" if problem["eps"] > 0.01 else "usual"
    for name in SLICES:
        if problem.get(name) is not None:
            apart = problem[name].stride(0) != problem[name][0].numel()
            found[name] = "a slice" if apart else "contiguous"
    return {name: f"{name}: {way}" for name, way in found.items()}


def test_any_two_values_meet_in_few_choices() -> None:
    values = {
        "dtype": ("a", "b", "c"),
        "size": ("1", "2", "3", "4"),
        "far": ("", "far"),
        "eps": ("x",),
    }
    choices = covering(values)
    met = {pair for choice in choices for pair in combinations(choice.items(), 2)}
    every = [[(name, value) for value in values[name]] for name in values]
    assert met == {pair for two in combinations(every, 2) for pair in product(*two)}
    assert len(choices) == 3 * 4  # no fewer can do


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", SPECS)
def test_any_two_ways_of_a_kernel_meet_in_a_case(spec: str) -> None:
    """One that is wrong for a single request in half precision only is wrong in some case."""
    found = [ways(spec, case) for case in cases_of(spec)]
    met = {pair for way in found for pair in product(way.values(), repeat=2)}
    values = [{way[name] for way in found if name in way} for name in found[0]]
    pairs = {pair for two in combinations(values, 2) for pair in product(*two)}
    assert sorted(pairs - met - set(NEVER)) == []


BOUNDED = {
    "rope": ("cos", "sin"),  # at most 1
    "rms_norm": ("weight",),
    "qk_norm_rope_store": ("query_weight", "key_weight", "cos", "sin"),
    "reduce_splits": ("lse",),  # a logarithm
}
"""What holds no numbers beyond float16."""
CLEAN = {
    "per_token_quant_int8": ("x",),  # NaN as a whole number is anything
    "rejection_random_sample": ("target_probs", "draft_probs", "uniform_probs"),
    "draw_tokens": ("temperature",),  # a request's is checked when it arrives
    "reduce_splits": ("lse",),  # of a mass, or of a score, that is NaN a kernel may say: no mass
    "paged_decode_int8": ("query",),
    **{spec: ("query", "key_cache") for spec in (*ATTENTION, "tiled_prefill")},
}
"""What holds no NaN that a kernel may read."""


def numbers_read(spec: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The floating-point numbers that a kernel may read in its cases, by the tensor's name."""
    for case in cases_of(spec):
        problem, rules = build(spec, case.name, 3)
        for name, value in problem.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                readable = rules.rule(name).readable
                is_read = name not in SPECS[spec].outputs and value.numel() < 2**24
                if is_read and (readable is None or readable.any()):
                    yield name, value if readable is None else value[readable.expand(value.shape)]


@pytest.mark.parametrize("spec", sorted(set(SPECS) - {"store_kv"}))
def test_bfloat16_holds_numbers_that_float16_does_not(spec: str) -> None:
    """Float16 in between is more exact, as long as all numbers are of the size of 1."""
    lost: dict[str, bool] = {name: True for name in BOUNDED.get(spec, ())}
    for name, value in numbers_read(spec):
        if value.dtype == torch.bfloat16:
            half = value.half()
            gone = value.isfinite() & (half.isinf() | ((half == 0) & (value != 0)))
            lost[name] = lost.get(name, False) or bool(gone.any())
    assert all(lost.values()), lost


@pytest.mark.parametrize("spec", SPECS)
def test_each_input_has_a_nan_that_must_not_vanish(spec: str) -> None:
    spoilt: dict[str, bool] = {name: True for name in CLEAN.get(spec, ())}
    for name, value in numbers_read(spec):
        spoilt[name] = spoilt.get(name, False) or not bool(value.isfinite().all())
    assert all(spoilt.values()), spoilt


@pytest.mark.parametrize("spec", PAGED)
def test_attention_goes_beyond_what_a_tile_a_number_or_a_constant_holds(spec: str) -> None:
    found = problems(spec)
    assert any(p["key_cache"].shape[1] > 64 for p in found), "a block longer than a tile"
    assert any(p["query"].shape[1] // p["key_cache"].shape[2] > 64 for p in found), "a large group"
    assert any((p["block_table"] == 0).any() for p in found), "block 0 is in use"
    lengths = [int(p["seq_lens"].max()) for p in found]
    assert max(lengths) > 2**25, "a position that float32 does not tell from the next"
    assert any(n > 2**17 and p["window"] is None for n, p in zip(lengths, found, strict=True))
    assert "abyss" in {case.name for case in cases_of(spec)}


@pytest.mark.parametrize(
    ("spec", "output"),
    [(name, output) for name, spec in SPECS.items() if name != "split_decode"
     for output in spec.outputs if output not in ("scale", "hidden")],
)  # fmt: skip
def test_results_are_more_than_32_bits_count(spec: str, output: str) -> None:
    """Where a result is written takes 64 bits by itself, though what is read lies near."""
    if spec in ("rejection_random_sample", "draw_tokens", "gemv") or "_decode" in spec:
        return  # a few results a request, or rows of few tokens: no step has so many
    assert any(
        problem[output].is_contiguous() and problem[output].numel() > 2**32
        for problem in problems(spec)
    )


@pytest.mark.parametrize(
    ("spec", "size", "more_than"),
    [("store_kv", "ROW", 4096), ("rms_norm", "SIZE", 8192), ("rope", "NUM_HEADS", 128),
     ("rope", "HEAD_DIM", 256), ("silu_mul", "SIZE", 65536), ("reduce_splits", "NUM_SPLITS", 128),
     ("apply_token_bitmask", "vocab_size", 2**18), ("rejection_random_sample", "max_drafts", 128),
     ("per_token_quant_int8", "SIZE", 8192), ("w8a8_gemm", "N", 2**16), ("w8a8_gemm", "K", 2**16),
     ("gemm", "N", 2**16), ("gemm", "K", 2**16),
     ("w4a16_gemm", "N", 2**16), ("w4a16_gemm", "K", 2**16), ("w4a16_gemm", "GROUPS", 2048),
     ("lora_shrink", "RANK", 256), ("lora_shrink", "IN_SIZE", 2**16), ("lora_expand", "RANK", 256),
     ("lora_expand", "OUT_SIZE", 2**16), ("paged_decode", "BLOCK_SIZE", 512),
     ("paged_prefill", "BLOCK_SIZE", 512), ("paged_decode_int8", "BLOCK_SIZE", 512)],
)  # fmt: skip
def test_a_size_goes_beyond_what_a_kernel_may_take_for_the_largest(
    spec: str, size: str, more_than: int
) -> None:
    assert max(passed(spec)[size]) > more_than


STRIDED = {
    "table": "block_table",
    "static_table": "static_block_table",
    "draft": "draft_probs",
    "target": "target_probs",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", SPECS)
def test_rows_are_apart_in_some_case_of_each_dtype(spec: str) -> None:
    """A kernel may take rows for contiguous in one of its ways only."""
    apart: dict[tuple[str, str], set[bool]] = {}
    for case in cases_of(spec):
        problem, _ = build(spec, case.name, 3)
        for launch in SPECS[spec].plan(**problem):
            for name in (name for name in launch.args if name.endswith("_stride")):
                stem = name.removesuffix("_stride")
                tensor = problem[STRIDED.get(stem, stem)]
                if tensor is not None and len(tensor) > 1:
                    is_apart = launch.args[name] != tensor[0].numel()
                    apart.setdefault((name, case.dtype), set()).add(is_apart)
    assert all(True in found for found in apart.values()), apart


@pytest.mark.parametrize("spec", sorted(set(SPECS) - {"split_decode"}))
def test_each_axis_of_a_grid_has_one_program_where_another_has_several(spec: str) -> None:
    """Where an axis is 0 in all programs, its number may come from anywhere. (One split is none;
    a single one is a case of `paged_decode`.)"""
    launches = [launch for p in problems(spec) for launch in SPECS[spec].plan(**p)]
    for kernel in {launch.kernel for launch in launches}:
        grids = [launch.grid for launch in launches if launch.kernel == kernel]
        for axis in range(len(grids[0]) if len(grids[0]) > 1 else 0):
            assert any(grid[axis] == 1 and max(grid) > 1 for grid in grids), (kernel, axis)


@pytest.mark.parametrize("spec", ["store_kv", "store_kv_int8"])
def test_slots_are_more_than_float32_counts(spec: str) -> None:
    slots = [p["slot_mapping"] for p in problems(spec) if len(p["slot_mapping"])]
    assert max(int(found.max()) for found in slots) > 2**25


@pytest.mark.parametrize(
    ("spec", "case", "tensor"),
    [("apply_token_bitmask", "many-rows", "indices"),
     ("lora_expand", "late-slices", "slice_starts"),
     ("rejection_random_sample", "large-vocab", "draft_token_ids")],
)  # fmt: skip
def test_numbers_of_rows_tokens_and_columns_are_more_than_float32_counts(
    spec: str, case: str, tensor: str
) -> None:
    numbers = build(spec, case, 1)[0][tensor]
    assert ((numbers > 2**24) & (numbers % 2 == 1)).any()


def test_masked_tokens_are_more_than_float32_counts() -> None:
    _, rules = build("apply_token_bitmask", "large-vocab", 1)
    required = rules.rule("logits").required
    assert required is not None
    assert required[:, 2**24 + 1 :: 2].any()


def test_a_weight_of_a_norm_is_zero_in_each_dtype() -> None:
    """A kernel that takes 0 for "no weight" multiplies by 1."""
    found = {case.dtype for case in cases_of("rms_norm")
             if (build("rms_norm", case.name, 1)[0]["weight"] == 0).any()}  # fmt: skip
    assert found == {"float32", "float16", "bfloat16"}


@pytest.mark.parametrize("spec", PAGED)
def test_blocks_are_more_than_float32_counts(spec: str) -> None:
    table = build(spec, "many-blocks", 1)[0]["block_table"]
    used = table[table != IMPOSSIBLE_BLOCK]
    assert ((used > 2**24) & (used % 2 == 1)).any()


@pytest.mark.parametrize("spec", PAGED)
def test_neighbours_have_equal_lengths_and_other_blocks(spec: str) -> None:
    problem = build(spec, "twins", 1)[0]
    (length, same), tables = problem["seq_lens"][:2].tolist(), problem["block_table"]
    assert length == same > 1 and tables[0, -1] != tables[1, -1]


def test_one_new_token_has_several_heads_several_keys_and_a_window() -> None:
    """A prefill of one token may have a way of its own."""
    problem = build("paged_prefill", "twins", 1)[0]
    assert problem["query_start_loc"].diff().tolist()[:2] == [1, 1]
    assert problem["query"].shape[1] > problem["key_cache"].shape[2] > 1
    assert 1 < problem["window"] < problem["seq_lens"][0]


@pytest.mark.parametrize("spec", sorted(set(PAGED) - {"split_decode"}))
def test_a_lone_token_is_judged_by_what_one_product_rounds(spec: str) -> None:
    lone = [case for case in cases_of(spec) if case.lone]
    assert len(lone) > 1 and {case.dtype for case in lone} == {"float32"}
    for case in lone:
        judge = verdict.Judge(spec, case, 1)
        assert judge._bound("output") == tolerances.LONE
        window, length = judge.problem["window"], int(judge.problem["seq_lens"].max())
        assert window == 1 or length == 1


def test_quantised_numbers_reach_both_ends_of_their_range() -> None:
    problem = build("w8a8_gemm", "tile", 1)[0]
    for name in ("x", "weight"):
        assert (int(problem[name].min()), int(problem[name].max())) == (-128, 127), name
    problem = build("w4a16_gemm", "groups", 1)[0]
    nibbles = problem["words"].long()[..., None] >> (4 * torch.arange(8)) & 15
    for numbers in (nibbles, problem["zero"]):
        assert (int(numbers.min()), int(numbers.max())) == (0, 15)


@pytest.mark.parametrize("spec", PAGED)
def test_rows_of_a_tile_need_maxima_of_their_own(spec: str) -> None:
    """The largest scores of heads that share a key, or of tokens, lie further apart than float32's
    exp survives."""
    problem = build(spec, "apart", 3)[0]
    tokens = 3 if spec == "paged_prefill" else 1
    slots = oracles.visible_keys(problem, 0, int(problem["seq_lens"][0]) - 1)
    keys = oracles.read(problem["key_cache"], slots)[:, 0]
    queries = problem["query"][:tokens, :3].double()
    largest = (queries @ keys.T).amax(-1) * problem["scale"]
    for line in (*largest, *largest.T):
        assert len(line) == 1 or float(line.max() - line.min()) > 200


@pytest.mark.parametrize("spec", PAGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_scale_is_not_only_what_models_have(spec: str, dtype: torch.dtype) -> None:
    found = [p for p in problems(spec) if p["query"].dtype == dtype]
    assert any(abs(p["scale"] * p["query"].shape[2] ** 0.5 - 1) > 0.5 for p in found)


@pytest.mark.parametrize("spec", PAGED)
def test_logits_are_far_from_zero_in_half_precision_too(spec: str) -> None:
    """A finite number, be it 0, is no maximum to begin with; in halves its weights vanish early."""
    halves = {case.name for case in cases_of(spec) if case.dtype == "float16"}
    assert "low-half" in halves


@pytest.mark.parametrize("spec", ATTENTION)
def test_attention_meets_shapes_beyond_what_one_has_in_mind(spec: str) -> None:
    caches = [problem["key_cache"].shape for problem in problems(spec)]
    lengths = [problem["seq_lens"] for problem in problems(spec)]
    assert max(heads for _, _, heads, _ in caches) > 3
    assert any(size & (size - 1) for _, size, _, _ in caches), "a block size that is no power of 2"
    assert {80, 96} <= {dim for *_, dim in caches}
    assert max(int(lens.max()) for lens in lengths) > 1000
    assert min(map(len, lengths)) == 1
    assert spec == "split_decode" or max(map(len, lengths)) > 1024
    assert {"low-logits", "high-logits"} <= {case.name for case in cases_of(spec)}


@pytest.mark.parametrize("spec", sorted(set(SPECS) - set(ATTENTION)))
def test_every_other_kernel_meets_hundreds_of_rows(spec: str) -> None:
    rows = {"store_kv": "key", "reduce_splits": "lse", "silu_mul": "output", "lora_expand": "y",
            "gemv": "weight", "tiled_prefill": "query",
            "apply_token_bitmask": "bitmask",
            "rejection_random_sample": "output", "draw_tokens": "logits",
            "qk_norm_rope_store": "qkv", "decode_inputs": "seq_lens",
            "gdn_decode": "query", "mla_decode": "query",
            "store_kv_int8": "key", "paged_decode_int8": "query"}  # fmt: skip
    name = rows.get(spec, "x")
    counts = [len(problem[name]) for problem in problems(spec)]
    assert min(counts) == 1 and any(count > 512 for count in counts)


@pytest.mark.parametrize("spec", sorted(tolerances.ROUNDED_ONCE))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_counted_in_more_than_one_case_of_each_dtype(spec: str, dtype: str) -> None:
    counted = [
        case.name
        for case in cases_of(spec)
        if case.dtype == dtype
        and any(
            want.numel() >= tolerances.COUNTED
            for want in verdict.Judge(spec, case, 1).expected.values()
        )
    ]
    assert len(counted) > 1


def test_attention_is_counted_where_weights_average_out() -> None:
    for spec in ATTENTION:
        assert any(case.once for case in cases_of(spec))


def test_the_mass_of_nothing_is_minus_infinity_and_nothing_else() -> None:
    want = torch.tensor([[-torch.inf, 2.0], [1.0, 3.0]]).double()
    bound = tolerances.bound("split_decode", "float32", "lse")
    assert not verdict.differ(want.float(), want, bound).why
    for wrong in (0.0, -1e30, torch.inf, torch.nan):
        got = want.float()
        got[0, 0] = wrong
        assert verdict.differ(got, want, bound).why
    got = want.float()
    got[1, 1] = -torch.inf
    assert verdict.differ(got, want, bound).why


def test_a_result_that_is_rounded_twice_is_told_from_one_that_is_not() -> None:
    want = torch.randn(4000, generator=torch.Generator().manual_seed(4)).double()
    once, twice = want.float().half(), (want.float().half() * 1.0009).half()
    assert verdict.misrounded(once, [want]) < 0.001
    assert verdict.misrounded(twice, [want * 1.0009]) > 0.2


@pytest.mark.parametrize("spec", ["silu_mul", "rms_norm", "paged_decode", "paged_prefill"])
def test_a_loud_number_is_at_no_fixed_place(spec: str) -> None:
    """A kernel that looks at some numbers and then trusts the rest must be found out."""
    places = set()
    for seed in range(8):
        problem = build(spec, "loud", seed)[0]
        tensor = problem[{"silu_mul": "gate_up", "rms_norm": "x"}.get(spec, "key_cache")]
        row = tensor[0] if tensor.dim() == 2 else tensor.nan_to_num(0.0)[:, :, 0].norm(dim=-1)
        row = row[row != 0].abs()
        places.add(int(row.argmax()))
        assert row.max() > 10 * row.median()
    assert len(places) > 2


@pytest.mark.parametrize("spec", ATTENTION)
def test_what_may_not_be_read_is_nan_or_impossible(spec: str) -> None:
    for case in cases_of(spec):
        problem, rules = build(spec, case.name, 4)
        if problem["key_cache"].numel() < 2**24:
            readable = rules.rule("key_cache").readable.expand(problem["key_cache"].shape)
            assert torch.equal(problem["key_cache"].isnan(), ~readable), case.name
        table = problem["block_table"]
        assert (table[~rules.rule("block_table").readable] == 2**31 - 1).all()


def test_prefill_agrees_with_torch() -> None:
    """Contiguous blocks of one request: exactly what torch computes over the plain keys."""
    torch.manual_seed(0)
    key, value, query = (torch.randn(12, 2, 8, dtype=torch.float64) for _ in range(3))
    problem = dict(
        query=query, key_cache=key.view(3, 4, 2, 8), value_cache=value.view(3, 4, 2, 8),
        block_table=torch.tensor([[0, 1, 2]]), query_start_loc=torch.tensor([0, 12]),
        seq_lens=torch.tensor([12]), scale=8**-0.5, window=None,
    )  # fmt: skip
    theirs = scaled_dot_product_attention(
        *(t.transpose(0, 1) for t in (query, key, value)), is_causal=True
    )
    ours = oracles.expected("paged_prefill", problem)["output"]
    assert torch.allclose(ours, theirs.transpose(0, 1), atol=1e-12)


def test_decode_is_the_last_row_of_a_prefill() -> None:
    problem = dict(build("paged_decode", "ragged", 5)[0])
    rows = oracles.expected("paged_decode", problem)["output"]
    starts = torch.arange(len(rows) + 1)
    again = oracles.expected("paged_prefill", problem | {"query_start_loc": starts})["output"]
    assert torch.equal(rows, again)


def test_combining_parts_gives_the_whole() -> None:
    torch.manual_seed(1)
    scores, values = torch.randn(3, 10).double(), torch.randn(3, 10, 4).double()
    whole = torch.einsum("hn,hnd->hd", scores.softmax(-1), values)
    parts, masses = [], []
    for cut in (slice(0, 3), slice(3, 10)):
        parts.append(torch.einsum("hn,hnd->hd", scores[:, cut].softmax(-1), values[:, cut]))
        masses.append(scores[:, cut].logsumexp(-1))
    combined = oracles.combine(torch.stack(parts, 1), torch.stack(masses, 1))
    assert torch.allclose(combined, whole, atol=1e-12)


def test_the_comparison_finds_one_wrong_row_a_nan_and_a_wrong_shape() -> None:
    torch.manual_seed(2)
    want = torch.randn(500, 64).double()
    bound = tolerances.bound("rope", "float32")
    assert not verdict.differ(want.float(), want, bound).why
    off = want.float()
    off[77] *= 1 + 8 * bound.limit
    found = verdict.differ(off, want, bound)
    assert found.error < bound.limit and found.element[0] == 77
    off[77, 5] = float("nan")
    assert verdict.differ(off, want, bound).element == (77, 5)
    assert "shape" in verdict.differ(off[1:], want, bound).why


def test_a_copy_must_keep_every_bit() -> None:
    want = torch.tensor([0.0, float("nan"), 1e-40])
    assert not verdict.differ(want.clone(), want, tolerances.EXACT).why
    assert verdict.differ(torch.tensor([-0.0, float("nan"), 1e-40]), want, tolerances.EXACT).why
    assert verdict.differ(torch.tensor([0.0, float("nan"), 0.0]), want, tolerances.EXACT).why


def test_a_wrong_token_is_shown_in_full_and_a_joined_split_by_its_axes() -> None:
    judge = verdict.Judge("rejection_random_sample", find_case("rejection_random_sample", "one"), 1)
    want = torch.tensor([[1_040_660_123, -1]])
    found = verdict.differ(torch.tensor([[18, -1]]), want, tolerances.EXACT)
    said = "output[request 0, place 0] differs: it is 18, and must be 1040660123"
    assert judge._finding("output", found).message == said
    judge = verdict.Judge("split_decode", find_case("split_decode", "one"), 1)
    for name, place in (("joined lse", "[request 0, head 1]"), ("output", "[request 0, head 1, ")):
        wrong = judge.expected[name].clone()
        wrong[0, 1] += 1
        bound = tolerances.bound("split_decode", "float32")
        found = verdict.differ(wrong, judge.expected[name], bound)
        assert judge._finding(name, found).message.startswith(name + place)


@pytest.mark.parametrize(
    "bound",
    [
        tolerances.FLOAT32,
        tolerances.SPLIT_FLOAT32,
        tolerances.FLOAT16,
        tolerances.BFLOAT16,
        tolerances.INT8,
        tolerances.INT8_SCALE,
        tolerances.LONE,
    ],
)
def test_a_bound_keeps_its_distance_from_both_sides(bound: tolerances.Bound) -> None:
    assert 1.9 * bound.honest <= bound.limit <= bound.bug / 1.9


CANCELLING = [(spec, case.name) for spec in SPECS for case in cases_of(spec) if case.cancels]


@pytest.mark.parametrize(("spec", "case"), CANCELLING)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_said_to_cancel_does(spec: str, case: str, seed: int) -> None:
    assert 3 < oracles.condition(spec, build(spec, case, seed)[0]) < 12


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("spec", ["reduce_splits", "lora_expand"])
def test_no_number_that_is_judged_alone_is_a_sum_that_cancels(spec: str, seed: int) -> None:
    """A row may be some times as far off as all of an output is. If it is one number, and that is
    near zero because its terms cancel, an honest kernel is refused under one seed in a hundred.
    """
    for case in cases_of(spec):
        for wanted in verdict.Judge(spec, case, seed).expected.values():
            if wanted.dim() == 1 or wanted.shape[-1] == 1:
                typical = wanted.double().square().mean().sqrt()
                assert float(wanted.abs().min()) > 0.5 * float(typical), case.name


def test_every_bug_can_be_planted() -> None:
    for bug in BUGS:
        assert bug.apply(reference_source(SPECS[bug.spec])) and cases.find_case(bug.spec, bug.case)
    assert {bug.spec for bug in BUGS} == set(SPECS)


def test_a_wrong_name_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match="paged_decode"):
        cases_of("paged_encode")
    with pytest.raises(ValueError, match="window-odd"):
        build("paged_decode", "windows", 1)


def test_a_case_is_no_address_which_would_draw_other_numbers_in_each_run() -> None:
    with pytest.raises(ValueError, match="give a function by its name"):
        Draw(4, "public", f"[70]{ {'change': print_nothing} }")


def print_nothing() -> None: ...


@pytest.mark.parametrize("spec", ["lora_shrink", "lora_expand"])
def test_the_tiles_of_a_high_rank_fit_into_a_block(spec: str) -> None:
    """Two tiles of weights in float32 leave a fifth of sm_80's shared memory to the kernel."""
    seen = set()
    for case in cases_of(spec):
        for launch in SPECS[spec].plan(**build(spec, case.name, 3)[0]):
            rank = launch.constexprs["RANK_TILE"]
            columns = launch.constexprs["IN_TILE" if spec == "lora_shrink" else "OUT_TILE"]
            assert 2 * 4 * rank * columns <= SHARED_LIMIT[80] * 0.8
            assert rank * launch.constexprs["ROW_TILE"] <= 2**13
            seen.add(rank)
    assert max(seen) >= 512
