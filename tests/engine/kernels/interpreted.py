"""Run in a child with TRITON_INTERPRET=1: kernels against plain torch, one JSON line of errors.

TRITON_INTERPRET=1 python tests/engine/kernels/interpreted.py kernels|engine|replayed_inputs
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import triton_backend
from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.quantized import FORMATS, QuantizedKV, renumber_pages
from mini_vllm.attention.reference import ReferenceAttention
from mini_vllm.attention.triton_backend import TritonAttention, longest_first
from mini_vllm.kernels import native, products
from mini_vllm.kernels.attention import PAGED_DECODE, SPLIT_DECODE
from mini_vllm.kernels.launch import Launch
from mini_vllm.model import fused_qkv, layers
from mini_vllm.model.layers import add_rms_norm, rms_norm, silu_mul
from mini_vllm.model.llama import LlamaAttention
from mini_vllm.model.mixers.latent_attention import LatentAttention
from mini_vllm.model.qwen3 import Qwen3Attention
from mini_vllm.model.rope import apply_rope
from mini_vllm.sample.kernel_sampler import draw_tokens
from mini_vllm.sample.metadata import make_sampling_metadata
from mini_vllm.sample.rejection_sampler import judge_drafts, rejection_random_sample
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker.cuda_graphs import StaticInputs, record_eagerly
from mini_vllm.worker.decode_inputs import DecodeInputs

CASES = {  # dtype, block_size, Hkv, group, D, window, [(query_len, seq_len)], decodes first
    "fp32": (torch.float32, 4, 2, 1, 32, None, [(1, 1), (1, 17), (9, 12), (70, 70)]),
    "fp16-gqa4": (torch.float16, 16, 2, 4, 64, None, [(1, 40), (2, 48), (33, 70)]),
    "window-odd-dim": (torch.float32, 1, 1, 8, 80, 5, [(1, 20), (1, 3), (7, 19)]),
    "gqa3-only-decodes": (torch.float32, 16, 2, 3, 24, 7, [(1, 5), (1, 64), (1, 33)]),
    "inert-row": (torch.float32, 16, 2, 2, 32, None, [(1, 0), (1, 20)]),
}


def batch(dtype: torch.dtype, block_size: int, heads: int, group: int, dim: int, lens: Any) -> Any:
    torch.manual_seed(0)
    counts = [-(-seq_len // block_size) for _, seq_len in lens]
    ids = (torch.randperm(sum(counts) + 2) + 1).tolist()
    tables = [[ids.pop() for _ in range(count)] or [0] for count in counts]
    cache = torch.randn(2, sum(counts) + 3, block_size, heads, dim).to(dtype)
    query_lens, seq_lens = zip(*lens, strict=True)
    visible = [max(seq_len, 1) for seq_len in seq_lens]
    metadata = AttentionMetadata.from_lists(query_lens, visible, tables, block_size)
    metadata.seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
    query = torch.randn(sum(query_lens), heads * group, dim).to(dtype)
    return query, cache, metadata


def attention_errors() -> dict[str, float]:
    """Largest difference between the Triton backend and the reference, case by case."""
    errors = {}
    for name, (dtype, block_size, heads, group, dim, window, lens) in CASES.items():
        query, cache, metadata = batch(dtype, block_size, heads, group, dim, lens)
        expected = ReferenceAttention.forward(query, cache, metadata, dim**-0.5, window)
        expected[: metadata.num_decode_reqs][metadata.seq_lens[: metadata.num_decode_reqs] == 0] = 0
        for kind in ("", "-tiled"):
            with patch.object(triton_backend, "USES_TILED_PREFILL", bool(kind)):
                actual = TritonAttention().forward(query, cache, metadata, dim**-0.5, window)
            errors[name + kind] = (actual.float() - expected.float()).abs().max().item()
    return errors


def split_errors() -> dict[str, float]:
    """Decoding in 2, 3 and 8 splits, some of them empty, against the reference."""
    lens = [(1, 1), (1, 64), (1, 300)]
    query, cache, metadata = batch(torch.float32, 16, 2, 2, 32, lens)
    expected = ReferenceAttention.forward(query, cache, metadata, 0.2)
    errors = {}
    for splits in (2, 3, 8):
        output = torch.full_like(query, torch.nan)
        partial = torch.full((*query.shape[:2], splits, 32), torch.nan)
        lse = torch.full((*query.shape[:2], splits), torch.nan)
        SPLIT_DECODE.run(
            query=query, key_cache=cache[0], value_cache=cache[1], scale=0.2, output=output,
            block_table=metadata.block_table, seq_lens=metadata.seq_lens, partial=partial, lse=lse,
        )  # fmt: skip
        errors[f"splits-{splits}"] = (output - expected).abs().max().item()
    return errors


def order_errors() -> dict[str, float]:
    """Numbers that an order of requests changes, of any: there must be none."""
    errors = {}
    for name, (dtype, block_size, heads, group, dim, window, lens) in CASES.items():
        query, cache, metadata = batch(dtype, block_size, heads, group, dim, lens)
        count = metadata.num_decode_reqs
        problem = dict(
            query=query[:count], key_cache=cache[0], value_cache=cache[1], scale=dim**-0.5,
            window=window, block_table=metadata.block_table[:count],
            seq_lens=metadata.seq_lens[:count],
        )  # fmt: skip
        right, ours = torch.empty_like(query[:count]), torch.empty_like(query[:count])
        PAGED_DECODE.run(output=right, **problem)
        changed = 0
        for order in (torch.arange(count), *(torch.randperm(count) for _ in range(4))):
            ours.fill_(torch.nan)
            PAGED_DECODE.run(output=ours, order=order, **problem)
            changed += int((ours != right).sum())
        errors[f"order-{name}"] = float(changed)
    return errors


def other_order_errors() -> dict[str, float]:
    """The same of layers with int8 pages and with latents, which ask for the longest first."""
    errors = {}
    for name, attend in {"order-int8": int8_decodes(), "order-latents": latent_decodes()}.items():
        metadata = AttentionMetadata.from_lists(
            [1] * 4, [20, 1, 33, 7], [[3, 1], [2], [5, 6, 4], [7]], 16
        )
        right = attend(metadata)
        assert metadata.order is None
        with (
            patch.object(triton_backend, "USES_ORDERED_DECODE", True),
            patch.object(triton_backend, "order_matters", lambda *_: True),
        ):
            ours = attend(metadata)
        assert metadata.order is not None and metadata.order.tolist() == [2, 0, 3, 1]
        assert metadata.underived().order is None
        errors[name] = float((ours != right).sum())
    return errors


def int8_decodes() -> Callable[[AttentionMetadata], torch.Tensor]:
    """A layer with a cache of int8, 6 heads in groups of 3; it may have left a plan, too."""
    layer = QuantizedKV(TritonAttention(), FORMATS["int8_per_token_head"])
    cache, slots = torch.zeros(2, 8, 16, 2, 36, dtype=torch.int8), torch.arange(16, 128)
    layer.store(*torch.randn(2, 112, 2, 32), cache, slots)
    query = torch.randn(4, 6, 32)

    def attend(metadata: AttentionMetadata) -> torch.Tensor:
        metadata.plan = renumber_pages(metadata)
        return layer.forward(query, cache, metadata, 0.2)

    return attend


def latent_decodes() -> Callable[[AttentionMetadata], torch.Tensor]:
    """A layer with latents of 24 and 8 numbers and two tiles of heads."""
    layer = SimpleNamespace(args=SimpleNamespace(qk_nope_head_dim=12), scale=0.2)
    pages, query, weight = torch.randn(8, 16, 32), torch.randn(4, 33, 20), torch.randn(33, 28, 24)
    return lambda metadata: LatentAttention.attend_on_pages(layer, query, pages, metadata, weight)  # type: ignore[arg-type]


def store_errors() -> dict[str, float]:
    """Two of four tokens are stored, from slices of a wider matrix; nothing else changes."""
    wide = torch.randn(4, 3, 24)
    key, value = wide[:, :1], wide[:, 1:2]
    caches = torch.full((2, 2, 3, 4, 1, 24), 7.0)
    slots = torch.tensor([5, -1, 2, -1])
    TritonAttention().store(key, value, caches[0], slots)
    ReferenceAttention.store(key, value, caches[1], slots)
    return {"store": (caches[0] - caches[1]).abs().max().item()}


def pointwise_errors() -> dict[str, float]:
    """The fused layers against their definitions."""
    wide, weight = torch.randn(5, 100), torch.randn(80)
    x, residual = wide[:, :80], torch.randn(5, 80)
    total = x + residual

    def norm(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-5) * w

    heads, head_weight = torch.randn(5, 6, 24)[:, :4], torch.randn(4, 24)
    normed, stream = add_rms_norm(x, residual.clone(), weight, 1e-5)
    gate_up = torch.randn(3, 2 * 1500)
    gate, up = gate_up.chunk(2, -1)
    angles = torch.randn(5, 1, 12)
    cos = torch.cat([angles.cos()] * 2, -1)
    sin = torch.cat([-angles.sin(), angles.sin()], -1)
    rotated = torch.addcmul(heads * cos, heads.roll(12, dims=-1), sin)
    pairs = {
        "norm": (rms_norm(x, weight, 1e-5), norm(x, weight)),
        "norm-heads": (rms_norm(heads, head_weight, 1e-5), norm(heads, head_weight)),
        "add-norm": (normed, norm(total, weight)),
        "stream": (stream, total),
        "silu-mul": (silu_mul(gate_up), gate / (1 + torch.exp(-gate)) * up),
        "rope": (apply_rope(heads.clone(), cos, sin), rotated),
    }
    return {name: (ours - theirs).abs().max().item() for name, (ours, theirs) in pairs.items()}


def qkv_errors() -> dict[str, float]:
    """Norm, rotation and store in one launch against the three kernels: with the norm and without,
    where parts of a head turn, where the cache has another dtype; two of five tokens have no slot.
    """
    errors = {}
    for name, kind, turning, dtype, cache_dtype in (
        ("qkv", Qwen3Attention, 24, torch.float32, torch.float32),
        ("qkv-half", Qwen3Attention, 24, torch.float16, torch.float16),
        ("qkv-plain", LlamaAttention, 24, torch.float32, torch.float32),
        ("qkv-partial", LlamaAttention, 16, torch.float32, torch.float16),
    ):
        attn = kind.__new__(kind)
        torch.nn.Module.__init__(attn)
        attn.num_heads, attn.num_kv_heads, attn.backend = 4, 2, TritonAttention()
        if kind is Qwen3Attention:
            query_weight, key_weight = torch.randn(2, 24).to(dtype)
            attn.qk_weight = torch.stack([query_weight] * 4 + [key_weight] * 2)
            attn.qk_eps = 1e-5
        angles = torch.randn(5, 1, turning // 2)
        rope = (torch.cat([angles.cos()] * 2, -1).to(dtype),
                torch.cat([-angles.sin(), angles.sin()], -1).to(dtype))  # fmt: skip
        heads = torch.randn(5, 8 * 24 + 7)[:, 3:195].view(5, 8, 24).to(dtype)
        slots = SimpleNamespace(slot_mapping=torch.tensor([5, -1, 2, 9, -1]))
        caches = torch.full((2, 2, 3, 4, 2, 24), 7.0, dtype=cache_dtype)
        assert not fused_qkv.reasons_for_three_steps(attn, heads, rope)
        query = fused_qkv.norm_rope_store(attn, heads.clone(), rope, caches[0], slots)
        attn.backend = SimpleNamespace(store=attn.backend.store)  # another one: three steps
        assert fused_qkv.reasons_for_three_steps(attn, heads, rope)
        with patch.object(native, "can_run", lambda _: False):
            expected = attn.turn_and_store(heads.clone(), rope, caches[1], slots)
        pairs = (query, expected), (caches[0], caches[1])
        errors[name] = max((a.float() - b.float()).abs().max().item() for a, b in pairs)
    return errors


def gemv_errors() -> dict[str, float]:
    """A linear layer's product of few tokens by the kernel, which is used when it is asked for."""
    errors = {}
    layer = SimpleNamespace(weight=torch.randn(70, 90).half(), packed=None, blocks=None)
    method = layers.UnquantizedLinearMethod()
    with (patch.object(layers, "USES_GEMV", True),
          patch.object(products, "gemv", wraps=products.gemv) as kernel):  # fmt: skip
        for tokens in (1, 3, 5):
            x = torch.randn(tokens, 100)[:, 5:95].half()
            found = method.apply(layer, x, None).float()
            errors[f"gemv-{tokens}"] = (
                (found - x.float() @ layer.weight.float().T).abs().max().item()
            )
        assert kernel.call_count == 2  # five tokens are not few
        method.apply(layer, x[:1].float(), None)
        method.apply(layer, x[:1], torch.randn(70))
        assert kernel.call_count == 2
    return errors


def judge_errors() -> dict[str, float]:
    """Drafts judged by the kernel and by plain torch, drawn and chosen; none at all, too."""
    errors = {}
    for name, counts in {"judge": [3, 0, 1, 4, 2], "judge-none": [0, 0]}.items():
        total, size = sum(counts), 40
        p, q = torch.rand(2, total, size).softmax(-1)
        drafts, recovered = torch.randint(size, (2, total))
        for drawn in (q, None):
            asked = (drafts, counts, drawn, p, torch.arange(len(counts)), recovered)
            u = torch.rand(total) * (1.5 if drawn is not None else 0.05)
            actual, expected = judge_drafts(*asked, u), rejection_random_sample(*asked, u)
            key = name if drawn is not None else f"{name}-chosen"
            errors[key] = float((actual != expected).sum())
    return errors


def expert_errors() -> dict[str, float]:
    """A layer's experts by the kernel, against rows sorted for plain torch."""
    from mini_vllm.model.layers import PLAIN
    from mini_vllm.model.moe.args import MoEArgs
    from mini_vllm.model.moe.experts import Experts, StackedExperts

    errors = {}
    for name, args in {
        "experts": MoEArgs(5, 2, 24, expert_bias=True, hidden_act="swigluoai"),
        "experts-input": MoEArgs(5, 3, 20, "topk_sigmoid"),
    }.items():
        layer = StackedExperts(40, args, PLAIN, "e").requires_grad_(False)
        for parameter in layer.parameters():
            parameter.normal_(0, 0.2)
        k = args.num_experts_per_tok
        x, weights = torch.randn(21, 40), torch.rand(21, k)
        ids = torch.rand(21, 5).topk(k).indices
        error = layer(x, weights, ids) - Experts.forward(layer, x, weights, ids)
        errors[name] = error.abs().max().item()
    return errors


def sampler_errors() -> dict[str, float]:
    """Rows whose token is another one than the sampler's: greedy, random, without a token."""
    errors = {}
    for name, temperatures in {
        "greedy": [0.0] * 6,
        "drawn": [0.3, 1, 2] * 2,
        "both": [0, 1] * 3,
    }.items():
        rows = [(SamplingParams(temperature=t, seed=2**62 + i), (1,), [5] * i, ())
                for i, t in enumerate(temperatures)]  # fmt: skip
        metadata = make_sampling_metadata(rows, 2500)
        logits = 4 * torch.randn(6, 2500)
        logits[1, 7], logits[2], logits[3, :-1] = torch.nan, -torch.inf, -torch.inf
        expected = Sampler()(logits, metadata).sampled_token_ids
        errors[f"sampler-{name}"] = float((draw_tokens(logits, metadata) != expected).sum())
    return errors


def engine() -> dict[str, Any]:
    """Tokens of the bundled draft model through the kernels, launched and replayed: of a greedy
    request and of a random one; and the lengths of each step's rows as its programs start."""
    params = [SamplingParams(temperature=t, seed=7, max_tokens=4) for t in (0, 0.8)]
    result: dict[str, Any] = {}
    orders: list[list[int]] = []

    def sorted_lengths(metadata: AttentionMetadata) -> torch.Tensor:
        order = longest_first(metadata)
        orders.append(metadata.seq_lens[order].tolist())
        return order

    for name in ("launched", "replayed"):
        llm = LLM("storyteller-draft", dtype="float32", max_model_len=64, max_num_seqs=3)
        runner = llm.engine.core.model_runner
        if name == "replayed":
            runner.warm_up(8, record_eagerly)
            assert runner.graphs is not None and runner.graphs.buckets == [1, 2, 3]
        orders.clear()
        with (
            patch.object(triton_backend, "USES_ORDERED_DECODE", True),
            patch.object(triton_backend, "order_matters", lambda *_: True),
            patch.object(triton_backend, "longest_first", sorted_lengths),
        ):
            outputs = llm.generate(["The capital", "Once upon a time"], params, use_tqdm=False)
        result[name] = [list(output.outputs[0].token_ids) for output in outputs]
        result[f"{name} orders"] = orders[:: runner.model.config.num_hidden_layers]
    return result


WINDOWS = dict(
    architectures=["Gemma3ForCausalLM"], sliding_window=9, vocab_size=97, hidden_size=32,
    intermediate_size=32, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1,
    head_dim=16, max_position_embeddings=1024,
)  # fmt: skip
"""A model with 5 layers of windows and 1 of the whole text: 6 groups of one layer."""


def replayed_inputs() -> dict[str, Any]:
    """Of replayed steps, with one table and with several: how many launches fill the inputs of
    each, and static tensors that are not what `StaticInputs.fill` makes of them."""
    fill, run = DecodeInputs.fill, Launch.run
    launches: list[int] = []
    wrong: list[str] = []

    def filled(self: DecodeInputs, *step: Any) -> None:
        right = copy.deepcopy(self)
        StaticInputs.fill(right, *step)
        fill(self, *step)
        for name, static in vars(self).items():
            is_token = name in ("input_ids", "positions")
            if isinstance(static, torch.Tensor) and (self.has_tokens or not is_token):
                wrong.extend([name] * (not torch.equal(static, getattr(right, name))))

    def counted(self: Launch, kernels: Any) -> None:
        if launches and self.kernel == "decode_inputs_kernel":
            launches[-1] += 1
        run(self, kernels)

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(WINDOWS))
        usual = dict(dtype="float32", max_model_len=64, max_num_seqs=5, block_size=4)
        models = {
            "plain": LLM("storyteller-draft", **usual),
            "groups": LLM(folder, load_format="dummy", skip_tokenizer_init=True,
                          num_gpu_blocks=99, **usual),
        }  # fmt: skip
    for name, llm in models.items():
        runner = llm.engine.core.model_runner
        runner.warm_up(8, record_eagerly)
        graphs, replay = runner.graphs, runner.graphs.replay

        def replayed(*step: Any, replay: Any = replay) -> Any:
            launches.append(0)
            return replay(*step)

        launches.clear()
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 6, 6)]
        with (patch.object(DecodeInputs, "fill", filled), patch.object(Launch, "run", counted),
              patch.object(graphs, "replay", replayed)):  # fmt: skip
            llm.generate([[5, 6, 7], list(range(20)), [9]], params, use_tqdm=False)
        result[name] = {"groups": len(getattr(graphs.inputs, "groups", [0])),
                        "launches": list(launches), "wrong": list(wrong)}  # fmt: skip
    return result


if __name__ == "__main__":
    if sys.argv[1] in ("engine", "replayed_inputs"):
        print(json.dumps({"engine": engine, "replayed_inputs": replayed_inputs}[sys.argv[1]]()))
    else:
        errors = attention_errors() | split_errors() | store_errors() | pointwise_errors()
        errors |= order_errors() | other_order_errors() | qkv_errors() | gemv_errors()
        print(json.dumps(errors | judge_errors() | expert_errors() | sampler_errors()))
