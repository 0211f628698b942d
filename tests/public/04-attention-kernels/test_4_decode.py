"""Task 04.4: online softmax, and one new token over its pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from labkit.kernels.direct import expect_close, solve
from labkit.kernels.verdict import oracles
from labkit.testing import expect
from mini_vllm.kernels.attention import PAGED_DECODE
from mini_vllm.kernels.launch import KernelSpec, Launch, Work

PROBE = '''

@triton.jit
def softmax_probe(
    scores_ptr, weights_ptr, state_ptr, TILES: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr
):
    """TILES tiles of ROWS x N scores through online_softmax; what it returns after each."""
    row = tl.arange(0, ROWS)
    places = row[:, None] * N + tl.arange(0, N)[None, :]
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    for tile in range(TILES):
        scores = tl.load(scores_ptr + tile * ROWS * N + places)
        weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
        tl.store(weights_ptr + tile * ROWS * N + places, weights)
        tl.store(state_ptr + tile * 3 * ROWS + row, row_max)
        tl.store(state_ptr + (tile * 3 + 1) * ROWS + row, row_sum)
        tl.store(state_ptr + (tile * 3 + 2) * ROWS + row, rescale)
'''
STATE = ("row_max", "row_sum", "rescale")


def plan_probe(scores: Tensor, weights: Tensor, state: Tensor) -> list[Launch]:
    tiles, rows, width = scores.shape
    args = {"scores_ptr": scores, "weights_ptr": weights, "state_ptr": state}
    sizes = {"TILES": tiles, "ROWS": rows, "N": width}
    return [Launch("softmax_probe", (1,), args, sizes)]  # type: ignore[arg-type]


SOFTMAX = KernelSpec(
    name="online_softmax",
    module=PAGED_DECODE.module,
    kernels=("softmax_probe",),
    plan=plan_probe,
    work=lambda **_: Work(0, 0, 0),
    outputs=("weights", "state"),
)


WIDTH = 4
"""Keys of a tile. It is not square: where `[:, None]` is forgotten, 2 rows do not fit 4 keys."""


def run_softmax(tiles: list[list[list[float]]]) -> tuple[Tensor, Tensor]:
    """Weights `[tiles, rows, N]` and state `[tiles, 3, rows]` after each tile; the kernel sees
    WIDTH keys, of which those behind the N are hidden."""
    given = torch.tensor(tiles)
    scores = pad(given, (0, WIDTH - given.shape[2]), value=float("-inf"))
    weights = torch.full_like(scores, float("nan"))
    state = torch.full((len(tiles), 3, scores.shape[1]), float("nan"))
    solve(SOFTMAX, dict(scores=scores, weights=weights, state=state), probe=PROBE)
    expect(weights[:, :, given.shape[2] :].abs().max().item(), 0.0, at="weights of hidden keys")
    return weights[:, :, : given.shape[2]], state


def check_state(state: Tensor, expected: dict[str, list[float]], tile: int, at: str) -> None:
    __tracebackhide__ = True
    for name, row in expected.items():
        yours = state[tile, STATE.index(name)]
        place = f"{at}: {name} after tile {tile}"
        expect_close(yours, torch.tensor(row), axes=("row",), at=place)


def test_04_4_softmax_of_the_first_tile() -> None:
    """The first tile meets a maximum of -inf and a sum of 0."""
    weights, state = run_softmax([[[0.0, 1.0]]])
    at = "scores 0 and 1"
    check_state(state, {"row_max": [1.0], "row_sum": [1.3678794], "rescale": [0.0]}, 0, at)
    expected = torch.tensor([[[0.3678794, 1.0]]])
    expect_close(weights, expected, axes=("tile", "row", "key"), at=f"{at}: weights")


def test_04_4_softmax_a_larger_score_rescales() -> None:
    """A later, larger score: what was summed so far shrinks by exp(old maximum - new maximum)."""
    _, state = run_softmax([[[0.0, 1.0], [5.0, 5.0]], [[3.0, 1.0], [4.0, 4.0]]])
    at = "row 0: scores 0 1 | 3 1, row 1: 5 5 | 4 4"
    check_state(state, {"row_max": [1.0, 5.0], "row_sum": [1.3678794, 2.0]}, 0, at)
    rest = {"rescale": [0.1353353, 1.0], "row_max": [3.0, 5.0], "row_sum": [1.3204560, 2.7357589]}
    check_state(state, rest, 1, at)


def test_04_4_softmax_rows_that_see_nothing() -> None:
    """A row without a visible key so far: weights 0 and sum 0, never NaN; it may see one later."""
    hidden = float("-inf")
    tiles = [[[hidden, hidden], [2.0, hidden]], [[-200.0, hidden], [2.0, 2.0]]]
    weights, state = run_softmax(tiles)
    at = "row 0: nothing visible in tile 0, one key with score -200 in tile 1"
    expected = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    expect_close(weights[0], expected, axes=("row", "key"), at=f"{at}: weights of tile 0")
    check_state(state, {"row_sum": [0.0, 1.0]}, 0, at)
    check_state(state, {"row_max": [-200.0, 2.0], "row_sum": [1.0, 3.0]}, 1, at)


def test_04_4_softmax_of_large_scores() -> None:
    """Scores of 10,000 would overflow exp; minus the maximum they do not."""
    _, state = run_softmax([[[1e4, 9999.0]], [[9999.0, 0.0]]])
    check_state(state, {"row_max": [1e4], "row_sum": [1.7357589]}, 1, "scores 10000 9999 | 9999 0")


def test_04_4_decode_one_token_of_context(desk: Any) -> None:
    """A context of one token: its value is the answer."""
    desk.check_decode("ana has 1 token", [1])


def test_04_4_decode_contexts_around_a_block(desk: Any) -> None:
    """Contexts that end before, at and after the border of a block of 4."""
    desk.check_decode("ana has 3 tokens, ben 4, cleo 9; block size 4", [3, 4, 9])


def test_04_4_decode_a_full_block(desk: Any) -> None:
    """A context that fills its only block to the last slot."""
    desk.check_decode("ana has 4 tokens; block size 4", [4])


def test_04_4_decode_in_half_precision(desk: Any) -> None:
    """float16 in, float16 out: `tl.dot` wants operands of one type, and weights are float32."""
    at = "ana has 3 tokens, ben 9; query, keys and values are float16"
    desk.check_decode(at, [3, 9], dtype=torch.float16)


def test_04_4_decode_several_tiles(desk: Any) -> None:
    """70 tokens take three tiles of 32 keys, each with larger scores than the one before."""
    at = "ana has 70 tokens; KEY_TILE 32; the score of position p is p / 5"
    desk.check_decode(at, [70], block_size=16, change=desk.rising)


def test_04_4_decode_heads_in_groups(desk: Any) -> None:
    """6 query heads share 2 key/value heads: heads 0 to 2 read the first, 3 to 5 the second."""
    desk.check_decode("ana has 5 tokens, ben 2; 6 heads in 2 groups", [5, 2], group=3, kv_heads=2)


def test_04_4_decode_a_head_of_24_features(desk: Any) -> None:
    """24 features in a tile of 32: the last 8 lanes touch nothing."""
    desk.check_decode("ana has 5 tokens; HEAD_DIM 24, DIM_TILE 32", [5], dim=24, kv_heads=2)


def test_04_4_decode_in_a_window(desk: Any) -> None:
    """Only the last 5 tokens are visible; earlier blocks may be gone."""
    desk.check_decode("ana has 3 tokens, ben 11; window 5", [3, 11], window=5)


def test_04_4_decode_a_row_without_a_request(desk: Any) -> None:
    """A captured batch has rows that no request uses: length 0, output 0."""
    desk.check_decode("row 0 is empty (0 tokens), row 1 is ana's (3)", [0, 3])


def in_splits(desk: Any, seq_lens: list[int], kv_heads: int = 2, change: Any = None) -> Any:
    """Decode groups of 2 heads in two splits; the problem with the parts as `output`, and `lse`."""
    shape = {"group": 2, "kv_heads": kv_heads, "block_size": 16, "change": change}
    problem, rules = desk.decode_problem(seq_lens, splits=2, **shape)
    problem["output"] = problem.pop("partial")
    rules = replace(rules, tensors={**rules.tensors, "output": rules.tensors["partial"]})
    solve(replace(PAGED_DECODE, outputs=("output", "lse")), problem, rules)
    return problem


def test_04_4_the_mass_of_one_token_is_its_score(desk: Any) -> None:
    """log(exp(score)): nothing is added to it, and nothing taken away."""
    problem = in_splits(desk, [1])
    block = int(problem["block_table"][0, 0])
    keys = problem["key_cache"][block, 0].repeat_interleave(2, dim=0)  # 2 heads share a key
    scores = (problem["query"][0] * keys).sum(-1) * problem["scale"]
    at = "ana has 1 token, 4 heads in 2 groups; lse of the first split"
    expect_close(problem["lse"][0, :, 0], scores, axes=("head",), at=at)


def test_04_4_the_mass_of_equal_scores_is_their_number(desk: Any) -> None:
    """Twenty scores of 0 have the mass 20, whatever the keys are; lse is its logarithm."""
    problem = in_splits(desk, [20, 5], change=lambda _, made: made["query"].zero_())
    at = "ana has 20 tokens, ben 5, all queries are 0; lse of the first split"
    expected = torch.tensor([[20.0] * 4, [5.0] * 4]).log()
    expect_close(problem["lse"][:, :, 0], expected, axes=("request", "head"), at=at)


def test_04_4_decode_in_splits(desk: Any) -> None:
    """Two programs share a context; each hands over its average and log(sum(exp(scores)))."""
    problem = in_splits(desk, [70, 20], kv_heads=1)
    partial, lse = problem["output"], problem["lse"]
    at = "ana has 70 tokens, ben 20, two splits of whole tiles of 32"
    expect(lse[1, :, 1].tolist(), [float("-inf")] * 2, at=f"{at}: lse of ben's empty split")
    expect(float(partial[1, :, 1].abs().max()), 0.0, at=f"{at}: output of ben's empty split")
    parts = [slice(0, 64), slice(64, 70)]
    for split, part in enumerate(parts):
        table = problem["block_table"][0]
        slots = torch.tensor([int(table[p // 16]) * 16 + p % 16 for p in range(70)[part]])
        average, mass = oracles.attend(problem, problem["query"][0], slots)
        place = f"{at}: ana, split {split}"
        expect_close(lse[0, :, split], mass.float(), axes=("head",), at=f"{place}: lse")
        got = partial[0, :, split]
        expect_close(got, average.float(), axes=("head", "dim"), at=f"{place}: average")
