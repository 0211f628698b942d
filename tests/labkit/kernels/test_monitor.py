"""What the monitor sees: each of these small kernels has one fault, which one check finds."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
GOOD = """import triton
import triton.language as tl


@triton.jit
def kernel(
    x_ptr, index_ptr, y_ptr, total_ptr, x_stride, scale, COLS: tl.constexpr, TILE: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, TILE)
    inside = column < COLS
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    y = x * scale
    tl.store(y_ptr + row * COLS + column, y, mask=inside)
"""
NO_OTHER = "x = tl.load(x_ptr + row * x_stride + column, mask=inside)"
LOAD, SCALE, STORE = 12, 13, 14  # lines of GOOD
WANT = [[(6 * row + column + 1) / 4 for column in range(6)] for row in range(3)]

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs a kernel in one child that serves all tests: GOOD with some lines replaced, and helpers
    `before` it."""
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("toys.py"))],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None

    def ask(
        lines: dict[int, str] | None = None, before: str = "", **options: Any
    ) -> dict[str, Any]:
        source = GOOD.splitlines()
        for number, text in (lines or {}).items():
            source[number - 1] = f"    {text}"
        source[3:3] = before.splitlines()
        request = {
            "source": "\n".join(source) + "\n", "grid": [3], "order": "natural", "poison": "nan",
            "dtype": "float32", "launches": 1,
        }  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(request | options) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        assert line, "the child has died"
        seen: dict[str, Any] = json.loads(line)
        assert "lint" not in seen, seen
        return seen

    yield ask
    child.stdin.close()
    child.wait(300)


def only(seen: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one finding, which is of this kind."""
    assert [finding["kind"] for finding in seen["findings"]] == [kind], seen["findings"]
    finding: dict[str, Any] = seen["findings"][0]
    assert finding["kernel"] == "kernel"
    return finding


def place(finding: dict[str, Any]) -> tuple[Any, ...]:
    """Line, program, tensor, element and count of a finding."""
    keys = ("line", "program", "tensor", "element", "count")
    return tuple(finding[key] for key in keys)


# ---------------------------------------------------------------- nothing to find
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["natural", "shuffled"])
def test_a_right_kernel_is_clean(run: Run, dtype: str, order: str) -> None:
    seen = run(dtype=dtype, order=order)
    assert seen["findings"] == []
    assert seen["y"][:3] == WANT
    assert all(map(math.isnan, seen["y"][3])), "row 3 stays"


def test_an_undefined_lane_that_is_not_used_is_fine(run: Run) -> None:
    assert run({LOAD: NO_OTHER})["findings"] == []
    relu = run({LOAD: NO_OTHER, SCALE: "y = tl.maximum(x * scale, 0.0)"})
    assert relu["findings"] == [] and relu["y"][:3] == WANT


def test_an_output_may_be_read_by_its_writer(run: Run) -> None:
    back = "z = tl.load(y_ptr + row * COLS + column, mask=inside, other=0.0)"
    again = "tl.store(y_ptr + row * COLS + column, z, mask=inside)"
    store = "tl.store(y_ptr + row * COLS + column, y, mask=inside)"
    seen = run({STORE: f"{store}; {back}; {again}"})
    assert seen["findings"] == [] and seen["y"][:3] == WANT


# ---------------------------------------------------------------- where a kernel may reach
def test_a_load_behind_the_end(run: Run) -> None:
    # Row 1 reads index[3], which has no owner, and row 2 index[4].
    seen = run({SCALE: "y = x * scale + tl.load(index_ptr + row + 2) * 0"})
    kinds = [finding["kind"] for finding in seen["findings"]]
    assert kinds == ["stale_read", "oob"]
    oob = seen["findings"][1]
    assert place(oob) == (SCALE, [2, 0, 0], "index", None, 1)
    assert "reads 1 element behind the end of index (4,)" in oob["message"]


def test_a_load_before_the_start(run: Run) -> None:
    seen = run({SCALE: "y = x * scale + tl.load(index_ptr + row - 2) * 0"})
    finding = only(seen, "oob")
    assert place(finding) == (SCALE, [0, 0, 0], "index", None, 2)
    assert "reads 2 elements before the start of index" in finding["message"]


def test_a_load_between_the_rows_of_a_slice(run: Run) -> None:
    seen = run({LOAD: "x = tl.load(x_ptr + row * x_stride + column, mask=column < 7, other=0.0)"})
    finding = only(seen, "oob")
    assert place(finding) == (LOAD, [0, 0, 0], "x", None, 3)
    assert "between the rows of x (4, 6), whose strides are (8, 1): element 6" in finding["message"]


def test_a_store_out_of_bounds_is_located_and_harmless(run: Run) -> None:
    seen = run({STORE: "tl.store(y_ptr + (row * 3 - 1) * COLS + column, y, mask=inside)"})
    first = seen["findings"][0]
    assert (first["kind"], *place(first)) == ("oob", STORE, [0, 0, 0], "y", None, 12)
    assert "writes 6 elements before the start of y (4, 6)" in first["message"]
    assert seen["inputs_kept"]


def test_a_pointer_to_nowhere(run: Run) -> None:
    seen = run({SCALE: "y = x * scale + tl.load(x_ptr + row.to(tl.int64) * (1 << 58) - 8)"})
    assert seen["findings"][0]["kind"] == "oob"


def test_elements_without_an_owner_are_not_readable(run: Run) -> None:
    seen = run({LOAD: "x = tl.load(x_ptr + (row + 1) * x_stride + column, mask=inside, other=0.0)"})
    finding = only(seen, "stale_read")
    assert place(finding) == (LOAD, [2, 0, 0], "x", [3, 0], 6)
    assert finding["message"] == ("program (2, 0, 0) reads x[row 3, column 0]: row 3 has no owner")


def test_an_input_is_not_writable(run: Run) -> None:
    seen = run(
        {SCALE: "y = x * scale\n    tl.store(x_ptr + row * x_stride + column, y, mask=inside)"}
    )
    finding = only(seen, "input_changed")
    assert place(finding) == (SCALE + 1, [0, 0, 0], "x", [0, 0], 18)
    assert "x[row 0, column 0], which must stay as it is" in finding["message"]
    assert seen["inputs_kept"] and seen["y"][:3] == WANT


def test_rows_of_others_are_not_writable(run: Run) -> None:
    seen = run({STORE: STORE_ALL})
    finding = only(seen, "input_changed")
    assert place(finding) == (STORE, [2, 0, 0], "y", [3, 0], 6)
    assert all(map(math.isnan, seen["y"][3]))


STORE_ALL = "tl.store(y_ptr + row * COLS + column, y, mask=inside)"
STORE_ALL += "; tl.store(y_ptr + 3 * COLS + column, y, mask=inside & (row == 2))"


# ---------------------------------------------------------------- what a value may depend on
def test_an_output_is_not_read_before_it_is_written(run: Run) -> None:
    line = "y = x * scale + 0 * tl.load(y_ptr + row * COLS + column, mask=inside, other=0.0)"
    finding = only(run({SCALE: line}), "uninitialised")
    assert place(finding) == (SCALE, [0, 0, 0], "y", [0, 0], 18)
    assert "no kernel has written it before" in finding["message"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("reduction", ["tl.sum(x, axis=0)", "tl.max(x, axis=0)"])
def test_an_undefined_lane_must_not_reach_a_result(run: Run, reduction: str, dtype: str) -> None:
    seen = run({LOAD: NO_OTHER, SCALE: f"y = x * scale + 0 * {reduction}"}, dtype=dtype)
    finding = only(seen, "undefined_lane")
    assert place(finding) == (STORE, [0, 0, 0], "y", [0, 0], 18)
    assert f"the lanes that line {LOAD} masks off without `other`" in finding["message"]


def test_an_undefined_index_is_out_of_bounds(run: Run) -> None:
    index = "i = tl.load(index_ptr + column, mask=column < 3)"
    seen = run({LOAD: f"{index}\n    x = tl.load(x_ptr + i * x_stride)"}, grid=[1])
    finding = seen["findings"][0]
    assert (finding["kind"], finding["line"], finding["tensor"]) == ("oob", LOAD + 1, "x")
    assert f"Line {LOAD} masks lanes off without `other`" in finding["message"]


def test_another_poison_shows_a_dependence_that_nan_hides(run: Run) -> None:
    lines = {LOAD: NO_OTHER, SCALE: "y = x * scale + tl.sum((x > 3.5).to(tl.float32), axis=0)"}
    first, second = run(lines), run(lines, poison="1000")
    assert first["findings"] == second["findings"] == []
    assert first["y"][:3] != second["y"][:3]
    integers = {SCALE: "y = x * scale + tl.sum(tl.load(index_ptr + column, mask=column < 3)) * 0"}
    assert run(integers, poison="-1e30")["y"][:3] == WANT


def test_a_later_launch_may_read_what_other_programs_wrote(run: Run) -> None:
    other_row = "tl.load(y_ptr + (row + 1) % 3 * COLS + column, mask=inside, other=0.0)"
    kinds = {f["kind"] for f in run({SCALE: f"y = x * scale; z = {other_row}"})["findings"]}
    assert kinds == {"uninitialised", "race"}, "in the first launch it may not"
    # Half a row each: launch 1 writes the left half, launch 2 reads it and writes the right one.
    second = "(scale > 2.5)"
    left, right = "(column < 3) & (scale < 2.5)", f"inside & (column >= 3) & {second}"
    other_row = other_row.replace("inside", f"(column < 3) & {second}")
    lines = {
        SCALE: f"y = x * 2.0 + {other_row} * 0",
        STORE: f"tl.store(y_ptr + row * COLS + column, y, mask=({left}) | ({right}))",
    }
    seen = run(lines, launches=2)
    assert seen["findings"] == [] and seen["y"][:3] == WANT


def test_an_integer_that_wraps_around(run: Run) -> None:
    line = "y = x * scale + (tl.load(index_ptr + row) * 2000000000) * 0"
    finding = only(run({SCALE: line}), "overflow")
    assert place(finding) == (SCALE, [0, 0, 0], None, None, 1)
    assert "2 x 2,000,000,000, which does not fit into 32 bits" in finding["message"]
    assert "tl.int64" in finding["message"]
    wide = "y = x * scale + (tl.load(index_ptr + row).to(tl.int64) * 2000000000) * 0"
    assert run({SCALE: wide})["findings"] == []


# ---------------------------------------------------------------- programs together
def test_every_element_must_be_written(run: Run) -> None:
    finding = only(
        run({STORE: "tl.store(y_ptr + row * COLS + column, y, mask=column < 5)"}), "coverage"
    )
    assert place(finding) == (None, None, "y", [0, 5], 3)
    assert finding["message"] == (
        "y[row 0, column 5] is never written: 3 of the 18 elements that must be written are not"
    )
    finding = only(run(grid=[2]), "coverage")
    assert (finding["element"], finding["count"]) == ([2, 0], 6)


def test_two_programs_must_not_write_one_element(run: Run) -> None:
    seen = run({STORE: "tl.store(y_ptr + (row % 2) * COLS + column, y, mask=inside)"})
    race, coverage = seen["findings"]
    assert (race["kind"], coverage["kind"]) == ("race", "coverage")
    assert place(race) == (STORE, [2, 0, 0], "y", [0, 0], 6)
    assert "writes y[row 0, column 0], which program (0, 0, 0) writes" in race["message"]
    assert "at the same time" in race["message"]


def test_a_lost_update_is_a_race_and_an_atomic_is_not(run: Run) -> None:
    racy = "y = x * scale\n    tl.store(total_ptr, tl.load(total_ptr) + tl.sum(x, axis=0))"
    finding = only(run({SCALE: racy}), "race")
    assert place(finding) == (SCALE + 1, [1, 0, 0], "total", [0], 4)
    atomic = "y = x * scale\n    tl.atomic_add(total_ptr, tl.sum(x, axis=0))"
    seen = run({SCALE: atomic})
    assert seen["findings"] == []
    assert seen["total"] == [sum(map(sum, WANT)) / 2, 0.0]
    mixed = atomic + "\n    tl.debug_barrier()\n    z = tl.load(total_ptr)"
    finding = only(run({SCALE: mixed}), "race")
    assert "writes total[0], which program (0, 0, 0) reads" in finding["message"]


def test_an_atomic_reads_what_it_changes(run: Run) -> None:
    """The largest of what an output holds at first, and of the result, is the result by luck."""
    seen = run({STORE: "tl.atomic_max(y_ptr + row * COLS + column, y, mask=inside)"})
    finding = only(seen, "uninitialised")
    assert place(finding) == (STORE, [0, 0, 0], "y", [0, 0], 18)
    assert "reads, with an atomic, y[row 0, column 0]: no kernel has" in finding["message"]


def test_a_write_after_anothers_read_is_a_race_too(run: Run) -> None:
    lines = {SCALE: "y = x * scale\n    z = tl.load(total_ptr + row % 2)\n"
                    "    tl.store(total_ptr + 1, z, mask=row == 2)"}  # fmt: skip
    finding = only(run(lines), "race")
    assert place(finding) == (SCALE + 2, [2, 0, 0], "total", [1], 1)
    assert "writes total[1], which program (1, 0, 0) reads" in finding["message"]


def test_launches_follow_each_other(run: Run) -> None:
    assert run(launches=2)["findings"] == []
    total = "y = x * scale\n    tl.store(total_ptr, tl.load(total_ptr) + 1.0)"
    seen = run({SCALE: total}, launches=2, grid=[1])
    assert [finding["kind"] for finding in seen["findings"]] == ["coverage"]
    assert seen["total"] == [2.0, 0.0]


def test_one_store_must_not_write_two_values_to_one_element(run: Run) -> None:
    seen = run({SCALE: "y = x * scale\n    tl.store(total_ptr + column % 2, x)"}, grid=[1])
    kinds = [finding["kind"] for finding in seen["findings"]]
    assert kinds == ["duplicate_store", "coverage"]
    duplicate = seen["findings"][0]
    assert place(duplicate) == (SCALE + 1, [0, 0, 0], "total", [0], 6)
    same = run({SCALE: "y = x * scale\n    tl.store(total_ptr + column % 2, x * 0)"}, grid=[1])
    assert [finding["kind"] for finding in same["findings"]] == ["coverage"]


def test_an_error_names_the_line(run: Run) -> None:
    seen = run({SCALE: "y = x * tl.arange(0, 4)"})
    finding = only(seen, "crash")
    assert (finding["line"], finding["program"]) == (SCALE, [0, 0, 0])


def test_a_loop_that_goes_on_is_stopped_at_its_line(run: Run) -> None:
    seen = run({SCALE: "y = x * scale\n    for _ in range(0, 2000000000):\n"
                       "        tl.load(x_ptr + column, mask=inside)"})  # fmt: skip
    finding = only(seen, "timeout")
    assert (finding["line"], finding["program"]) == (SCALE + 2, [0, 0, 0])
    assert "50,000 times" in finding["message"]


# ---------------------------------------------------------------- counts
def test_traffic_is_counted_by_tensor_and_by_line(run: Run) -> None:
    seen = run({SCALE: "y = x * scale + tl.load(index_ptr + column * 0) * 0"})
    assert seen["findings"] == []
    traffic = seen["traffic"]
    assert traffic["read_by_tensor"] == {"x": 72, "index": 12}
    assert traffic["written_by_tensor"] == {"y": 72}
    assert traffic["by_line"] == {str(LOAD): 72, str(SCALE): 12, str(STORE): 72}
    assert (traffic["bytes_read"], traffic["unique_read"]) == (84, 76)
    assert (traffic["bytes_written"], traffic["unique_written"]) == (72, 72)
    assert (traffic["lanes"], traffic["masked_lanes"]) == (72, 12)
    assert (traffic["programs"], traffic["launches"]) == (3, 1)


DOT = """tile = tl.zeros([16, 32], tl.float32)
    y = x * scale + tl.sum(tl.sum(tl.dot(tile, tl.trans(tile))))"""


def test_flops_of_a_dot_are_counted(run: Run) -> None:
    seen = run({SCALE: DOT})
    assert seen["findings"] == []
    assert seen["traffic"]["dot_flops"] == 3 * 2 * 16 * 32 * 16


# ---------------------------------------------------------------- the arithmetic of a GPU
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(tl.zeros([TILE], tl.float32) + 1.01171875).to(tl.bfloat16)", 1.015625),
        ("(tl.zeros([TILE], tl.float32) + 1.00390625).to(tl.bfloat16)", 1.0),
        ("-(tl.zeros([TILE], tl.float32) + 1.5).to(tl.bfloat16)", -1.5),
        ("tl.full([TILE], 1.5, tl.bfloat16) * tl.full([TILE], 2.5, tl.bfloat16)", 3.75),
        ("tl.full([TILE], 256.0, tl.bfloat16) + tl.full([TILE], 1.0, tl.bfloat16)", 256.0),
        ("tl.abs(tl.full([TILE], -1.5, tl.bfloat16))", 1.5),
        ("tl.full([TILE], 3, tl.int32).to(tl.bfloat16)", 3.0),
        ("tl.full([TILE], 2.5, tl.bfloat16).to(tl.int32).to(tl.float32)", 2.0),
        ("tl.full([TILE], 2.5, tl.bfloat16).to(tl.float16)", 2.5),
        ("tl.where(column < 9, tl.full([TILE], 2.5, tl.bfloat16), 0.0)", 2.5),
        ("tl.full([TILE], 0.0, tl.bfloat16) + tl.sum(tl.full([TILE], 0.5, tl.bfloat16))", 4.0),
        ("tl.full([TILE], 0.0, tl.bfloat16) + tl.max(column.to(tl.bfloat16))", 7.0),
        ("tl.maximum(tl.full([TILE], float('nan'), tl.float32), 1.0)", 1.0),
        ("tl.cumsum(tl.full([TILE], 1.0, tl.bfloat16)) * 0.0 + 1.0", 1.0),
        ("tl.full([TILE], 1.0, tl.float32) + 2.0 * range_sum(COLS)", 31.0),
    ],
)
def test_numbers_are_those_of_a_gpu(run: Run, expression: str, value: float) -> None:
    helper = ""
    if "range_sum" in expression:
        expression = expression.replace("range_sum(COLS)", "total")
        helper = "total = 0\n    for i in range(tl.load(index_ptr) * 3):\n        total += i\n    "
    seen = run({SCALE: f"{helper}y = {expression}"})
    assert [f["kind"] for f in seen["findings"]] in ([], ["overflow"]), seen["findings"]
    assert seen["y"][0] == [value] * 6


FOUR = "tl.full([TILE], 4.0, tl.float32)"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (f"({FOUR} - 4.0).exp() + ({FOUR}).sqrt() + ({FOUR}).log2()", 5.0),
        (f"({FOUR}).rsqrt() + ({FOUR} - 4.0).sigmoid() + ({FOUR} - 2.0).exp2()", 5.0),
        ("tl.full([TILE], 0.0, tl.float32) + column.to(tl.float32).cumsum().max()", 28.0),
    ],
)
def test_what_a_tile_can_do_by_a_method(run: Run, expression: str, value: float) -> None:
    seen = run({SCALE: f"y = {expression}"})
    assert (seen["findings"], seen["y"][0]) == ([], [value] * 6)


def test_a_loop_counts_in_numbers_of_the_language(run: Run) -> None:
    """What compiles must run: `.to` of a loop's number, strides over the grid, `tl.range`."""
    lines = {
        "for i in range(row, 3, 3):": "y = x * (i.to(tl.int64) * 0 + 2)",
        "for i in tl.range(tl.load(index_ptr), 3, num_stages=2):": "y = x * i.to(tl.float32)",
        "for i in tl.static_range(2, 0, -1):": "y = x * i * 2",
    }
    for head, body in lines.items():
        seen = run({SCALE: f"y = x\n    {head}\n        {body}"})
        assert (seen["findings"], seen["y"][:3]) == ([], WANT), head


def test_a_function_of_ones_own_joins_in_order_and_not_one_by_one(run: Run) -> None:
    """It is not commutative; and 131,072 numbers would be more steps than a program may do."""
    helper = "@triton.jit\ndef last(left, right):\n    return left * 0.0 + right\n\n\n"
    digits = "wide = (tl.arange(0, 131072) % 8).to(tl.float32)\n    "
    for expression, value in (
        ("tl.reduce(wide, 0, last) + tl.zeros([TILE], tl.float32)", [7.0] * 6),
        ("tl.associative_scan(column.to(tl.float32), 0, last)", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        ("tl.associative_scan(column.to(tl.float32), 0, last, reverse=True)",
         [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        ("tl.associative_scan(column.to(tl.float32), 0, larger, reverse=True)", [7.0] * 6),
        ("tl.associative_scan(7.0 - column, 0, larger)", [7.0] * 6),
        ("tl.max(tl.reduce(tl.reshape(wide, [16384, 8]), 0, last), 0) + x * 0.0", [7.0] * 6),
        ("tl.sum(tl.reduce(tl.reshape(wide, [16384, 8]), 1, last), 0) + x * 0.0",
         [7.0 * 16384] * 6),
        ("tl.reduce(tl.reshape(wide, [16384, 8]), None, larger) + x * 0.0", [7.0] * 6),
    ):  # fmt: skip
        larger = helper + helper.replace("last", "larger").replace(
            "left * 0.0 + right", "tl.maximum(left, right)"
        )
        seen = run({SCALE: f"{digits}y = {expression}"}, before=larger)
        assert (seen["findings"], seen["y"][0]) == ([], value), expression


DOT_ONE = """tile = tl.zeros([16, 16], tl.float32) + 1.00048828125
    y = x * 0 + tl.max(tl.max(tl.dot(tile, tile{})))"""


def test_a_dot_of_fp32_is_tf32_unless_told_otherwise(run: Run) -> None:
    exact = 16 * 1.00048828125**2
    ieee = run({SCALE: DOT_ONE.format(', input_precision="ieee"')})["y"][0][0]
    tf32 = run({SCALE: DOT_ONE.format("")})["y"][0][0]
    assert ieee == pytest.approx(exact, rel=1e-6)
    assert tf32 != pytest.approx(exact, rel=1e-4) and tf32 == pytest.approx(exact, rel=2e-3)


def test_a_dot_of_bfloat16(run: Run) -> None:
    tile = "tile = tl.full([16, 16], 1.5, tl.bfloat16)"
    seen = run({SCALE: f"{tile}; y = x * 0 + tl.max(tl.max(tl.dot(tile, tile)))"})
    assert seen["y"][0] == [36.0] * 6


# ---------------------------------------------------------------- lanes of one program
ROUND_TRIP = "tl.store(y_ptr + row * COLS + column, y, mask=inside)"
NEIGHBOUR = "y_ptr + row * COLS + (column + 1) % COLS"


def lines_after(text: str) -> dict[int, str]:
    """GOOD, whose store is followed by more lines."""
    return {STORE: text}


def test_what_another_lane_has_just_written_is_not_there_yet(run: Run) -> None:
    """A shift through global memory: lane i + 1 may not have stored when lane i loads."""
    shift = f"{ROUND_TRIP}; z = tl.load({NEIGHBOUR}, mask=inside, other=0.0)"
    seen = run(lines_after(f"{shift}; tl.store(total_ptr + row, tl.sum(z, axis=0), mask=row < 2)"))
    [finding] = seen["findings"]
    assert finding["kind"] == "race" and "tl.debug_barrier()" in finding["message"]


def test_a_barrier_makes_it_visible(run: Run) -> None:
    shift = f"{ROUND_TRIP}; tl.debug_barrier(); z = tl.load({NEIGHBOUR}, mask=inside, other=0.0)"
    text = f"{shift}; tl.store(total_ptr + row, tl.sum(z, axis=0), mask=row < 2)"
    assert run(lines_after(text))["findings"] == []


def test_a_lane_reads_what_it_wrote_itself(run: Run) -> None:
    again = f"{ROUND_TRIP}; z = tl.load(y_ptr + row * COLS + column, mask=inside, other=0.0)"
    text = f"{again}; tl.store(total_ptr + row, tl.sum(z, axis=0), mask=row < 2)"
    assert run(lines_after(text))["findings"] == []


def test_a_transpose_in_place_overwrites_what_another_lane_reads(run: Run) -> None:
    """Lane i writes what lane i + 1 has to read; nothing says which of them comes first."""
    loads = f"{ROUND_TRIP}; tl.debug_barrier(); z = tl.load({NEIGHBOUR}, mask=inside, other=0.0)"
    text = f"{loads}; tl.store(y_ptr + row * COLS + column, z, mask=inside)"
    [finding] = run(lines_after(text))["findings"]
    assert finding["kind"] == "race" and "which another lane of it reads" in finding["message"]


def test_two_stores_of_two_lanes_to_one_element(run: Run) -> None:
    text = f"tl.store({NEIGHBOUR}, y + 1.0, mask=inside); {ROUND_TRIP}"
    kinds = [finding["kind"] for finding in run(lines_after(text))["findings"]]
    assert kinds == ["duplicate_store"]
    text = f"tl.store({NEIGHBOUR}, y + 1.0, mask=inside); tl.debug_barrier(); {ROUND_TRIP}"
    assert run(lines_after(text))["findings"] == []


ADDED = "tl.atomic_add(total_ptr + column * 0, x, mask=inside)"
NUMBER = "tl.load(total_ptr)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{ADDED}; z = {NUMBER}", "reads total[0], which another lane of it has written"),
        (f"{ADDED}; tl.store(total_ptr, 1.0)", "writes total[0], which another lane of it has"),
        (f"tl.store(total_ptr, 0.0); {ADDED}", "changes total[0], which another lane of it has"),
        (f"z = {NUMBER}; {ADDED}", "changes total[0], which another lane of it reads"),
    ],
)
def test_an_atomic_and_what_is_none_need_a_barrier_between_them(
    run: Run, text: str, words: str
) -> None:
    """A sum that lanes make in memory: when all have added is not known to the one that reads."""
    rest = f"{ROUND_TRIP}; tl.store(total_ptr + 1, 0.0)"
    findings = run(lines_after(f"{rest}; {text}"), grid=[1])["findings"]
    assert [f["kind"] for f in findings if words in f["message"]] in (["race"], ["duplicate_store"])
    apart = text.replace("; ", "; tl.debug_barrier(); ")
    seen = run(lines_after(f"{rest}; {apart}"), grid=[1])
    assert {finding["kind"] for finding in seen["findings"]} == {"coverage"}
    twice = run(lines_after(f"{rest}; {ADDED}; {ADDED}"), grid=[1])
    assert {finding["kind"] for finding in twice["findings"]} == {"coverage"}


def test_a_number_is_stored_by_one_thread_and_loaded_by_all(run: Run) -> None:
    text = f"{ROUND_TRIP}; tl.store(total_ptr, tl.sum(x, axis=0)); z = {NUMBER}"
    findings = run(lines_after(text), grid=[1])["findings"]
    [finding] = [f for f in findings if f["kind"] == "race"]
    assert "reads total[0], which it has written: one thread stores a number" in finding["message"]
    apart = text.replace("; z", "; tl.debug_barrier(); z")
    assert {f["kind"] for f in run(lines_after(apart), grid=[1])["findings"]} == {"coverage"}


# ---------------------------------------------------------------- what a GPU takes for granted
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x_stride = tl.multiple_of(x_stride, 16)", "promises a multiple of 16, and this is 8"),
        ("tl.assume(x_stride % 16 == 0)", "tl.assume says what is not so here"),
        ("column = tl.multiple_of(column + 4, 8)", "promises a multiple of 8, and this is 4"),
        ("x_ptr = tl.multiple_of(x_ptr + 1, 16)", "promises a multiple of 16"),
        ("column = tl.multiple_of(column * 4, 16)", "promises a multiple of 16, and this is 4"),
        (
            "column = tl.max_contiguous(tl.where(inside, column, 0), TILE)",
            "tl.max_contiguous promises runs of 8 that rise by one, and here 0 follows 5",
        ),
        ("column = tl.max_contiguous(column // 4 * 8 + column % 4, 8)", "and here 8 follows 3"),
        (
            "column = tl.max_contiguous(tl.multiple_of(column // 4 * 5 + column % 4, 4), 4)",
            "promises a multiple of 4, and this is 5",
        ),
        ("tl.max_contiguous(x_ptr + 2 * column, 2)", "promises runs of 2 that rise by one"),
        (
            "tl.max_contiguous(row * 8 + tl.arange(0, 4)[:, None] + column[None, :], (4, 8)) * 2;"
            " tl.max_contiguous(row * 8 + 2 * tl.arange(0, 4)[:, None] + column[None, :], (4, 1))",
            "here 2 follows 0",
        ),
        (
            "tl.max_constancy(column // 2, 4)",
            "tl.max_constancy promises runs of 4 equal numbers, and here 1 follows 0",
        ),
        ("tl.max_constancy(inside, 8)", "and here 0 follows 1"),
        ("y_ptr += tl.sum(tl.gather(column, column - 8, 0)) * 0", "index -8 is out of bounds"),
    ],
)
def test_a_promise_that_is_not_kept_is_an_error(run: Run, line: str, words: str) -> None:
    [finding] = [f for f in run({LOAD: f"{line}\n    {GOOD_LOAD}"})["findings"]
                 if f["kind"] == "crash"]  # fmt: skip
    assert words in finding["message"] and finding["line"] == LOAD


GOOD_LOAD = GOOD.splitlines()[LOAD - 1].strip()


@pytest.mark.parametrize(
    "line",
    [
        "x_stride = tl.multiple_of(x_stride, 8)",
        "tl.assume(x_stride > 0)",
        "column = tl.max_contiguous(tl.multiple_of(column, TILE), TILE)",
        "column = tl.multiple_of(tl.max_contiguous(column // 4 * 8 + column % 4, 4), 8) % 8 +"
        " tl.max_constancy(column // 4 * 4, 4)",
        "tl.max_constancy(inside, 2)",
        "tl.max_contiguous(x_ptr + column, TILE)",
        "x_ptr = tl.multiple_of(x_ptr, 16)",
        "y_ptr += tl.sum(tl.gather(column, 7 - column, 0)) * 0",
    ],
)
def test_a_promise_that_is_kept_is_none_of_the_monitors_business(run: Run, line: str) -> None:
    seen = run({LOAD: f"{line}\n    {GOOD_LOAD}"})
    assert seen["findings"] == [] and seen["y"][:3] == WANT


# ---------------------------------------------------------------- what only the interpreter takes
@pytest.mark.parametrize(
    "line",
    [
        "y = x * scale if column < COLS else x",
        "y = x * scale if (column < COLS) and (row < 2) else x",
        "y = x * scale if not inside else x",
    ],
)
def test_a_tile_is_neither_true_nor_false(run: Run, line: str) -> None:
    [finding] = [f for f in run({SCALE: line})["findings"] if f["kind"] == "crash"]
    assert finding["line"] == SCALE and "tl.where" in finding["message"]


def test_a_constant_may_stand_on_the_left_of_a_tile(run: Run) -> None:
    assert run({SCALE: "y = -COLS * x * (scale / -COLS)"})["y"][:3] == WANT


@pytest.mark.parametrize("loop", ["range(0, 1000000000)", "tl.static_range(0, 1000000000)"])
@pytest.mark.slow
def test_a_loop_without_loads_is_stopped_too(run: Run, loop: str) -> None:
    [finding] = [
        f for f in run({SCALE: f"y = x\n    for _ in {loop}: y += 1.0"})["findings"]
        if f["kind"] == "timeout"
    ]  # fmt: skip
    assert "steps" in finding["message"]


def test_what_is_printed_in_a_loop_ends_after_some_hundred_times() -> None:
    """Numbers of 100,000 iterations took minutes, and the run had no time left."""
    loop = "for i in range(0, 50000): tl.device_print('i', i)"
    source = GOOD.replace("    y = x", f"    {loop}\n    y = x")
    request = {"source": source, "grid": [3], "order": "natural", "poison": "nan",
               "dtype": "float32", "launches": 1}  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("toys.py"))],
        input=json.dumps(request) + "\n",
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    *printed, said, answer = done.stdout.splitlines()
    assert len(printed) == 500
    assert printed[0].split() == "(0, 0, 0) i: [0]".split()
    assert "the rest, after the first 500 times, is left out" in said
    assert json.loads(answer)["findings"] == []


def test_a_number_that_is_masked_off_is_the_other_even_if_that_is_0(run: Run) -> None:
    """Triton asks `if other`; a scalar 0 is one, and nothing is undefined."""
    number = "x = tl.load(x_ptr + row * x_stride, mask=row > 5, other=0.0) + column * 1.0"
    seen = run({LOAD: number})
    assert seen["findings"] == []
    assert seen["y"][:3] == [[2.0 * column for column in range(6)]] * 3
    taken = run({LOAD: number.replace("row > 5", "row < 5")})
    assert taken["y"][1][:2] == [WANT[1][0], WANT[1][0] + 2]


def test_no_run_keeps_the_tensors_of_those_before_it(run: Run) -> None:
    """One process judges hundreds of cases, and some map gigabytes."""
    for _ in range(4):
        run()
    assert run()["alive"] <= 1, "the last one's, which the interpreter's builder knows"
