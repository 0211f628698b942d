"""The corpus that keeps the checker honest: complete, and a sample of it judged.

`python -m labkit kernel-corpus`, a part of `make test-full`, judges all of it.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.course.root import find_root
from labkit.kernels.cases import SPECS, build, cases_of
from labkit.kernels.check import Checker
from labkit.kernels.proof import corpus, corpus_command, selftest
from labkit.kernels.proof.corpus import Bench, Cheat, Fault
from labkit.kernels.verdict.report import STAGES
from labkit.kernels.watch.extract import Submission, extract, reference_source

CHEATS = corpus.cheats()
FILES = {cheat.name: cheat for cheat in CHEATS if cheat.name}
QUICK = ("14_keep_the_warm_up", "45_a_little_garbage", "46_unknown_options")
SAMPLE = 97  # of about a thousand changes


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as running:
        yield running


# ---------------------------------------------------------------- honest files
def test_each_kernel_has_three_other_correct_versions() -> None:
    taught = set(SPECS) - corpus.UNTAUGHT
    by_spec = {spec: {e.name for e in corpus.honest() if e.spec == spec} for spec in taught}
    assert all(len(names) >= 3 for names in by_spec.values()), by_spec


@pytest.mark.parametrize("entry", corpus.honest(), ids=lambda e: f"{e.name}-{e.spec}")
def test_the_lint_accepts_an_honest_file(entry: corpus.Honest) -> None:
    found = extract(entry.path.read_text(encoding="utf-8"), SPECS[entry.spec], entry.name)
    assert isinstance(found, Submission), found


def test_an_honest_kernel_passes_a_sample_of_cases(checker: Checker) -> None:
    for entry in corpus.honest():
        if entry.spec == "silu_mul":
            result = checker.check(entry.spec, entry.path, seed=corpus.SEED, sample=2)
            assert result.passed, (entry, result.findings)


# ---------------------------------------------------------------- cheats
def test_every_known_cheat_is_in_the_table_and_every_file_too() -> None:
    assert {cheat.number for cheat in CHEATS} == set(range(1, 47))
    files = {path.stem for path in (corpus.folder() / "cheats").glob("*.py")}
    assert files == set(FILES)
    for cheat in CHEATS:
        if cheat.name:
            assert cheat.name.startswith(f"{cheat.number:02}_") and cheat.spec in SPECS
            assert cheat.stage in (*STAGES, "passed") and (cheat.kind or cheat.stage == "passed")
        if not cheat.name or cheat.stage == "passed":
            assert cheat.reason and cheat.covered, cheat


@pytest.mark.parametrize("cheat", [c for c in CHEATS if c.covered], ids=lambda c: str(c.number))
def test_what_covers_a_cheat_without_a_file_exists(cheat: Cheat) -> None:
    file, _, test = cheat.covered.partition("::")
    text = (find_root() / file).read_text(encoding="utf-8")
    assert not test or f"def {test}(" in text


@pytest.mark.parametrize("name", [name for name, cheat in FILES.items() if cheat.stage == "lint"])
def test_host_code_and_python_stop_at_the_lint(checker: Checker, name: str) -> None:
    assert corpus_command.accepted(checker, FILES[name]) == ""


@pytest.mark.parametrize("name", QUICK)
def test_a_cheat_is_stopped(checker: Checker, name: str) -> None:
    assert corpus_command.accepted(checker, FILES[name]) == ""


def test_a_cheat_that_passes_would_be_told(checker: Checker) -> None:
    other = Cheat(1, "46_unknown_options", "silu_mul", "values", "values")
    assert "expected values values, got compile" in corpus_command.accepted(checker, other)


# ---------------------------------------------------------------- changes of our kernels
def test_every_change_is_found_out_or_changes_nothing() -> None:
    """The results are of these kernels; `kernel-corpus changes --write` makes them anew."""
    known, harmless, faults = corpus.changes(), corpus.equivalent(), corpus.known_faults()
    assert set(harmless) <= set(known), sorted(set(harmless) - set(known))
    assert not set(harmless) & set(faults)
    assert set(known) == set(harmless) | set(faults), sorted(
        set(known) ^ (set(harmless) | set(faults))
    )
    text = (corpus.folder() / "equivalent.toml").read_text(encoding="utf-8")
    assert all(group["reason"].strip() for group in tomllib.loads(text)["equivalent"])


def test_a_sample_of_the_changes_is_found_out() -> None:
    count, wrong = corpus_command.judge_changes(SAMPLE)
    assert count >= 8 and wrong == []


def test_a_kernel_without_a_change_has_no_fault_in_a_case_and_one_with_a_change_has() -> None:
    good = (corpus.folder() / "honest" / "a" / "fused.py").read_text(encoding="utf-8")
    assert "+ eps" in good
    with Bench() as bench:
        bad = bench.fault(good.replace("+ eps", "- eps"), "rms_norm", "small")
    assert bad == Fault("values", "values", "rms_norm", "small")


FIXED = "{0}: tl.constexpr = {1}\n{2}"
CONSTANTS = [
    ("paged_decode", "wide-head", "    dim = tl.arange(0, DIM_TILE)", "    DIM_TILE", 128),
    ("paged_prefill", "wide-head", "    dim = tl.arange(0, DIM_TILE)", "    DIM_TILE", 128),
    ("paged_decode_int8", "wide-head", "    dim = tl.arange(0, DIM_TILE)", "    DIM_TILE", 128),
    ("reduce_splits", "wide-head", "    dim = tl.arange(0, DIM_TILE)", "    DIM_TILE", 128),
    ("reduce_splits", "more-splits", "    split = tl.arange(0, SPLIT_TILE)", "    SPLIT_TILE", 64),
    ("rms_norm", "wide-row", "    column = tl.arange(0, SIZE_TILE)", "    SIZE_TILE", 8192),
    ("per_token_quant_int8", "wide-row", "    column = tl.arange(0, SIZE_TILE)", "    SIZE_TILE",
     8192),
    ("rope", "seventy-heads", "    head = tl.arange(0, HEADS_TILE)", "    HEADS_TILE", 64),
    ("rope", "wide-head", "    pair = tl.arange(0, HALF_TILE)", "    HALF_TILE", 64),
    ("lora_shrink", "rank-130", "        rank = tl.arange(0, RANK_TILE)", "        RANK_TILE", 128),
    ("lora_expand", "rank-130", "        rank = tl.arange(0, RANK_TILE)", "        RANK_TILE", 128),
    ("rejection_random_sample", "long", "    place = tl.arange(0, PLACES)", "    PLACES", 64),
    ("paged_decode", "one-for-all", "    group = tl.arange(0, GROUP_TILE)", "    GROUP_TILE", 32),
    ("paged_decode_int8", "large-group", "    group = tl.arange(0, GROUP_TILE)", "    GROUP_TILE",
     32),
]  # fmt: skip
"""Tiles of a size that once seemed large enough: spec, the case that is larger, and the tile."""
RECOVERED = "tl.load(recovered_token_ids_ptr + start + num_accepted)"
SCORED = "* scale\n        scores = tl.where"
KEPT = "key_cache_ptr + slot * ROW + column, tl.where(key == key, key, 0.0),"
INDEX = "tl.load(indices_ptr + row)"
DRAFT = "tl.load(draft_token_ids_ptr + row, mask=is_draft)"
IN_ONE = """\
    output = tl.sum(partial * share[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
"""
ONE_BY_ONE = """\
    most = tl.load(lse_ptr + row * NUM_SPLITS)
    mass = 1.0
    acc = tl.load(partial_ptr + row * NUM_SPLITS * HEAD_DIM + dim, mask=in_head, other=0.0)
    for i in range(1, NUM_SPLITS):
        next_lse = tl.load(lse_ptr + row * NUM_SPLITS + i)
        at = partial_ptr + (row * NUM_SPLITS + i) * HEAD_DIM + dim
        new = tl.maximum(most, next_lse)
        weight = tl.exp(next_lse - new)
        acc = acc * tl.exp(most - new) + tl.load(at, mask=in_head, other=0.0) * weight
        mass = mass * tl.exp(most - new) + weight
        most = new
    output = tl.where(most == float("-inf"), 0.0, acc / mass)
"""
"""Right, unless the first two splits are empty, and another is not."""
TOGETHER = (
    "tl.maximum(row_max, tl.max(scores, axis=1))",
    "tl.maximum(row_max, tl.max(tl.max(scores, axis=1), axis=0))",
)
"""One maximum for all rows of a tile: right, as long as they are alike."""
BEFORE = "tl.maximum(request - 1, 0)"
TWIN = (
    "block_table_ptr + request * table_stride",
    f"block_table_ptr + (request - ((tl.load(seq_lens_ptr + {BEFORE}) == "
    "tl.load(seq_lens_ptr + request)) & (request > 0)).to(tl.int64)) * table_stride",
)
"""The table of the request before, if it is as long."""
BLOCK = (
    " other=0).to(tl.int64)\n        slot",
    " other=0).to(tl.float32).to(tl.int64)\n        slot",
)
COUNT = "tl.load(num_tokens_ptr + segment)"
LIMITS = [
    *(
        (spec, "many-tiles", COUNT, f"{COUNT}.to(tl.{kind}).to(tl.int32)")
        for spec in ("lora_shrink", "lora_expand")
        for kind in ("int16", "float16")
    ),
    *(
        (spec, "rank-5", "in_rank = rank < RANK", "in_rank = rank < RANK - RANK % 2 * (RANK > 2)")
        for spec in ("lora_shrink", "lora_expand")
    ),
    (
        "reduce_splits",
        "head-70",
        "in_head = dim < HEAD_DIM",
        "in_head = dim < HEAD_DIM - HEAD_DIM % 4",
    ),
    *(
        (spec, "apart", *TOGETHER)
        for spec in ("paged_decode", "paged_prefill", "paged_decode_int8")
    ),
    *((spec, "twins", *TWIN) for spec in ("paged_decode", "paged_prefill", "paged_decode_int8")),
    *(
        (spec, "many-blocks", *BLOCK)
        for spec in ("paged_decode", "split_decode", "paged_prefill", "paged_decode_int8")
    ),
    (
        "paged_prefill",
        "far-output",
        "query_start_loc_ptr + request)",
        "query_start_loc_ptr + request).to(tl.float32).to(tl.int32)",
    ),
    ("paged_prefill", "twins", "head // GROUP\n", "tl.where(query_len == 1, 0, head // GROUP)\n"),
    (
        "paged_prefill",
        "twins",
        "query_stride + head *",
        "query_stride + tl.where((query_len == 1) & (num_heads > 2), 0, head) *",
    ),
    (
        "paged_prefill",
        "edges",
        "(distance < window)",
        "((distance < window) | (start >= num_computed + row_begin + QUERY_TILE - 1 - window))",
    ),
    *(
        ("rejection_random_sample", "deep", ends, f"{ends}.to(tl.float32).to(tl.int32)")
        for ends in ("tl.load(draft_ends_ptr + request - 1)", "tl.load(draft_ends_ptr + request)")
    ),
    ("store_kv", "odd-row", "column < ROW\n", "column < ROW - ROW % 8 * (ROW > 8)\n"),
    (
        "w8a8_gemm",
        "many",
        "total = tl.dot(x, tl",
        "total = tl.dot(tl.maximum(x, -127).to(tl.int8), tl",
    ),
    ("w8a8_gemm", "tile", "tl.trans(weight)", "tl.trans(tl.maximum(weight, -127).to(tl.int8))"),
    ("w4a16_gemm", "groups", "(numbers - zero)", "(numbers - tl.where(zero == 0, 8, zero))"),
    ("w4a16_gemm", "groups", "(numbers - zero)", "(tl.where(numbers == 0, 8, numbers) - zero)"),
    ("store_kv_int8", "block", "(8 * byte)) & 255)", "(8 * byte)) & tl.where(byte > 0, 255, 0))"),
    (
        "paged_decode_int8",
        "one",
        "(value_cache_ptr, place + HEAD_DIM, visible)",
        "(value_cache_ptr, place + HEAD_DIM, visible)\n"
        "        value_scale = value_scale.to(tl.int32, bitcast=True) & -256\n"
        "        value_scale = value_scale.to(tl.float32, bitcast=True)",
    ),
    ("paged_decode", "thousands", "range(begin, end,", "range(begin, tl.minimum(end, 32768),"),
    ("split_decode", "thousands", "range(begin, end,", "range(begin, tl.minimum(end, 65536),"),
    ("paged_decode_int8", "thousands", "0), end, KEY_TILE", "0), tl.minimum(end, 32768), KEY_TILE"),
    ("paged_decode", "wide-window", "seq_len - window", "seq_len - tl.minimum(window, 8192)"),
    ("paged_prefill", "wide-window", "distance < window", "distance < tl.minimum(window, 8192)"),
    ("paged_decode", "distant", "position //", "position.to(tl.float32).to(tl.int32) //"),
    ("paged_prefill", "distant", "position //", "position.to(tl.int16).to(tl.int32) //"),
    (
        "paged_decode_int8",
        "distant",
        "position % BLOCK_SIZE",
        "(position - (position.to(tl.float32) / BLOCK_SIZE).to(tl.int32) * BLOCK_SIZE)",
    ),
    (
        "store_kv",
        "many-slots",
        "tl.load(slot_mapping_ptr + token)",
        "tl.load(slot_mapping_ptr + token).to(tl.float32).to(tl.int64)",
    ),
    ("store_kv_int8", "big-cache", "(slot * tl.num", "(slot.to(tl.int32) * tl.num"),
    (
        "rejection_random_sample",
        "far-drafts",
        "row * draft_stride",
        "row.to(tl.int32) * draft_stride.to(tl.int32)",
    ),
    ("rejection_random_sample", "close-half", "u * q < p", "u.to(q.dtype) * q < p"),
    ("rejection_random_sample", "chosen-close", "accepted = u < p", "accepted = u.to(p.dtype) < p"),
    ("rms_norm", "long", "output_ptr + row * SIZE", "output_ptr + row.to(tl.int32) * SIZE"),
    ("rms_norm", "heads-residual", "residual_ptr + row *", "residual_ptr + token *"),
    ("rms_norm", "heads-residual", "SIZE + eps", "SIZE + (1e-6 if HAS_RESIDUAL else eps)"),
    ("paged_decode", "block-0", "in_page = visible", "in_page = (visible & (block > 0))"),
    ("store_kv_int8", "one", "if slot >= 0:", "if slot > 0:"),
    (
        "paged_decode",
        "uneven",
        "weights = tl.exp(scores - shift[:, None])",
        "weights = tl.exp2((scores - shift[:, None]) * 1.4427)",
    ),
    (
        "paged_decode",
        "uneven",
        "rescale = tl.exp(row_max - shift)",
        "rescale = tl.exp2((row_max - shift) * 1.4427)",
    ),
    (
        "w8a8_gemm",
        "cancel",
        "total = tl.dot(x, tl.trans(weight), acc=total, out_dtype=tl.int32)",
        "total += tl.dot(x, tl.trans(weight), out_dtype=tl.int32).to(tl.float32).to(tl.int32)\n"
        "        total = total.to(tl.float32).to(tl.int32)",
    ),
    ("w8a8_gemm", "longer", "range(0, K,", "range(0, K if K < 16384 else 16384,"),
    ("w4a16_gemm", "longer", "range(0, K,", "range(0, K if K < 16384 else 16384,"),
    ("rejection_random_sample", "none", RECOVERED, f"{RECOVERED}.to(tl.int16).to(tl.int64)"),
    ("rejection_random_sample", "none", RECOVERED, f"{RECOVERED}.to(tl.float32).to(tl.int64)"),
    ("rejection_random_sample", "wide-vocab", DRAFT, f"{DRAFT}.to(tl.int16).to(tl.int64)"),
    ("rejection_random_sample", "tiny", "(q > 0) &", "(q > 1e-6) &"),
    ("rejection_random_sample", "tiny", "u * q < p", "u < p / tl.maximum(q, 1e-3)"),
    ("rejection_random_sample", "many", "= tl.program_id(0)", "= tl.program_id(0) % 512"),
    ("paged_decode", "thousand", "= tl.program_id(0)", "= (tl.program_id(0) % 1024)"),
    ("paged_decode_int8", "thousand", "= tl.program_id(0)", "= (tl.program_id(0) % 512)"),
    ("paged_decode", "large-scale", SCORED, "* tl.minimum(scale, 1.0)\n        scores = tl.where"),
    ("split_decode", "one", "row_max + tl.log(row_sum_or_1)", "tl.log(row_sum_or_1)"),
    (
        "split_decode",
        "inert",
        "row_max + tl.log(row_sum_or_1)",
        "tl.where(seq_len > 0, row_max + tl.log(row_sum_or_1), 0.0)",
    ),
    ("rms_norm", "many-heads", "= tl.program_id(1)", "= tl.minimum(tl.program_id(1), 127)"),
    ("rope", "long", "angle = token * HEAD_DIM", "angle = token.to(tl.int32) * HEAD_DIM"),
    ("silu_mul", "loud-bf16", "* up, mask", "* tl.minimum(up, 65504.0), mask"),
    ("silu_mul", "wide", "= tl.program_id(1)", "= tl.minimum(tl.program_id(1), 31)"),
    ("store_kv", "one", "key_cache_ptr + slot * ROW + column, key,", KEPT),
    ("per_token_quant_int8", "long", "+ token * SIZE", "+ token.to(tl.int32) * SIZE"),
    ("per_token_quant_int8", "huge", "tl.abs(x)", "tl.minimum(tl.abs(x), 65504.0)"),
    ("w8a8_gemm", "rows", "tl.program_id(1).to", "(tl.program_id(1) % 16).to"),
    ("w4a16_gemm", "rows", "tl.program_id(1).to", "(tl.program_id(1) % 16).to"),
    ("apply_token_bitmask", "deep", INDEX, f"{INDEX}.to(tl.int16)"),
    (
        "lora_expand",
        "long-hidden",
        "total_tokens + row[:, None]) * RANK + rank[None, :]\n        h =",
        "total_tokens + row.to(tl.int32)[:, None]) * RANK + rank[None, :]\n        h =",
    ),
    ("store_kv", "wide-row", "column < ROW\n", "column < tl.minimum(ROW, 8192)\n"),
    ("store_kv", "deep", "if slot >= 0:", "if (slot >= 0) & (token < 65536):"),
    ("store_kv_int8", "deep", "if slot >= 0:", "if (slot >= 0) & (token < 65536):"),
    ("store_kv_int8", "many-heads", "if slot >= 0:", "if (slot >= 0) & (head < 128):"),
    ("store_kv_int8", "least", "127.0, MIN_SCALE)", "127.0, 1e-6)"),
    (
        "store_kv_int8",
        "odd",
        "value = finite(tl.load(value_at, mask=inside, other=0.0)",
        "value = (tl.load(value_at, mask=inside, other=0.0)",
    ),
    ("per_token_quant_int8", "least", "127.0, MIN_SCALE)", "127.0, 1e-12)"),
    ("reduce_splits", "long-output", "+ row * HEAD_DIM", "+ row.to(tl.uint32) * HEAD_DIM"),
    ("reduce_splits", "long-masses", "lse_ptr + row *", "lse_ptr + row.to(tl.uint32) *"),
    ("paged_prefill", "far-output", "(token[:, None] * num", "(token[:, None].to(tl.uint32) * num"),
    ("paged_decode", "block-600", "% BLOCK_SIZE", "% tl.minimum(BLOCK_SIZE, 512)"),
    ("paged_prefill", "block-600", "% BLOCK_SIZE", "% tl.minimum(BLOCK_SIZE, 512)"),
    ("paged_decode_int8", "block-600", "% BLOCK_SIZE", "% tl.minimum(BLOCK_SIZE, 512)"),
    ("w8a8_gemm", "long-weight", "row[:, None] * K", "row[:, None].to(tl.uint32) * K"),
    ("w8a8_gemm", "long-output", "token[:, None] * N", "token[:, None].to(tl.uint32) * N"),
    ("w4a16_gemm", "long-weight", "row[:, None] * WORDS", "row[:, None].to(tl.uint32) * WORDS"),
    ("w4a16_gemm", "long-weight", "row[:, None] * GROUPS", "row[:, None].to(tl.uint32) * GROUPS"),
    ("w4a16_gemm", "long-output", "token[:, None] * N", "token[:, None].to(tl.uint32) * N"),
    ("w4a16_gemm", "longer", "// (K // GROUPS)", "// (K // GROUPS) % 256"),
    ("silu_mul", "long", "output_ptr + token * SIZE", "output_ptr + token.to(tl.uint32) * SIZE"),
    (
        "silu_mul",
        "middling",
        "gate / (1.0 + tl.exp(-gate)) * up",
        "tl.where(gate > 8.0, gate, gate / (1.0 + tl.exp(-gate))) * up",
    ),
    ("rope", "all-heads", "(head < NUM_HEADS)", "(head < tl.minimum(NUM_HEADS, 128))"),
    ("rope", "wide-head", "pair < HEAD_DIM // 2", "pair < tl.minimum(HEAD_DIM // 2, 128)"),
    (
        "apply_token_bitmask",
        "wide-vocab",
        "(token < vocab_size)",
        "(token < tl.minimum(vocab_size, 131072))",
    ),
    ("lora_shrink", "wide-input", "column < IN_SIZE", "column < tl.minimum(IN_SIZE, 16384)"),
    (
        "lora_shrink",
        "slices",
        "if (slot >= 0) &",
        "if (slot >= 0) & (tl.program_id(1) < 128) &",
    ),
    (
        "lora_expand",
        "wide-slices",
        "inside = column < end",
        "inside = column < tl.minimum(end, 16384)",
    ),
    ("rms_norm", "prime", "weight.to(tl.float32)", "tl.maximum(weight.to(tl.float32), 0.0)"),
    ("reduce_splits", "first-empty", IN_ONE, ONE_BY_ONE),
    ("rms_norm", "wide-row", "column < SIZE", "column < tl.minimum(SIZE, 16384)"),
    ("per_token_quant_int8", "wide-row", "column < SIZE", "column < tl.minimum(SIZE, 16384)"),
    (
        "apply_token_bitmask",
        "many-masks",
        "row = tl.program_id(0)",
        "row = tl.minimum(tl.program_id(0), 131071)",
    ),
    (
        "paged_prefill",
        "many-tiles",
        "if row_begin >= query_len:",
        "if row_begin >= tl.minimum(query_len, 4096):",
    ),
    ("lora_shrink", "many-adapters", "if (slot >= 0) &", "if (slot >= 0) & (segment < 256) &"),
    ("lora_expand", "many-adapters", "if (slot >= 0) &", "if (slot >= 0) & (segment < 256) &"),
    (
        "paged_decode",
        "thousands",
        "range(begin, end,",
        "range(begin, tl.minimum(end, begin + 131072),",
    ),
    (
        "split_decode",
        "thousands",
        "range(begin, end,",
        "range(begin, tl.minimum(end, begin + 65536),",
    ),
    (
        "paged_prefill",
        "thousands",
        "range(first, end,",
        "range(first, tl.minimum(end, first + 131072),",
    ),
    (
        "paged_decode_int8",
        "thousands",
        "0), end, KEY_TILE",
        "0), tl.minimum(end, tl.maximum(end - window, 0) + 131072), KEY_TILE",
    ),
    ("paged_decode", "thousands", "seq_len - window", "seq_len - tl.minimum(window, 131072)"),
    ("paged_prefill", "thousands", "distance < window", "distance < tl.minimum(window, 131072)"),
    ("paged_decode_int8", "thousands", "(end - window", "(end - tl.minimum(window, 131072)"),
    (
        "paged_decode",
        "thousands",
        "visible = position < end\n",
        "visible = (position < end) & ((position - begin).to(tl.uint16) == position - begin)\n",
    ),
    ("paged_decode", "thousands", "begin + stretch,", "begin + stretch.to(tl.uint16),"),
    (
        "paged_decode_int8",
        "uneven",
        "weights = tl.exp(scores - new_max[:, None])",
        "weights = tl.exp2((scores - new_max[:, None]) * 1.4427)",
    ),
    (
        "paged_decode_int8",
        "uneven",
        "rescale = tl.exp(row_max - new_max)",
        "rescale = tl.exp2((row_max - new_max) * 1.4427)",
    ),
    (
        "paged_prefill",
        "uneven",
        "rescale = tl.exp(row_max - shift)",
        "rescale = tl.exp2((row_max - shift) * 1.4427)",
    ),
    ("silu_mul", "quiet", "tl.exp(-gate)", "tl.exp2(-gate * 1.4427)"),
    (
        "reduce_splits",
        "faint",
        'tl.exp(lse - tl.where(largest == float("-inf"), 0.0, largest))',
        'tl.exp2((lse - tl.where(largest == float("-inf"), 0.0, largest)) * 1.4427)',
    ),
    ("lora_shrink", "rank-300", "rank < RANK\n", "rank < tl.minimum(RANK, 256)\n"),
    ("lora_expand", "rank-300", "rank < RANK\n", "rank < tl.minimum(RANK, 256)\n"),
    (
        "apply_token_bitmask",
        "wide-vocab",
        "(token < vocab_size)",
        "(token < tl.minimum(vocab_size, 262144))",
    ),
    (
        "rejection_random_sample",
        "wide-vocab",
        "row * target_stride + draft",
        "row * target_stride + tl.minimum(draft, 262143)",
    ),
    (
        "rejection_random_sample",
        "wide-vocab",
        "row * draft_stride + draft",
        "row * draft_stride + tl.minimum(draft, 151935)",
    ),
    (
        "rejection_random_sample",
        "many",
        "= tl.program_id(0)",
        "= tl.minimum(tl.program_id(0), 1023)",
    ),
    ("w8a8_gemm", "longer", "range(0, K,", "range(0, tl.minimum(K, 65536),"),
    ("w4a16_gemm", "longer", "range(0, K,", "range(0, tl.minimum(K, 65536),"),
    ("w4a16_gemm", "longer", "// (K // GROUPS)", "// (K // GROUPS) % 1024"),
    ("lora_shrink", "wide-input", "range(0, IN_SIZE,", "range(0, tl.minimum(IN_SIZE, 65536),"),
    ("lora_expand", "wide-slices", "column < end", "column < tl.minimum(end, 65536)"),
    (
        "paged_decode",
        "ragged",
        "range(begin, end,",
        "range(begin, tl.minimum(end, begin + tl.load(seq_lens_ptr)),",
    ),
    ("paged_decode_int8", "ragged", "end, KEY", "tl.minimum(end, tl.load(seq_lens_ptr)), KEY"),
    (
        "lora_shrink",
        "long",
        "if (slot >= 0) &",
        "if (slot >= 0) & (first < tl.load(num_tokens_ptr)) &",
    ),
]
"""Limits and narrow numbers: spec, the case that is beyond, what stands there, and what instead."""


CONTIGUOUS = [
    ("store_kv", "prime", "token * key_stride", "key_ptr", "bfloat16", "ROW", "key_stride"),
    ("store_kv_int8", "prime", "token * key_stride", "key_ptr", "bfloat16",
     "tl.num_programs(1) * HEAD_DIM", "key_stride"),
    ("rms_norm", "wide-heads", "token * x_stride", "x_ptr", "bfloat16",
     "tl.num_programs(1) * SIZE", "x_stride"),
    ("rope", "many-heads", "token * x_stride", "x_ptr", "bfloat16", "NUM_HEADS * HEAD_DIM",
     "x_stride"),
    ("per_token_quant_int8", "row", "token * x_stride", "x_ptr", "float32", "SIZE", "x_stride"),
    ("w8a8_gemm", "tile", "[:, None] * x_stride", "output_ptr", "float32", "K", "x_stride"),
    ("w4a16_gemm", "tile", "[:, None] * x_stride", "x_ptr", "float32", "K", "x_stride"),
    ("lora_shrink", "segments", "[:, None] * x_stride", "x_ptr", "float32", "IN_SIZE", "x_stride"),
    ("lora_expand", "segments", "[:, None] * y_stride", "y_ptr", "float32", "OUT_SIZE", "y_stride"),
    ("apply_token_bitmask", "rows", "target * logits_stride", "logits_ptr", "bfloat16",
     "vocab_size", "logits_stride"),
]  # fmt: skip
"""Rows that are contiguous for one dtype: spec, case, offset, tensor, dtype, length and stride."""
ALONE = [
    ("rms_norm", "one-token", "head = tl.program_id(1)", "0", "tl.program_id(0)"),
    ("silu_mul", "one-row", "tl.program_id(1) * TILE", "0", "tl.program_id(0) * TILE"),
    ("store_kv_int8", "one-token", "head = tl.program_id(1)", "0", "tl.program_id(0)"),
    ("lora_shrink", "slices", "slice_id = tl.program_id(1)", "0", "tl.program_id(0)"),
    ("paged_decode", "all-heads", "kv_head = tl.program_id(1)", "0", "tl.program_id(0)"),
    ("apply_token_bitmask", "tail", "tl.program_id(1) * WORDS", "1", "tl.program_id(0) * WORDS"),
]
"""A program's number, read from another axis where an axis of the grid has one program: spec,
case, what stands there, the axis and what is read then."""
SPOILED = [
    ("rms_norm", "nan", "x32 = x.to(tl.float32)", "tl.where(x32 == x32, x32, 0.0)", "x32"),
    ("rms_norm", "inf", "x32 = x.to(tl.float32)", "tl.minimum(x32, 3e38)", "x32"),
    ("rms_norm", "inf-bf16", "x32 = x.to(tl.float32)", "tl.maximum(x32, -1e18)", "x32"),
    ("rope", "nan", "    tl.store(first_ptr", "tl.where(first == first, first, 0.0)", "first"),
    ("rope", "inf", "    tl.store(first_ptr", "tl.minimum(first, 3e38)", "first"),
    ("silu_mul", "nan", "    tl.store(output_ptr", "tl.where(up == up, up, 0.0)", "up"),
    ("silu_mul", "inf", "    tl.store(output_ptr", "tl.minimum(up, 3e38)", "up"),
    ("silu_mul", "inf", "    tl.store(output_ptr", "tl.minimum(gate, 3e38)", "gate"),
    (
        "reduce_splits",
        "nan",
        "    output = tl.sum(partial",
        "tl.where(partial == partial, partial, 0.0)",
        "partial",
    ),
    (
        "paged_decode",
        "nan",
        "        acc = acc * rescale[:, None]",
        "tl.where(value == value, value, 0.0)",
        "value",
    ),
    (
        "split_decode",
        "nan",
        "        acc = acc * rescale[:, None]",
        "tl.where(value == value, value, 0.0)",
        "value",
    ),
    (
        "paged_prefill",
        "nan",
        "        acc = acc * rescale[:, None]",
        "tl.where(value == value, value, 0.0)",
        "value",
    ),
    (
        "w8a8_gemm",
        "nan",
        "    output = total.to(tl.float32)",
        "tl.where(x_scale == x_scale, x_scale, 0.0)",
        "x_scale",
    ),
    (
        "w8a8_gemm",
        "nan",
        "    output = total.to(tl.float32)",
        "tl.minimum(weight_scale, 1e30)",
        "weight_scale",
    ),
    (
        "w4a16_gemm",
        "nan",
        "        total = tl.dot(x, tl.trans(weight), acc=total, input",
        "tl.where(x == x, x, 0.0)",
        "x",
    ),
    (
        "w4a16_gemm",
        "nan",
        "        total = tl.dot(x, tl.trans(weight), acc=total, input",
        "tl.where(weight == weight, weight, 0.0)",
        "weight",
    ),
    ("lora_shrink", "nan", "            acc = tl.dot(", "tl.where(x == x, x, 0.0)", "x"),
    ("lora_shrink", "nan", "            acc = tl.dot(", "tl.where(a == a, a, 0.0)", "a"),
    ("lora_expand", "nan", "        delta = tl.dot(", "tl.where(b == b, b, 0.0)", "b"),
    (
        "rms_norm",
        "nan-residual",
        "        x = (x.to(tl.float32)",
        "tl.where(residual == residual, residual, 0.0)",
        "residual",
    ),
    (
        "rms_norm",
        "nan-weight",
        "    normalised = (x32",
        "tl.where(weight == weight, weight, 0.0)",
        "weight",
    ),
    ("rope", "nan-angle", "    tl.store(first_ptr", "tl.where(cos == cos, cos, 0.0)", "cos"),
    ("rope", "nan-angle", "    tl.store(first_ptr", "tl.where(sin == sin, sin, 0.0)", "sin"),
    ("lora_expand", "nan", "        tl.store(y_ptr", "tl.where(y == y, y, 0.0)", "y"),
    (
        "lora_expand",
        "nan",
        "        tl.store(y_ptr",
        "tl.where(delta == delta, delta, 0.0)",
        "delta",
    ),
]
"""NaN or infinity that is made a number: spec, case, the line, and what a variable becomes before
or behind."""


EARLY = [
    ("per_token_quant_int8", "wide-row", "(x / scale + ROUND)",
     "((x / scale).to(tl.float16).to(tl.float32) + ROUND)"),
    ("store_kv_int8", "many", "(value / scale + ROUND)",
     "((value / scale).to(tl.float16).to(tl.float32) + ROUND)"),
    ("paged_decode_int8", "steady", "(weights * value_scale[None, :])",
     "(weights * value_scale.to(query.dtype).to(tl.float32)[None, :])"),
    ("paged_decode_int8", "steady-bf16", "(weights * value_scale[None, :])",
     "(weights * value_scale.to(query.dtype).to(tl.float32)[None, :])"),
    ("paged_decode_int8", "low-half", "rescale = tl.exp(row_max - new_max)",
     "rescale = tl.exp(row_max.to(query.dtype).to(tl.float32) - new_max)"),
    ("paged_decode_int8", "low-bf16", "rescale = tl.exp(row_max - new_max)",
     "rescale = tl.exp(row_max.to(query.dtype).to(tl.float32) - new_max)"),
    ("split_decode", "low-half", "lse_ptr + rows, row_max + tl.log(row_sum_or_1),",
     "lse_ptr + rows, (row_max + tl.log(row_sum_or_1)).to(query.dtype).to(tl.float32),"),
    ("split_decode", "deep-logits", "lse_ptr + rows, row_max + tl.log(row_sum_or_1),",
     "lse_ptr + rows, (row_max + tl.log(row_sum_or_1)).to(query.dtype).to(tl.float32),"),
    ("split_decode", "steady-bf16", "acc / row_sum_or_1[:, None], mask=in_tile)\n    if NUM",
     "(acc / row_sum_or_1[:, None]).to(query.dtype).to(tl.float32), mask=in_tile)\n    if NUM"),
]  # fmt: skip
"""Scales, quotients and what is kept between tiles and splits, rounded early: the error's size does
not tell, its bias does."""


HIDDEN = 'float("-inf"))'  # behind `where`: what a score is that nobody may see
FINITE = [
    ("paged_decode", "abyss", -1e5),
    ("split_decode", "abyss", -1e6),
    ("paged_prefill", "abyss", -1e6),
    ("paged_decode_int8", "abyss", -1e6),
]
"""Numbers that seem small enough to stand for -inf."""
BLOCKS = """\
    TILE: tl.constexpr = 16 if BLOCK_SIZE <= 16 else 32
    for start in range(begin // BLOCK_SIZE * BLOCK_SIZE, end, BLOCK_SIZE):
        position = start + tl.arange(0, TILE)
        visible = (position >= begin) & (position < end) & (tl.arange(0, TILE) < BLOCK_SIZE)
"""


QUANTIZED = "    tl.store(output_ptr + token * SIZE + column, quantized.to(tl.int8), mask=inside)"
PRODUCT = "    output_at = output_ptr + token[:, None] * N + row[None, :]"
PLACE = "    token = tl.where(place < num_accepted, draft, "
SHRUNK = "        tl.store(out_ptr, acc, mask=in_segment[:, None] & in_rank[None, :])"
EXPANDED = "        tl.store(y_ptr + y_offsets, y.to(tl.float32) + delta, mask=mask)"
PAGE = "        tl.store(key_cache_ptr + place + column, rounded.to(tl.int8), mask=inside)"
ATTENDED = "    tl.store(output_ptr + output_offsets, acc / row_sum_or_1[:, None], mask=in_tile)"
FORBIDDEN = "    forbidden = ((words[:, None] >> bit[None, :]) & 1) == 0"
CLAMPED = [
    ("per_token_quant_int8", "over", QUANTIZED,
     "    at = output_ptr + token * SIZE + tl.minimum(column, SIZE - 1)\n"
     "    tl.store(at, quantized.to(tl.int8))"),
    ("w8a8_gemm", "prime", PRODUCT,
     "    row, is_row = tl.minimum(row, N - 1), row >= 0\n" + PRODUCT),
    ("w4a16_gemm", "tail", PRODUCT,
     "    row, is_row = tl.minimum(row, N - 1), row >= 0\n" + PRODUCT),
    ("store_kv_int8", "prime", PAGE,
     "        at = key_cache_ptr + place + tl.minimum(column, HEAD_DIM - 1)\n"
     "        tl.store(at, rounded.to(tl.int8))"),
    ("paged_decode_int8", "odd-group",
     "    output_offsets = rows[:, None] * HEAD_DIM + dim[None, :]",
     "    output_offsets = rows[:, None] * HEAD_DIM + tl.minimum(dim, HEAD_DIM - 1)[None, :]\n"
     "    in_tile = (group < GROUP)[:, None] & (dim >= 0)[None, :]"),
    ("lora_shrink", "odd", SHRUNK,
     "        out_ptr = hidden_ptr + (slice_id * total_tokens + row[:, None]) * RANK\n"
     "        out_ptr += tl.minimum(rank, RANK - 1)[None, :]\n"
     "        tl.store(out_ptr, acc, mask=in_segment[:, None])"),
    ("lora_expand", "uneven", EXPANDED,
     "        y_offsets = row[:, None] * y_stride + tl.minimum(column, end - 1)[None, :]\n"
     "        tl.store(y_ptr + y_offsets, y.to(tl.float32) + delta, mask=in_segment[:, None])"),
    ("rejection_random_sample", "all", "+ place, token, mask=place <= max_drafts)",
     "+ tl.minimum(place, max_drafts), token)"),
    ("apply_token_bitmask", "nearly-all", FORBIDDEN,
     "    token = tl.minimum(token, vocab_size - 1)\n" + FORBIDDEN),
]  # fmt: skip
"""Addresses that are clamped where a mask should be: lanes without work write over one that has.
Spec, a case whose size no tile fits, what stands there, and what instead."""
THROUGH_MEMORY = [
    ("per_token_quant_int8", "over", QUANTIZED,
     QUANTIZED + "\n    turned = output_ptr + token * SIZE + (SIZE - 1 - column)\n"
     "    tl.store(turned, tl.load(turned, mask=inside), mask=inside)"),
    ("store_kv_int8", "prime", PAGE,
     PAGE + "\n        turned = key_cache_ptr + place + (HEAD_DIM - 1 - column)\n"
     "        tl.store(turned, tl.load(turned, mask=inside), mask=inside)"),
    ("lora_shrink", "odd", SHRUNK,
     SHRUNK + "\n        turned = hidden_ptr + (slice_id * total_tokens + row[:, None]) * RANK\n"
     "        turned += (RANK - 1 - rank)[None, :]\n"
     "        mask = in_segment[:, None] & in_rank[None, :]\n"
     "        tl.store(turned, tl.load(turned, mask=mask), mask=mask)"),
    ("lora_expand", "uneven", EXPANDED,
     EXPANDED + "\n        column = begin + end - 1 - column\n"
     "        turned = y_ptr + row[:, None] * y_stride + column[None, :]\n"
     "        mask = mask & (column >= begin)[None, :] & (end - begin <= OUT_TILE)\n"
     "        tl.store(turned, tl.load(turned, mask=mask), mask=mask)"),
    ("w8a8_gemm", "one", PRODUCT,
     PRODUCT + "\n    mask = is_token[:, None] & is_row[None, :] & (N <= ROW_TILE)\n"
     "    tl.store(output_at, output, mask=mask)\n"
     "    turned = output_ptr + token[:, None] * N + (N - 1 - row)[None, :]\n"
     "    tl.store(turned, tl.load(turned, mask=mask), mask=mask)"),
    ("w4a16_gemm", "tail", PRODUCT,
     PRODUCT + "\n    mask = is_token[:, None] & is_row[None, :] & (N <= ROW_TILE)\n"
     "    tl.store(output_at, total, mask=mask)\n"
     "    turned = output_ptr + token[:, None] * N + (N - 1 - row)[None, :]\n"
     "    tl.store(turned, tl.load(turned, mask=mask), mask=mask)"),
    ("paged_decode_int8", "odd-group", ATTENDED,
     ATTENDED + "\n    dim = HEAD_DIM - 1 - dim\n"
     "    turned = output_ptr + rows[:, None] * HEAD_DIM + dim[None, :]\n"
     "    tl.store(turned, tl.load(turned, mask=in_tile), mask=in_tile)"),
    ("rejection_random_sample", "ragged", PLACE,
     "    row_ptr = output_ptr + request * (max_drafts + 1)\n"
     "    tl.store(row_ptr + place, place, mask=place <= max_drafts)\n"
     "    place = max_drafts - tl.load(row_ptr + max_drafts - place, mask=place <= max_drafts,"
     " other=-1)\n"
     "    place = max_drafts - place\n" + PLACE),
]  # fmt: skip
"""A tile that turns round through memory, with no barrier between store and load."""


PROMISED = [
    ("store_kv", "sliced", "token = tl.program_id(0)", "key_stride"),
    ("store_kv_int8", "odd-size", "token = tl.program_id(0)", "value_stride"),
    ("rms_norm", "almost", "token = tl.program_id(0)", "x_stride"),
    ("rope", "narrow", "token = tl.program_id(0)", "x_stride"),
    ("per_token_quant_int8", "prime", "token = tl.program_id(0)", "x_stride"),
    ("w8a8_gemm", "prime", "token = tl.program_id(0)", "x_stride"),
    ("w4a16_gemm", "tail", "token = tl.program_id(0)", "x_stride"),
    ("paged_decode", "small-scale", "request = tl.program_id(0)", "query_stride"),
    ("paged_decode_int8", "odd-group", "request = tl.program_id(0)", "query_stride"),
    ("paged_prefill", "small-scale", "request = tl.program_id(2)", "query_stride"),
    ("paged_prefill", "ragged", "request = tl.program_id(2)", "table_stride"),
    ("lora_shrink", "odd", "segment = tl.program_id(2)", "x_stride"),
    ("lora_expand", "uneven", "segment = tl.program_id(2)", "y_stride"),
    ("apply_token_bitmask", "tail", "row = tl.program_id(0)", "logits_stride"),
    ("rejection_random_sample", "ragged", "request = tl.program_id(0)", "target_stride"),
]
"""What a tutorial promises the compiler of every stride, and a case in which it is none."""


RUNS = [
    ("store_kv", "prime", "inside = column < ROW\n",
     "inside = column < ROW\n"
     "        column = tl.max_contiguous(tl.where(inside, column, 0), ROW_TILE)\n"),
    ("w8a8_gemm", "prime", "    is_token, is_row = token",
     "    row = tl.max_contiguous(tl.multiple_of(row % N, ROW_TILE), ROW_TILE)\n"
     "    is_token, is_row = token"),
    ("lora_shrink", "segments", "        rank = tl.arange(0, RANK_TILE)",
     "        row = tl.max_contiguous(row, ROW_TILE)\n        rank = tl.arange(0, RANK_TILE)"),
    ("paged_decode", "block-1", "        slot = block",
     "        block = tl.max_constancy(block, 16)\n        slot = block"),
    ("paged_prefill", "ragged", "        slot = block",
     "        block = tl.max_constancy(block, 32)\n        slot = block"),
]  # fmt: skip
"""Neighbours of which a kernel says that they follow each other, or are equal, and a case in which
they are not."""


ROW_SUM = "    row_sum = tl.zeros("
ACCUMULATE = "        acc = tl.dot(weights"
BY_HALVES = [
    *((spec, ROW_SUM, "query") for spec in ("paged_decode", "split_decode", "paged_prefill",
                                            "paged_decode_int8")),
    *((spec, ACCUMULATE, "value") for spec in ("paged_decode", "split_decode", "paged_prefill")),
    *((spec, "        scores = tl.dot(query", "key") for spec in ("paged_decode", "paged_prefill")),
    ("paged_decode_int8", ACCUMULATE, "weights"),
    ("reduce_splits", "    output = tl.sum(partial", "partial"),
    ("rope", "    tl.store(first_ptr", "first"),
    ("rope", "    tl.store(first_ptr", "second"),
    ("lora_shrink", "            acc = tl.dot(", "x"),
    ("lora_shrink", "            acc = tl.dot(", "a"),
    ("lora_expand", "        delta = tl.dot(", "h"),
    ("lora_expand", "        delta = tl.dot(", "b"),
    ("lora_expand", "        tl.store(y_ptr", "y"),
    ("w8a8_gemm", "    output_at = output_ptr", "output"),
    ("w4a16_gemm", "        total = tl.dot(x", "x"),
    ("w4a16_gemm", "        total = tl.dot(x", "weight"),
    ("store_kv_int8", "        scale = tl.maximum(tl.max(tl.abs(key)", "key"),
]  # fmt: skip
"""Numbers that take the way of float16 in a kernel for bfloat16: more exact, until they are large
or small. Spec, the line before which they do, and their name."""
TOGETHER_WRONG = [
    ("rms_norm", "one token", "a residual", "    weight = tl.load(",
     "HAS_RESIDUAL and tl.num_programs(0) == 1", "x32"),
    ("rms_norm", "rows of 63", "an eps of 0.4", "    weight = tl.load(",
     "(SIZE == 63) & (eps > 0.1)", "x32"),
    ("rope", "one token", "heads of 70", "    tl.store(first_ptr",
     "(HEAD_DIM == 70) & (tl.num_programs(0) == 1)", "first"),
    ("silu_mul", "one row", "of 97", "    up = tl.load(",
     "(SIZE == 97) & (tl.num_programs(0) == 1)", "gate"),
    ("store_kv", "one token", "of 35", "        value = tl.load(",
     "(ROW % 2 > 0) & (tl.num_programs(0) == 1)", "key"),
    *((spec, "a window of 13", "blocks of 5", "        weights, rescale, row_max",
       "(window == 13) & (BLOCK_SIZE == 5)", "scores")
      for spec in ("paged_decode", "split_decode", "paged_prefill")),
    ("paged_decode_int8", "3 heads share one", "scores times 0.3", "        new_max =",
     "(GROUP == 3) & (scale > 0.25)", "scores"),
    ("paged_prefill", "70 tokens behind 70", "3 key/value heads", "        weights, rescale,",
     "(row_begin > 0) & (num_heads > GROUP)", "scores"),
    ("reduce_splits", "of 35", "6 splits", "    output = tl.sum(",
     "(NUM_SPLITS == 6) & (HEAD_DIM == 35)", "partial"),
    ("w8a8_gemm", "70 tokens", "130 rows", "    x_scale = tl.load(",
     "(tl.program_id(0) > 0) & (tl.program_id(1) > 0)", "total"),
    ("w4a16_gemm", "70 tokens", "130 rows", "    output_at = output_ptr",
     "(tl.program_id(0) > 0) & (tl.program_id(1) > 0)", "total"),
    ("lora_shrink", "rank 5", "3 slices", "        out_ptr = hidden_ptr",
     "(RANK == 5) & (num_slices == 3)", "acc"),
    ("lora_expand", "slices of 65, 1 and 41", "rank 24", "        y_offsets = row",
     "(RANK == 24) & (NUM_SLICES == 3)", "delta"),
]  # fmt: skip
"""What is halved only where two things meet: spec, the words for them, the line before which it is,
when, and what."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as running:
        yield running


def refused(bench: Bench, spec: str, case: str, old: str, new: str) -> None:
    """The engine's kernel passes a case; with another text in one place it does not."""
    text = reference_source(SPECS[spec])
    assert old in text
    fault = bench.fault(text.replace(old, new), spec, case)
    assert fault and (fault.spec, fault.case) == (spec, case), fault


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "line", "tile", "size"), CONSTANTS)
def test_no_tile_of_a_fixed_size_is_large_enough(
    bench: Bench, spec: str, case: str, line: str, tile: str, size: int
) -> None:
    refused(bench, spec, case, line, FIXED.format(tile, size, line))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "old", "new"), LIMITS)
def test_no_limit_is_far_enough_and_no_narrow_number_wide_enough(
    bench: Bench, spec: str, case: str, old: str, new: str
) -> None:
    refused(bench, spec, case, old, new)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "offset", "tensor", "dtype", "row", "stride"), CONTIGUOUS)
def test_no_dtype_has_contiguous_rows_of_its_own(
    bench: Bench, spec: str, case: str, offset: str, tensor: str, dtype: str, row: str, stride: str
) -> None:
    there = f"{tensor}.dtype.element_ty == tl.{dtype}"
    new = offset.replace(stride, f"({row} if {there} else {stride})")
    refused(bench, spec, case, offset, new)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "old", "axis", "other"), ALONE)
def test_a_single_program_along_an_axis_takes_its_number_from_its_own(
    bench: Bench, spec: str, case: str, old: str, axis: str, other: str
) -> None:
    name, _, value = old.rpartition("= ")
    new = f"({other} if tl.num_programs({axis}) == 1 else {value})"
    refused(bench, spec, case, old, f"{name}= {new}" if name else new)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "old", "new"), EARLY)
def test_no_scale_and_no_quotient_is_rounded_early(
    bench: Bench, spec: str, case: str, old: str, new: str
) -> None:
    refused(bench, spec, case, old, new)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "line", "value", "name"), SPOILED)
def test_nan_is_not_made_a_number(
    bench: Bench, spec: str, case: str, line: str, value: str, name: str
) -> None:
    indent = line[: len(line) - len(line.lstrip())]
    change = f"{indent or '    '}{name} = {value}\n"
    new = change + line if indent else f"{line}\n{change}"
    refused(bench, spec, case, line, new)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "line", "name"), BY_HALVES)
def test_bfloat16_takes_no_way_through_float16(
    bench: Bench, spec: str, line: str, name: str
) -> None:
    indent = line[: len(line) - len(line.lstrip())]
    arguments = SPECS[spec].plan(**build(spec, "vast", 1)[0])[0].args.items()
    tensor = next(n for n, t in arguments if isinstance(t, Tensor) and t.dtype == torch.bfloat16)
    there = f"{tensor}.dtype.element_ty == tl.bfloat16"
    change = f"{indent}if {there}:\n{indent}    {name} = {name}.to(tl.float16).to({name}.dtype)\n"
    refused(bench, spec, "vast", line, change + line)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "one", "other", "line", "condition", "name"), TOGETHER_WRONG)
def test_what_is_wrong_only_where_two_things_meet_is_wrong_in_a_case(
    bench: Bench, spec: str, one: str, other: str, line: str, condition: str, name: str
) -> None:
    cases = [case for case in cases_of(spec) if case.name.startswith("mixed")]
    case = next(case.name for case in cases if one in case.about and other in case.about)
    indent = line[: len(line) - len(line.lstrip())]
    change = f"{indent}if {condition}:\n{indent}    {name} = ({name} / 2).to({name}.dtype)\n"
    refused(bench, spec, case, line, change + line)


def test_no_atomic_writes_over_what_an_output_happens_to_hold(bench: Bench) -> None:
    """The larger of -7, which stands there, and of a token is the token; on a GPU it is luck."""
    text = reference_source(SPECS["rejection_random_sample"])
    changed = text.replace("tl.store(output_ptr", "tl.atomic_max(output_ptr")
    fault = bench.fault(changed, "rejection_random_sample", "one")
    assert changed != text and fault and fault.kind == "uninitialised"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "line", "stride"), PROMISED)
def test_no_stride_is_a_multiple_of_what_is_promised(
    bench: Bench, spec: str, case: str, line: str, stride: str
) -> None:
    refused(bench, spec, case, line, f"{stride} = tl.multiple_of({stride}, 16)\n    {line}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "old", "new"), RUNS)
def test_no_run_of_neighbours_is_as_long_as_is_promised(
    bench: Bench, spec: str, case: str, old: str, new: str
) -> None:
    refused(bench, spec, case, old, new)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "number"), FINITE)
def test_no_finite_number_is_far_enough_from_all_scores(
    bench: Bench, spec: str, case: str, number: float
) -> None:
    refused(bench, spec, case, HIDDEN, f"{number})")


def test_a_block_may_be_longer_than_a_tile(bench: Bench) -> None:
    """A tile that begins with each block, and misses the rest of a long one."""
    old = """\
    for start in range(begin, end, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        visible = position < end
"""
    refused(bench, "paged_decode", "block-100", old, BLOCKS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "old", "new"), CLAMPED)
def test_no_clamped_address_stands_for_a_mask(
    bench: Bench, spec: str, case: str, old: str, new: str
) -> None:
    refused(bench, spec, case, old, new)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("spec", "case", "old", "new"), THROUGH_MEMORY)
def test_no_tile_turns_round_in_memory_without_a_barrier(
    bench: Bench, spec: str, case: str, old: str, new: str
) -> None:
    text = reference_source(SPECS[spec])
    assert old in text
    fault = bench.fault(text.replace(old, new), spec, case)
    assert fault and fault.case == case and fault.kind in ("race", "uninitialised"), fault


# ---------------------------------------------------------------- the checker without a check
def test_each_check_that_can_be_taken_out_is_there() -> None:
    entries = corpus_command.weakened()
    asked = {probe.name for probe in selftest.probes()} | set(selftest.QUESTIONS)
    kinds = {bug.kind for bug in selftest.controls.BUGS}
    for entry in entries:
        text = (find_root() / "labkit" / "kernels" / entry.file).read_text(encoding="utf-8")
        assert text.count(entry.old) == 1, entry.about
        assert set(entry.words) <= asked | kinds, entry.about
    found = {word for entry in entries for word in entry.words}
    assert kinds <= found, "no check of the checker stands for this kind of bug"


def test_a_check_that_is_missed_and_one_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "phases").mkdir()
    for package in ("labkit", "mini_vllm"):
        shutil.copytree(find_root() / package, tmp_path / package)
    known = {entry.about: entry for entry in corpus_command.weakened()}
    assert corpus_command.unnoticed(tmp_path, known["NaN is accepted"]) == ""
    useless = corpus_command.Weakened(
        "nothing", "verdict/numbers.py", "BITS = {", "BITS = {", ("nan",)
    )
    assert "1 of 1 are found" in corpus_command.unnoticed(tmp_path, useless)
