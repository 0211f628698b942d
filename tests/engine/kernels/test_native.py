"""`cpu.cpp` computes what PyTorch's operations compute, and the engine runs without it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.cpu import CpuAttention, PagedTokens
from mini_vllm.attention.reference import ReferenceAttention
from mini_vllm.core.scheduler_output import GrammarOutput
from mini_vllm.kernels import native, native_states
from mini_vllm.model import layers, rope
from mini_vllm.model.mixers.chunks import Chunks
from mini_vllm.model.mixers.gated_delta import chunk_gated_delta_rule
from mini_vllm.structured_output.utils import apply_grammar_bitmask

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
ALONE = pytest.mark.parametrize("helpers", [0], indirect=True, ids=["alone"])
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(native, "library", lambda: None)


@pytest.fixture(autouse=True, params=[0, 2], ids=["alone", "two helpers"])
def helpers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything is computed by one thread, and by three."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    native.use_more_threads(request.param)
    if request.param:
        monkeypatch.setattr(native, "LEAST_PARALLEL", 1)
    yield
    native.use_more_threads(0)
    torch.set_num_threads(before)


def both(compute: Callable[[], Tensor], off: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """The result with the library, and that of PyTorch's operations."""
    fast = compute()
    off()
    return fast, compute()


def same(fast: Tensor, plain: Tensor) -> None:
    """Equal in bfloat16, whose roundings are the same; in float32 sums have another order."""
    tolerance = 0 if fast.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(fast, plain, rtol=tolerance, atol=tolerance, equal_nan=True)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 37), (3, 128), (2, 3, 40), (7, 5, 16)])
def test_norms(
    dtype: torch.dtype, shape: tuple[int, ...], without_library: Callable[[], None]
) -> None:
    wide = torch.randn(shape[0], 3 * shape[-1] * 5).to(dtype)  # rows of a wider matrix
    x = wide[:, : torch.Size(shape[1:]).numel()].view(shape) * 3
    x.view(-1)[0] = float("nan")
    weight = torch.randn(shape[1:]).to(dtype)
    same(*both(lambda: layers.rms_norm(x, weight, 1e-5), without_library))


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_a_sum(dtype: torch.dtype, without_library: Callable[[], None]) -> None:
    x, residual, weight = (torch.randn(n, 50).to(dtype) for n in (6, 6, 1))
    fast = layers.add_rms_norm(x, residual.clone(), weight[0], 1e-6)
    without_library()
    for ours, plain in zip(fast, layers.add_rms_norm(x, residual, weight[0], 1e-6), strict=True):
        same(ours, plain)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "turning"), [(16, 16), (40, 40), (20, 6)])
def test_rotation(
    dtype: torch.dtype, size: int, turning: int, without_library: Callable[[], None]
) -> None:
    qkv = torch.randn(9, 7, size).to(dtype)
    cos, sin = (torch.randn(9, 1, turning).to(dtype) for _ in range(2))
    same(*both(lambda: rope.apply_rope(qkv.clone()[:, :5], cos, sin), without_library))


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_activation(dtype: torch.dtype, without_library: Callable[[], None]) -> None:
    gate_up = torch.randn(11, 2 * 33).mul(20).to(dtype)
    gate_up[3, 4], gate_up[4, 5], gate_up[5, 6] = float("nan"), float("inf"), -1e30
    fast, plain = both(lambda: layers.silu_mul(gate_up), without_library)
    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-6, equal_nan=True)


def scene(
    lens: list[tuple[int, int]], block_size: int, kv_heads: int, size: int, dtype: torch.dtype
) -> tuple[AttentionMetadata, Tensor]:
    """A cache full of numbers, and requests with (new tokens, context) whose pages lie anywhere."""
    needed = [-(-context // block_size) for _, context in lens]
    free = torch.randperm(sum(needed)).add(1).tolist()
    tables = [[free.pop() for _ in range(n)] for n in needed]
    metadata = AttentionMetadata.from_lists(*zip(*lens, strict=True), tables, block_size)
    return metadata, torch.randn(2, sum(needed) + 1, block_size, kv_heads, size).to(dtype)


@needs_compiler
@pytest.mark.parametrize("window", [None, 1, 7, 1000])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize("is_narrow", [True, False])
def test_attention_equals_the_reference(
    window: int | None,
    group: int,
    block_size: int,
    is_narrow: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decodes, drafts to verify and prompts in one step; float32 against plain torch."""
    monkeypatch.setattr(native, "has_narrow_mkl", lambda: is_narrow)
    lens = [(1, 1), (1, 40), (1, 17), (4, 4), (3, 33), (17, 514), (16, 50), (18, 21), (120, 290)]
    metadata, kv_cache = scene(lens, block_size, 2, 32, torch.float32)
    query = torch.randn(sum(n for n, _ in lens), 2 * group, 32)
    actual = CpuAttention().forward(query, kv_cache, metadata, 0.3, window)
    in_place, *others = metadata.plan
    assert isinstance(in_place, PagedTokens)
    assert len(in_place.rows) == 26 + (155 if is_narrow else 0)
    assert len(others) == (0 if is_narrow else 3)
    metadata.plan = None
    expected = ReferenceAttention().forward(query, kv_cache, metadata, 0.3, window)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize(("dtype", "cache"), list(itertools.product(DTYPES, DTYPES)))
def test_attention_of_rounded_numbers(dtype: torch.dtype, cache: torch.dtype) -> None:
    lens = [(1, 30), (1, 9), (2, 12)]
    metadata, kv_cache = scene(lens, 4, 3, 64, cache)
    query = torch.randn(4, 6, 64).to(dtype)
    actual = CpuAttention().forward(query, kv_cache, metadata, 0.1).float()
    metadata.plan = None
    wanted = ReferenceAttention().forward(query.float(), kv_cache.float(), metadata, 0.1)
    torch.testing.assert_close(actual, wanted, rtol=1e-2, atol=1e-2)


def attend_prompt(query: Tensor, kv_cache: Tensor, table: Tensor, end: int, window: int) -> Tensor:
    """By our kernel, whatever processor this is: of one request's tokens, the last sees `end`."""
    rows = torch.zeros(len(query), dtype=torch.int32)
    ends = torch.arange(end - len(query), end, dtype=torch.int32) + 1
    return native.paged_attention(query, kv_cache, table, rows, ends, 0.2, window)


@needs_compiler
@pytest.mark.parametrize(("dtype", "cache"), list(itertools.product(DTYPES, DTYPES)))
@pytest.mark.parametrize("size", [16, 48, 80, 128])
@pytest.mark.parametrize("window", [40, 300, 1 << 62])
def test_prompts_longer_than_a_span(
    dtype: torch.dtype, cache: torch.dtype, size: int, window: int
) -> None:
    """Whole, and behind a context: as plain torch has it, but for the rounding of weights."""
    metadata, kv_cache = scene([(530, 530)], 16, 2, size, cache)
    query = torch.randn(530, 6, size).to(dtype)
    whole = attend_prompt(query, kv_cache, metadata.block_table, 530, window)
    wanted = ReferenceAttention().forward(query.float(), kv_cache.float(), metadata, 0.2, window)
    near = 1e-5 if dtype == cache == torch.float32 else 2e-2
    torch.testing.assert_close(whole.float(), wanted, rtol=near, atol=near)
    for cut in (17, 256, 300, 513):
        parts = [
            attend_prompt(part, kv_cache, metadata.block_table, end, window)
            for part, end in ((query[:cut], cut), (query[cut:], 530))
        ]
        assert torch.equal(torch.cat(parts), whole), cut


@needs_compiler
def test_what_a_window_has_left_is_not_read() -> None:
    """Its pages belong to other requests by now, or are free."""
    metadata, kv_cache = scene([(100, 600)], 16, 2, 32, torch.float32)
    query = torch.randn(100, 4, 32)
    out = attend_prompt(query, kv_cache, metadata.block_table, 600, 70)
    left = (500 - 69) // 16
    kv_cache[:, metadata.block_table[0, :left].long()] = float("nan")
    assert torch.equal(attend_prompt(query, kv_cache, metadata.block_table, 600, 70), out)
    metadata.block_table[0, :left] = -1
    assert torch.equal(attend_prompt(query, kv_cache, metadata.block_table, 600, 70), out)
    metadata.block_table[0, left] = -1
    with pytest.raises(IndexError, match="token 0 reads a page outside the cache"):
        attend_prompt(query, kv_cache, metadata.block_table, 600, 70)


@needs_compiler
def test_threads_change_nothing() -> None:
    metadata, kv_cache = scene([(1, 300)] * 12 + [(120, 300)], 16, 4, 64, torch.bfloat16)
    query = torch.randn(132, 8, 64).bfloat16()
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results.append(CpuAttention().forward(query, kv_cache, metadata, 0.1))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    return native.linear(x, native.pack(weight), None)


@needs_compiler
@ALONE
def test_several_threads_compute_at_once() -> None:
    x, weight = torch.randn(64, 512), torch.randn(1024, 512)
    native.use_more_threads(0)
    alone = multiply(x, weight)
    native.use_more_threads(2)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: multiply(x, weight), range(200)):
            assert torch.equal(result, alone)


@needs_compiler
@ALONE
def test_helpers_sleep_between_passes() -> None:
    """They stay awake for the next loop of a pass, and take no time when none comes."""
    x, blocks = torch.randn(8, 512), native.pack(torch.randn(1024, 512))
    native.use_more_threads(2)
    native.linear(x, blocks, None)
    time.sleep(0.1)  # until they sleep, also where they have to wait for a core
    before = time.process_time()
    time.sleep(0.05)
    assert time.process_time() - before < 0.01


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@ALONE
def test_a_forked_child_has_helpers_of_its_own() -> None:
    code = """if 1:
        import os, signal, torch
        from mini_vllm.kernels import native, native_states
        torch.set_num_threads(1)  # what PyTorch shares out by itself does not outlive a fork
        native.use_more_threads(2)
        x, packed = torch.randn(64, 512), native.pack(torch.randn(1024, 512))
        before = native.linear(x, packed, None)
        child = os.fork()
        signal.alarm(60)
        assert torch.equal(native.linear(x, packed, None), before)
        if not child:  # the parent's helpers are not here
            tasks = "/proc/self/task"
            os._exit(os.path.isdir(tasks) and len(os.listdir(tasks)) != 3)
        assert os.waitpid(child, 0)[1] == 0
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_compiler
@ALONE
@pytest.mark.skipif(sys.platform != "linux", reason="limits threads in Linux's way")
def test_where_no_thread_may_be_started_one_computes_alone() -> None:
    code = """if 1:
        import os, resource, torch
        from mini_vllm.kernels import native, native_states
        torch.set_num_threads(1)
        x, packed = torch.randn(64, 512), native.pack(torch.randn(1024, 512))
        alone = native.linear(x, packed, None)
        native.use_more_threads(2)
        if os.getuid() == 0:  # whom the limit on processes does not bind
            os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        assert torch.equal(native.linear(x, packed, None), alone)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_a_broken_request_does_not_harm_others() -> None:
    """NaN in one request's pages is NaN in its output, and nowhere else."""
    metadata, kv_cache = scene([(1, 20), (1, 20)], 4, 2, 16, torch.float32)
    kv_cache[:, metadata.block_table[0].long()] = float("nan")
    out = CpuAttention().forward(torch.randn(2, 4, 16), kv_cache, metadata, 0.1)
    assert out[0].isnan().all() and out[1].isfinite().all()


@needs_compiler
@pytest.mark.parametrize(("dtype", "cache"), list(itertools.product(DTYPES, DTYPES)))
def test_store(dtype: torch.dtype, cache: torch.dtype) -> None:
    kv_cache = torch.zeros(2, 3, 4, 2, 16, dtype=cache)
    wide = torch.randn(4, 6, 16).to(dtype)
    key, value = wide[:, 1:3], wide[:, 4:]
    CpuAttention().store(key, value, kv_cache, torch.tensor([9, -1, 4, 11]))
    flat = kv_cache.flatten(1, 2)
    for token, slot in ((0, 9), (2, 4), (3, 11)):
        assert torch.equal(flat[0, slot], key[token].to(cache))
        assert torch.equal(flat[1, slot], value[token].to(cache))
    assert int(flat.abs().sum(dim=(2, 3)).count_nonzero()) == 6


@needs_compiler
def test_what_lies_outside_the_cache_is_an_error() -> None:
    """A wrong table must not read, or write, memory outside the cache."""
    metadata, kv_cache = scene([(1, 20), (1, 20)], 4, 2, 16, torch.float32)
    backend, keys = CpuAttention(), torch.randn(1, 2, 16)
    with pytest.raises(IndexError, match="slot 44 of token 0; the cache has 44 slots"):
        backend.store(keys, keys, kv_cache, torch.tensor([44]))
    for wrong in (11, -1, 2**31 - 1):
        metadata.block_table[1, 2] = wrong
        with pytest.raises(IndexError, match="token 1 reads a page outside the cache"):
            backend.forward(torch.randn(2, 4, 16), kv_cache, metadata, 0.1)


def test_heads_of_another_size_go_the_other_way() -> None:
    metadata, kv_cache = scene([(1, 9)], 4, 2, 20, torch.float32)
    query = torch.randn(1, 4, 20)
    actual = CpuAttention().forward(query, kv_cache, metadata, 0.3)
    assert not isinstance(metadata.plan[0], PagedTokens)
    metadata.plan = None
    expected = ReferenceAttention().forward(query, kv_cache, metadata, 0.3)
    torch.testing.assert_close(actual, expected)


ASK = "from mini_vllm.kernels import native; print(native.library())"


@ALONE
@pytest.mark.parametrize(
    "changes",
    [
        {"MINI_VLLM_NATIVE": "0"},
        {"CXX": "", "PATH": "/nowhere"},
        {"CXX": "/no/such/compiler"},
        {"CXX": "false"},
    ],
    ids=["switched off", "no compiler", "not where it should be", "a compiler that fails"],
)
def test_without_the_library_all_goes_on(changes: dict[str, str], tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)} | changes
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "None", done.stderr
    assert not list(tmp_path.rglob("*.so"))
    warned = "the C++ kernels are not used" in done.stderr
    assert warned == ("CXX" in changes)


@needs_compiler
@ALONE
def test_it_is_built_once(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or "g++"
    first = native.build(compiler, tmp_path)
    changed = first.stat().st_mtime_ns
    assert native.build(compiler, tmp_path) == first
    assert first.stat().st_mtime_ns == changed
    assert list(tmp_path.iterdir()) == [first]


WIDE_TESTS = (
    "tests/engine/kernels/test_native.py",
    "tests/engine/quantization/test_kernels.py",
    "tests/engine/whole/test_narrow_bfloat16.py",
)


@needs_compiler
@ALONE
@pytest.mark.slow
@pytest.mark.parametrize("width", [4, 8, 16])
def test_registers_of_other_processors(width: int, tmp_path: Path) -> None:
    """All of it once more, as a processor without AVX or one with AVX512 would have it built.

    The compiler makes of each wide register some that this processor has: the same code, but for
    those instructions that have names of their own.
    """
    compiler = f"{os.environ.get('CXX') or 'g++'} -DWIDTH={width}"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "CXX": compiler}
    run = partial(subprocess.run, capture_output=True, text=True, env=environment)
    done = run([sys.executable, "-c", ASK])
    assert str(tmp_path) in done.stdout, done.stderr
    words = ("-q", "-p", "no:xdist", "-m", "not slow", "-k", "not torch_gives", *WIDE_TESTS)
    done = run([sys.executable, "-m", "pytest", *words])
    assert done.returncode == 0, done.stdout
    assert "no C++ compiler" not in done.stdout


@needs_compiler
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(32, 1), (64, 33), (96, 192)])
def test_a_product(rows: int, columns: int, has_bias: bool) -> None:
    weight, bias = torch.randn(rows, columns), torch.randn(rows) if has_bias else None
    blocks = native.pack(weight)
    for num_tokens in (*range(1, native.FEW_TOKENS + 1), 300, 601):
        x = torch.randn(num_tokens, 2 * columns)[:, ::2]  # rows and columns apart
        wanted = torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(native.linear(x, blocks, bias), wanted, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 12, 13, 24, 25, 300, 600])
@pytest.mark.parametrize(("rows", "columns"), [(32, 2), (96, 134), (64, 700)])
def test_a_product_with_a_weight_in_bfloat16(
    rows: int, columns: int, num_tokens: int, dtype: torch.dtype
) -> None:
    """Where the processor multiplies bfloat16, x is rounded to it; sums are in float32."""
    weight, bias = torch.randn(rows, columns).bfloat16(), torch.randn(rows)
    x = torch.randn(num_tokens, columns).to(dtype)
    kept = x.bfloat16() if native.multiplies_bf16() else x
    wanted = torch.nn.functional.linear(kept.double(), weight.double(), bias.double())
    y = native.linear(x, native.pack(weight), bias)
    tolerance = 1e-4 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(y, wanted.to(dtype), rtol=tolerance, atol=tolerance)


@needs_compiler
def test_a_packed_weight_is_unpacked() -> None:
    for dtype in DTYPES:
        weight = torch.randn(96, 34).to(dtype)
        assert torch.equal(native.unpack(native.pack(weight)), weight)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tokens_product_does_not_depend_on_its_company(dtype: torch.dtype) -> None:
    """To the bit: a draft that is verified beside others is what decoding alone would say."""
    blocks, x = native.pack(torch.randn(64, 130).to(dtype)), torch.randn(native.FEW_TOKENS, 130)
    alone = torch.cat([native.linear(row[None], blocks, None) for row in x])
    for num_tokens in range(1, len(x) + 1):
        together = native.linear(x[:num_tokens], blocks, None)
        assert torch.equal(together, alone[:num_tokens])


@needs_compiler
@ALONE
@pytest.mark.parametrize("vocab_size", [5, 64, 70])
def test_masks_forbid_what_pytorch_forbids(
    vocab_size: int, without_library: Callable[[], None]
) -> None:
    """In rows that lie apart and in any order; tokens behind the last word are forbidden, too."""
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 2), dtype="<i4")
    words[1] = -1, 0
    masks = GrammarOutput({"c": (2, 1), "a": (0, 2)}, words.tobytes())
    wide = torch.randn(5, 80)

    def compute() -> Tensor:
        logits = wide.clone()[:, :vocab_size]
        apply_grammar_bitmask(logits, masks, ["a", "free", "b", "c"], [2, 1, 1, 1])
        return logits

    fast, plain = both(compute, without_library)
    assert torch.equal(fast, plain) and fast[2:4].isfinite().all()
    assert fast[1, : min(vocab_size, 32)].isfinite().all() and not fast[1, 32:].isfinite().any()


@ALONE
def test_a_cache_at_the_same_address_is_another_one_if_it_has_fewer_blocks() -> None:
    """Else a layer would accept slots that the smaller cache does not have."""
    cache = torch.zeros(2, 8, 4, 1, 16)
    known = native.Caches([cache])
    assert known.are([cache]) and not known.are([cache[:, :6]])
    assert not known.are([cache.clone()])


@needs_compiler
@pytest.mark.parametrize(
    ("lens", "heads", "sides", "strength"),
    [
        ([1, 2, 37, 3, 64, 65, 33], 3, (32, 64), 1.0),
        ([31, 32, 100], 4, (96, 32), 1.0),
        ([300], 2, (128, 128), 20.0),  # forgets at once: no exponential overflows
    ],
)
@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
def test_gated_delta(
    lens: list[int], heads: int, sides: tuple[int, int], strength: float, is_new: bool
) -> None:
    """Requests of one batch, whole chunks and rests, from zeros and from what they know."""
    q, k, v = (torch.randn(sum(lens), heads, side) for side in (sides[0], *sides))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = -torch.nn.functional.softplus(torch.randn(sum(lens), heads)) * strength
    states = torch.randn(len(lens), heads, *sides) * (not is_new)
    tokens, chunks = (q, k, v, g, torch.rand(sum(lens), heads)), Chunks(lens)
    exact = chunk_gated_delta_rule(*(x.double() for x in (*tokens, states)), chunks)
    plain = chunk_gated_delta_rule(*tokens, states, chunks)
    out, ends = native_states.gated_delta(*tokens, states, chunks.starts)
    for ours, torchs, right in zip((out, ends), plain, exact, strict=True):
        assert float((ours - right).abs().max()) < max(
            2e-6, 2 * float((torchs - right).abs().max())
        )


@needs_compiler
def test_gated_delta_keeps_a_nan_in_its_request() -> None:
    q, k, v = (torch.randn(70, 2, 32) for _ in range(3))
    g, beta = -torch.rand(70, 2), torch.rand(70, 2)
    states = torch.zeros(3, 2, 32, 32)
    states[1, 0, 3, 3] = torch.nan
    out, ends = native_states.gated_delta(q, k, v, g, beta, states, torch.tensor([0, 3, 40, 70]))
    assert [bool(x.isfinite().all()) for x in out.split([3, 37, 30])] == [True, False, True]
    assert [bool(x.isfinite().all()) for x in ends] == [True, False, True]
    assert out[3:40, 1].isfinite().all()  # nor does the other head know of it


@needs_compiler
def test_gated_delta_takes_whole_strips_of_float32() -> None:
    can = native_states.can_run_gated_delta
    assert can(torch.zeros(1, 2, 32, 64))
    assert not can(torch.zeros(1, 2, 24, 64)) and not can(torch.zeros(1, 2, 32, 40))
    assert not can(torch.zeros(1, 2, 32, 64, dtype=torch.float64))
