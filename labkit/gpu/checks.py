"""What only a GPU can show about the engine, as plain functions: they need torch and the engine.

`gpu-report` runs them on a machine that may have no pytest; `tests/engine/whole/test_gpu.py` runs
the same functions where pytest is. Each takes a device, returns in a few words what it saw, and
raises AssertionError where that is wrong. On the device "cpu", under TRITON_INTERPRET=1, all but
those in `NEED_CUDA` say something too, so that they are tested without a GPU.

    python -m labkit.gpu.checks NAME [DEVICE]     one JSON object: {"saw": ...} or {"wrong": ...}
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

PROMPTS = ("Once upon a time", "The capital", "One day, a small fox found", "A")
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest relative L2 error against plain torch in float32."""
Tokens = list[list[int]]


def relative_error(ours: torch.Tensor, right: torch.Tensor) -> float:
    """L2 norm of the difference over that of `right`, in float64."""
    ours, right = ours.double().cpu(), right.double().cpu()
    return float((ours - right).norm() / right.norm().clamp(min=1e-12))


def expect_close(what: str, ours: torch.Tensor, right: torch.Tensor) -> float:
    """The error, if it is within the bound of the dtype of `ours`."""
    error, bound = relative_error(ours, right), BOUNDS[ours.dtype]
    assert error <= bound, f"{what}: relative error {error:.1e}, at most {bound:.0e} is rounding"
    return error


def tokens_of(device: str, sampling: dict[str, Any] | None = None, /, **config: Any) -> Tokens:
    """Tokens of `PROMPTS` by the bundled draft model in float32, 8 of each."""
    from mini_vllm import LLM, SamplingParams

    small: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 4, "num_gpu_blocks": 33}
    small["dtype"] = "float32"
    llm = LLM("storyteller-draft", device=device, **small | config)
    params = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | (sampling or {})
    outputs = llm.generate(list(PROMPTS), SamplingParams(**params), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def expect_equal(what: str, ours: Tokens, right: Tokens) -> None:
    for prompt, mine, expected in zip(PROMPTS, ours, right, strict=True):
        assert mine == expected, f"{what}: {prompt!r} goes on with {mine}, expected {expected}"


# ---------------------------------------------------------------- attention and layers
def attention_equals_plain_torch(device: str) -> str:
    """A ragged batch of decodes and prefills through the Triton backend, in each dtype."""
    from mini_vllm.attention import AttentionMetadata, get_backend, triton_backend
    from mini_vllm.attention.reference import ReferenceAttention

    errors = []
    for dtype in list(BOUNDS)[: None if device == "cuda" else 2]:
        # Triton's interpreter does not multiply bfloat16 matrices rightly.
        torch.manual_seed(0)
        query_lens, seq_lens = [1, 1, 1, 7, 40], [1, 17, 70, 30, 40]
        tables = [[5 * i + j + 1 for j in range(-(-n // 16))] for i, n in enumerate(seq_lens)]
        step = AttentionMetadata.from_lists(query_lens, seq_lens, tables, 16)
        there = AttentionMetadata.from_lists(query_lens, seq_lens, tables, 16, device)
        query = torch.randn(sum(query_lens), 8, 64).to(dtype)
        cache = torch.randn(2, 27, 16, 2, 64).to(dtype)
        backend = get_backend(device, "triton")
        for window, tiled in ((None, False), (9, False), (None, True), (9, True)):
            right = ReferenceAttention.forward(query.float(), cache.float(), step, 0.125, window)
            with patch.object(triton_backend, "USES_TILED_PREFILL", tiled):
                ours = backend.forward(query.to(device), cache.to(device), there, 0.125, window)
            errors.append(expect_close(f"{dtype}, window {window}, {tiled=}", ours, right))
    return f"largest relative error {max(errors):.1e}"


def an_order_of_requests_changes_no_number(device: str) -> str:
    """Decodes whose programs start in any order, bit for bit those in the batch's."""
    from mini_vllm.kernels.attention import PAGED_DECODE

    changed = 0
    for dtype in list(BOUNDS)[: None if device == "cuda" else 1]:
        torch.manual_seed(6)
        query, cache = torch.randn(9, 8, 64), torch.randn(2, 46, 16, 2, 64)
        table, lens = torch.randperm(45).view(9, 5), torch.tensor([70, 1, 0, 33, 80, 9, 64, 2, 17])
        problem = dict(
            query=query.to(device, dtype), key_cache=cache[0].to(device, dtype),
            value_cache=cache[1].to(device, dtype), block_table=table.int().to(device),
            seq_lens=lens.int().to(device), scale=0.125,
        )  # fmt: skip
        right, ours = torch.empty(2, 9, 8, 64, dtype=dtype, device=device)
        PAGED_DECODE.run(output=right, **problem)
        for order in (lens.argsort(descending=True), torch.randperm(9)):
            PAGED_DECODE.run(output=ours.fill_(torch.nan), order=order.to(device), **problem)
            changed += int((ours != right).sum())
    assert not changed, f"{changed} numbers differ from those in the batch's order"
    return "the longest first, and a random order"


def an_order_over_int8_and_latents_changes_no_number(device: str) -> str:
    """The same of decodes over pages of int8, and over latents with two tiles of heads."""
    from mini_vllm.kernels.mixers import mla_decode
    from mini_vllm.kernels.quantization import PAGED_DECODE_INT8, STORE_KV_INT8

    changed = 0
    for dtype in list(BOUNDS)[: None if device == "cuda" else 1]:
        torch.manual_seed(6)
        key, value, query = (torch.randn(n, 2, 64).to(device, dtype) for n in (736, 736, 9 * 40))
        query, latents = query.view(9, 40, 128), key.view(46, 16, 128)
        keys, values = torch.zeros(2, 46, 16, 2, 68, dtype=torch.int8, device=device)
        slots = torch.arange(736, device=device)
        STORE_KV_INT8.run(
            key=key, value=value, key_cache=keys, value_cache=values, slot_mapping=slots
        )
        lens = torch.tensor([70, 1, 0, 33, 80, 9, 64, 2, 17], dtype=torch.int32, device=device)
        table = torch.randperm(45).view(9, 5).int().to(device)
        problem = dict(query=query[:, :8, :64].contiguous(), key_cache=keys, value_cache=values,
                       block_table=table, seq_lens=lens, scale=0.125)  # fmt: skip
        right, ours = torch.empty(2, 9, 8, 64, dtype=dtype, device=device)
        PAGED_DECODE_INT8.run(output=right, **problem)
        right_mixed = mla_decode(query, latents, table, lens, 0.125, 96, 80)
        for order in (lens.argsort(descending=True), torch.randperm(9).to(device)):
            PAGED_DECODE_INT8.run(output=ours.fill_(torch.nan), order=order, **problem)
            mixed = mla_decode(query, latents, table, lens, 0.125, 96, 80, order)
            changed += int((ours != right).sum() + (mixed != right_mixed).sum())
    assert not changed, f"{changed} numbers differ from those in the batch's order"
    return "the longest first, and a random order"


def fused_layers_equal_plain_torch(device: str) -> str:
    """Norm with residual, rotation and activation, in each dtype."""
    from mini_vllm.model.layers import add_rms_norm, silu_mul
    from mini_vllm.model.rope import apply_rope

    errors = []
    for dtype in BOUNDS:
        torch.manual_seed(1)
        x, residual, weight = (torch.randn(*shape).to(dtype) for shape in ((9, 96), (9, 96), (96,)))
        total = (x.float() + residual.float()).to(dtype).float()
        right = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
        ours = add_rms_norm(x.to(device), residual.to(device), weight.to(device), 1e-6)
        errors += [expect_close(f"norm, {dtype}", ours[0], right),
                   expect_close(f"residual, {dtype}", ours[1], total)]  # fmt: skip
        gate_up = torch.randn(5, 400).to(dtype)
        gate, up = gate_up.float().chunk(2, -1)
        silu = torch.nn.functional.silu(gate) * up
        errors.append(expect_close(f"silu, {dtype}", silu_mul(gate_up.to(device)), silu))
        heads, angles = torch.randn(5, 3, 32).to(dtype), torch.randn(5, 1, 16)
        cos = torch.cat([angles.cos()] * 2, -1).to(dtype)
        sin = torch.cat([-angles.sin(), angles.sin()], -1).to(dtype)
        turned = heads.float() * cos.float() + heads.float().roll(16, -1) * sin.float()
        ours_turned = apply_rope(heads.to(device), cos.to(device), sin.to(device))
        errors.append(expect_close(f"rope, {dtype}", ours_turned, turned))
    return f"largest relative error {max(errors):.1e}"


def one_launch_equals_three(device: str) -> str:
    """Norm, rotation and store of a layer of Qwen3 at once, against the three kernels: queries and
    pages, in each dtype. Two of six tokens have no slot."""
    from types import SimpleNamespace

    from mini_vllm.attention.triton_backend import TritonAttention
    from mini_vllm.model import fused_qkv
    from mini_vllm.model.qwen3 import Qwen3Attention

    errors = []
    for dtype in list(BOUNDS)[: None if device == "cuda" else 2]:
        torch.manual_seed(5)
        attn = Qwen3Attention.__new__(Qwen3Attention)
        torch.nn.Module.__init__(attn)
        attn.num_heads, attn.num_kv_heads, attn.qk_eps = 16, 8, 1e-6
        weights = torch.randn(2, 64).to(device, dtype)
        attn.qk_weight = weights.repeat_interleave(torch.tensor([16, 8], device=device), 0)
        angles = torch.randn(6, 1, 32)
        rope = tuple(torch.cat(pair, -1).to(device, dtype) for pair in
                     ([angles.cos()] * 2, [-angles.sin(), angles.sin()]))  # fmt: skip
        heads = torch.randn(6, 32, 64).to(device, dtype)
        step: Any = SimpleNamespace(
            slot_mapping=torch.tensor([17, -1, 3, 40, -1, 0], device=device)
        )
        results: list[Any] = []
        for backend in (TritonAttention(), SimpleNamespace(store=TritonAttention().store)):
            attn.backend = backend
            refused = fused_qkv.reasons_for_three_steps(attn, heads, rope)
            assert bool(refused) == bool(results), refused
            pages = torch.zeros(2, 3, 16, 8, 64, device=device, dtype=dtype)
            results.append((attn.turn_and_store(heads.clone(), rope, pages, step), pages))
        for what, ours, right in zip(("queries", "pages"), *results, strict=True):
            errors.append(expect_close(f"{what}, {dtype}", ours, right))
    return f"largest relative error {max(errors):.1e}"


def few_tokens_equal_plain_torch(device: str) -> str:
    """The product of one to four tokens, which the engine takes with MINI_VLLM_GEMV=1 alone."""
    from mini_vllm.kernels import products

    errors = []
    for dtype in (torch.float16, torch.bfloat16)[: None if device == "cuda" else 1]:
        for tokens in (1, 2, 3, 4):
            torch.manual_seed(tokens)
            x, weight = torch.randn(tokens, 300).to(dtype), torch.randn(130, 300).to(dtype)
            assert products.takes_gemv(x, weight, None)
            ours = products.gemv(x.to(device), weight.to(device))
            errors.append(
                expect_close(f"{tokens} tokens, {dtype}", ours, x.float() @ weight.float().T)
            )
    return f"largest relative error {max(errors):.1e}"


def experts_equal_plain_torch(device: str) -> str:
    """A layer's experts by the kernel, in each dtype, against rows sorted for plain torch."""
    from mini_vllm.model.layers import PLAIN
    from mini_vllm.model.moe.args import MoEArgs
    from mini_vllm.model.moe.experts import Experts, StackedExperts

    errors = []
    for dtype in list(BOUNDS)[: None if device == "cuda" else 2]:
        torch.manual_seed(2)
        layer = StackedExperts(96, MoEArgs(8, 2, 48, expert_bias=True), PLAIN, "experts")
        for parameter in layer.requires_grad_(False).parameters():
            parameter.copy_(torch.randn(parameter.shape).mul(0.2).to(dtype))
        x, weights = torch.randn(37, 96).to(dtype), torch.rand(37, 2)
        ids = torch.rand(37, 8).topk(2).indices
        right = Experts.forward(layer, x.float(), weights, ids)
        there = layer.to(device, dtype)
        ours = there(x.to(device), weights.to(device), ids.to(device))
        errors.append(expect_close(f"experts, {dtype}", ours, right))
    return f"largest relative error {max(errors):.1e}"


def states_equal_plain_torch(device: str) -> str:
    """A step of decodes, one of them new, and of a prompt: outputs, and states in their blocks."""
    from mini_vllm.attention import StateMetadata
    from mini_vllm.kernels.mixers import gdn_decode
    from mini_vllm.model.mixers.gated_delta import (
        chunk_gated_delta_rule,
        recurrent_gated_delta_rule,
    )
    from mini_vllm.model.mixers.recurrent import StatePlan

    torch.manual_seed(3)
    tokens = [torch.randn(7, 3, size) * size**-0.5 for size in (24, 24, 40)]
    tokens += [-torch.rand(7, 3), torch.rand(7, 3)]
    pages = torch.randn(6, 3 * 24 * 40 + 8)  # a state has something else before and behind it
    pages[1] = torch.nan  # of a stranger: the second request is new
    results = []
    for kernel, place in ((gdn_decode, device), (None, "cpu")):
        step = StateMetadata(
            query_start_loc=torch.tensor([0, 1, 2, 7]), block_ids=torch.tensor([4, 1, 2]).to(place),
            is_new=torch.tensor([False, True, False]).to(place), max_query_len=5,
            num_decode_reqs=2, query_lens_cpu=[1, 1, 5], seq_lens_cpu=[9, 1, 5],
        )  # fmt: skip
        states = pages.to(place, copy=True)[:, 4:-4].unflatten(1, (3, 24, 40))
        out = StatePlan(step, 4, torch.device(place)).run(
            recurrent_gated_delta_rule, chunk_gated_delta_rule, [x.to(place) for x in tokens],
            states, step, kernel,
        )  # fmt: skip
        results.append((out, states))
    (out, states), (right_out, right_states) = results
    errors = [expect_close("outputs", out, right_out), expect_close("states", states, right_states)]
    return f"largest relative error {max(errors):.1e}"


def latents_equal_plain_torch(device: str) -> str:
    """Decodes on latents in each dtype, whole and in splits, against their definition."""
    from mini_vllm.kernels.mixers import mla_decode

    errors = []
    for dtype in list(BOUNDS)[: None if device == "cuda" else 2]:
        torch.manual_seed(4)
        for lens in ([40, 3], [700]):
            table = torch.randperm(88).view(2, 44)[: len(lens)].int()
            latents, query = torch.randn(88, 16, 48).to(dtype), torch.randn(len(lens), 5, 48)
            query = query.to(dtype)
            rows = []
            for own, length, blocks in zip(query.float(), lens, table, strict=True):
                found = latents[blocks.long()].flatten(0, 1)[:length].float()
                rows.append((own @ found.T * 0.2).softmax(-1) @ found[:, :40])
            ours = mla_decode(
                query.to(device), latents.to(device), table.to(device),
                torch.tensor(lens).int().to(device), 0.2, 40, max(lens),
            )  # fmt: skip
            errors.append(expect_close(f"{dtype}, {lens}", ours, torch.stack(rows)))
    return f"largest relative error {max(errors):.1e}"


# ---------------------------------------------------------------- the engine
def the_engine_uses_the_kernels(device: str) -> str:
    """Without being asked, an engine on this device attends with Triton."""
    from mini_vllm.attention import get_backend

    name = type(get_backend(device)).__name__
    assert name == "TritonAttention", f"the backend on {device} is {name}"
    return name


def greedy_tokens_equal_those_of_plain_torch(device: str) -> str:
    """The same text as the engine with plain torch attention on the CPU."""
    right = tokens_of("cpu", attention_backend="reference", enforce_eager=True)
    expect_equal("greedy", tokens_of(device), right)
    return f"{sum(map(len, right))} tokens"


def a_hybrid_gives_the_tokens_of_plain_torch(device: str) -> str:
    """The bundled model with states, experts and full attention, against plain torch on the CPU."""
    from mini_vllm import LLM, SamplingParams

    found: list[Tokens] = []
    for place, backend in ((device, None), ("cpu", "reference")):
        llm = LLM("storyteller-hybrid", device=place, dtype="float32", max_model_len=64,
                  max_num_seqs=2, attention_backend=backend)  # fmt: skip
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        outputs = llm.generate(list(PROMPTS[:2]), params, use_tqdm=False)
        found.append([list(output.outputs[0].token_ids) for output in outputs])
    assert found[0] == found[1], f"the tokens are {found[0]}, expected {found[1]}"
    return f"{sum(map(len, found[0]))} tokens"


def schedules_change_no_token(device: str) -> str:
    """Chunks, a pool that forces preemption, one request at a time: one and the same text."""
    right = tokens_of(device)
    for what, config in (
        ("chunks of 3 tokens", {"max_num_batched_tokens": 4}),
        ("one request at a time", {"max_num_seqs": 1}),
        ("a pool of 5 blocks of 4 tokens", {"num_gpu_blocks": 6, "block_size": 4}),
    ):
        expect_equal(what, tokens_of(device, **config), right)
    return "3 schedules"


def seeds_draw_the_numbers_of_the_cpu(device: str) -> str:
    """Numbers of seeds and indices, bit for bit; and a seeded text repeats itself."""
    from mini_vllm.sample.sampler import uniform_numbers

    seeds = torch.arange(-500, 500) * 0x9E3779B97F4A7C1 % 2**62
    index = torch.arange(1000) % 37
    ours = uniform_numbers(seeds.to(device), index.to(device)).cpu()
    assert torch.equal(ours, uniform_numbers(seeds, index)), "numbers differ from the CPU's"
    first = tokens_of(device, {"temperature": 1.0, "seed": 3})
    expect_equal("seed 3 again", tokens_of(device, {"temperature": 1.0, "seed": 3}), first)
    return "1,000 numbers"


# ---------------------------------------------------------------- graphs
def graphs_change_no_token(device: str) -> str:
    """Launched one by one, or replayed from graphs: one and the same text, greedy and drawn by the
    recorded sampler."""
    for what, params in (("greedy", None), ("drawn", {"temperature": 0.7, "seed": 3})):
        launched = tokens_of(device, params, enforce_eager=True)
        expect_equal(f"{what}, replayed", tokens_of(device, params), launched)
    return f"{sum(map(len, launched))} tokens"


def every_batch_size_has_a_graph(device: str) -> str:
    """An engine of 20 requests records its buckets, the limit among them."""
    from mini_vllm import LLM

    llm = LLM("storyteller-draft", device=device, max_num_seqs=20, max_model_len=64,
              num_gpu_blocks=81, dtype="float32")  # fmt: skip
    graphs = llm.engine.core.model_runner.graphs
    assert graphs is not None, "the engine recorded no graphs"
    assert sorted(graphs.graphs) == [1, 2, 4, 8, 16, 20], sorted(graphs.graphs)
    return f"{len(graphs.graphs)} graphs"


def a_step_waits_for_the_gpu_once(device: str) -> str:
    """Input preparation and forward pass never wait; only reading the sampled tokens does."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM("storyteller-draft", device=device, max_num_seqs=4, max_model_len=64,
              num_gpu_blocks=33, dtype="float32")  # fmt: skip
    runner = llm.engine.core.model_runner
    for name in ("_prepare_inputs", "_forward"):
        setattr(runner, name, _that_must_not_wait(getattr(runner, name)))
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
    errors = [output.error for output in outputs if output.error]
    assert not errors, errors[0]
    return "2 parts of the step never wait"


def a_steady_step_is_one_copy(device: str) -> str:
    """A step's arrays in one copy to the GPU; its rows' parameters in one more when they change."""
    from unittest.mock import patch

    from mini_vllm import LLM, SamplingParams
    from mini_vllm.platforms import transfer

    llm = LLM("storyteller-draft", device=device, max_num_seqs=4, max_model_len=64,
              num_gpu_blocks=33, dtype="float32")  # fmt: skip
    runner, copy = llm.engine.core.model_runner, transfer.copy_over
    counts: list[int] = []
    execute = runner.execute_model

    def begin(plan: Any) -> None:
        counts.append(0)
        execute(plan)

    def counted(source: Any, target: Any) -> None:
        counts[-1] += 1
        copy(source, target)

    params = SamplingParams(temperature=0.7, seed=1, max_tokens=8, ignore_eos=True)
    with patch.object(runner, "execute_model", begin), patch.object(transfer, "copy_over", counted):
        llm.generate([[5, 6, 7]] * 3, params, use_tqdm=False)
    assert max(counts) <= 2 and counts[2:7] == [1] * 5, f"copies of each step: {counts}"
    return f"copies of each step: {counts}"


def _that_must_not_wait(inner: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return inner(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return guarded


CHECKS: dict[str, Callable[[str], str]] = {
    check.__name__: check
    for check in (
        the_engine_uses_the_kernels,
        attention_equals_plain_torch,
        an_order_of_requests_changes_no_number,
        an_order_over_int8_and_latents_changes_no_number,
        fused_layers_equal_plain_torch,
        one_launch_equals_three,
        few_tokens_equal_plain_torch,
        experts_equal_plain_torch,
        states_equal_plain_torch,
        latents_equal_plain_torch,
        a_hybrid_gives_the_tokens_of_plain_torch,
        greedy_tokens_equal_those_of_plain_torch,
        schedules_change_no_token,
        seeds_draw_the_numbers_of_the_cpu,
        graphs_change_no_token,
        every_batch_size_has_a_graph,
        a_step_waits_for_the_gpu_once,
        a_steady_step_is_one_copy,
    )
}
NEED_CUDA = (
    "graphs_change_no_token",
    "every_batch_size_has_a_graph",
    "a_step_waits_for_the_gpu_once",
    "a_steady_step_is_one_copy",
)
"""On another device there is no graph to record, or nothing to wait for."""


def run(name: str, device: str = "cuda") -> dict[str, str]:
    """{"saw": what} if the check holds, else {"wrong": why}."""
    try:
        return {"saw": CHECKS[name](device)}
    except Exception as error:  # the report names it, and goes on with the next check
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, AssertionError) else f" ({where.filename}:{where.lineno})"
        return {"wrong": f"{type(error).__name__}: {error}{place}"}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
