"""Problems of the size that an engine meets, made on the GPU, to be timed there.

The shapes are those of Qwen3-0.6B in bfloat16: 16 query heads, 8 key/value heads, 128 features,
1024 hidden, 3072 intermediate, pages of 16 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mini_vllm.kernels.moe_layout import moe_align_block_size, rows_tile
from mini_vllm.kernels.sampling import num_tiles
from mini_vllm.sample.sampler import MAX_LOGIT

HEADS, KV_HEADS, DIM, HIDDEN, INTERMEDIATE, BLOCK = 16, 8, 128, 1024, 3072, 16
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Large:
    """A named problem of one spec; `make(generator, device)` draws it. `target` is the share of the
    roof that the engine's kernel should reach; None = none is set. `optional`: see `Case`."""

    spec: str
    name: str
    make: Callable[[torch.Generator, torch.device], dict[str, Any]]
    target: float | None = None
    optional: str = ""


def _normal(generator: torch.Generator, device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device=device, dtype=DTYPE)


def _pages(
    generator: torch.Generator, device: torch.device, requests: int, length: int
) -> dict[str, Any]:
    """Caches full of random numbers and shuffled block tables; block 0 belongs to no request."""
    blocks = -(-length // BLOCK)
    shape = (requests * blocks + 1, BLOCK, KV_HEADS, DIM)
    order = torch.randperm(requests * blocks, generator=generator, device=device) + 1
    return dict(
        key_cache=_normal(generator, device, *shape),
        value_cache=_normal(generator, device, *shape),
        block_table=order.view(requests, blocks).int(),
        seq_lens=torch.full((requests,), length, dtype=torch.int32, device=device),
        scale=DIM**-0.5,
    )


def store_kv(tokens: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        blocks = 2 * tokens // BLOCK
        slots = torch.randperm(blocks * BLOCK, generator=generator, device=device)[:tokens]
        row, cache = (tokens, KV_HEADS, DIM), (blocks, BLOCK, KV_HEADS, DIM)
        return dict(
            key=_normal(generator, device, *row),
            value=_normal(generator, device, *row),
            key_cache=_normal(generator, device, *cache),
            value_cache=_normal(generator, device, *cache),
            slot_mapping=slots,
        )

    return make


def decode(requests: int, length: int, splits: int = 0) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        problem = _pages(generator, device, requests, length)
        query = _normal(generator, device, requests, HEADS, DIM)
        problem |= dict(query=query, output=torch.empty_like(query))
        if splits:
            shape = (requests, HEADS, splits)
            problem["partial"] = torch.empty(*shape, DIM, device=device)
            problem["lse"] = torch.empty(shape, device=device)
        return problem

    return make


def ragged(
    decodes: Callable[..., dict[str, Any]], order: bool = False
) -> Callable[..., dict[str, Any]]:
    """Contexts of 1 / 16 of those of `decodes` to all of them, spread evenly and shuffled; with
    `order` programs start with the longest."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        problem = decodes(generator, device)
        requests, longest = len(problem["seq_lens"]), int(problem["seq_lens"][0])
        lengths = torch.linspace(longest // 16, longest, requests, device=device).int()
        mixed = lengths[torch.randperm(requests, generator=generator, device=device)]
        problem["seq_lens"] = mixed
        return problem | ({"order": mixed.argsort(descending=True)} if order else {})

    return make


def prefill(requests: int, length: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        query = _normal(generator, device, requests * length, HEADS, DIM)
        starts = torch.arange(requests + 1, dtype=torch.int32, device=device) * length
        return _pages(generator, device, requests, length) | dict(
            query=query,
            output=torch.empty_like(query),
            query_start_loc=starts,
            max_query_len=length,
        )

    return make


def reduce(requests: int, splits: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        shape = (requests, HEADS, splits)
        return dict(
            partial=_normal(generator, device, *shape, DIM).float(),
            lse=_normal(generator, device, *shape).float(),
            output=_normal(generator, device, requests, HEADS, DIM),
        )

    return make


def norm(tokens: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        x = _normal(generator, device, tokens, HIDDEN)
        weight = _normal(generator, device, HIDDEN)
        residual = _normal(generator, device, tokens, HIDDEN)
        return dict(x=x, weight=weight, output=torch.empty_like(x), eps=1e-6, residual=residual)

    return make


def rope(tokens: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        angles = torch.rand(tokens, 1, DIM // 2, generator=generator, device=device) * 6.28
        cos, sin = angles.cos(), angles.sin()
        return dict(
            x=_normal(generator, device, tokens, HEADS, DIM),
            cos=torch.cat((cos, cos), -1).to(DTYPE),
            sin=torch.cat((-sin, sin), -1).to(DTYPE),
        )

    return make


def qkv(tokens: int) -> Callable[..., dict[str, Any]]:
    """Norm, rotation and store of a layer, all tokens with a slot."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        stored, turned = store_kv(tokens)(generator, device), rope(tokens)(generator, device)
        return dict(
            qkv=_normal(generator, device, tokens, HEADS + 2 * KV_HEADS, DIM),
            query_weight=_normal(generator, device, DIM),
            key_weight=_normal(generator, device, DIM),
            eps=1e-6,
            **{name: turned[name] for name in ("cos", "sin")},
            **{name: stored[name] for name in ("key_cache", "value_cache", "slot_mapping")},
        )

    return make


def replay(
    requests: int, bucket: int, width: int, max_blocks: int = 2560
) -> Callable[..., dict[str, Any]]:
    """A step's inputs for a graph of `bucket` rows, in an engine of 40,960 tokens a request."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        def numbers(*shape: int) -> Tensor:
            return torch.randint(2**30, shape, generator=generator, device=device)

        problem: dict[str, Any] = {"bucket": bucket}
        for prefix, rows, columns in (("", requests, width), ("static_", bucket, max_blocks)):
            for name in ("input_ids", "positions", "slot_mapping"):
                problem[prefix + name] = numbers(rows)
            problem[f"{prefix}seq_lens"] = numbers(rows).int()
            problem[f"{prefix}block_table"] = numbers(rows, columns).int()
        return problem

    return make


def silu(tokens: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        gate_up = _normal(generator, device, tokens, 2 * INTERMEDIATE)
        return dict(gate_up=gate_up, output=_normal(generator, device, tokens, INTERMEDIATE))

    return make


def _lists(rows: int, adapters: int, device: torch.device) -> dict[str, Any]:
    """A step's lists: `rows` rows, in turns with one of the adapters."""
    counts = torch.full((adapters,), rows // adapters, dtype=torch.int32, device=device)
    slots = torch.arange(rows, device=device) % adapters
    return dict(
        order=slots.argsort(stable=True).int(),
        lora_ids=torch.arange(adapters, dtype=torch.int32, device=device),
        num_tokens=counts,
        starts=torch.cat((counts.new_zeros(1), counts.cumsum(0))).int(),
    )


def shrink(rows: int, adapters: int, rank: int = 16) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        return _lists(rows, adapters, device) | dict(
            x=_normal(generator, device, rows, HIDDEN),
            lora_a=_normal(generator, device, adapters, 3, rank, HIDDEN),
            hidden=_normal(generator, device, 3, rows, rank).float(),
        )

    return make


def expand(rows: int, adapters: int, rank: int = 16) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        widths = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]
        starts = torch.tensor([0, *widths], device=device).cumsum(0).int()
        return _lists(rows, adapters, device) | dict(
            hidden=_normal(generator, device, 3, rows, rank).float(),
            lora_b=_normal(generator, device, adapters, rank, sum(widths)),
            slice_starts=starts,
            max_width=max(widths),
            y=_normal(generator, device, rows, sum(widths)),
        )

    return make


def whole(generator: torch.Generator, device: torch.device, *shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, generator=generator, device=device, dtype=torch.int8)


def positive(generator: torch.Generator, device: torch.device, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, device=device) + 0.5


def per_token(tokens: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        return dict(
            x=_normal(generator, device, tokens, HIDDEN),
            output=whole(generator, device, tokens, HIDDEN),
            scale=positive(generator, device, tokens, 1),
        )

    return make


def dense(tokens: int) -> Callable[..., dict[str, Any]]:
    """The gate and up projection of a layer."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        return dict(
            x=_normal(generator, device, tokens, HIDDEN),
            weight=_normal(generator, device, 2 * INTERMEDIATE, HIDDEN),
            output=torch.empty(tokens, 2 * INTERMEDIATE, dtype=DTYPE, device=device),
        )

    return make


def few(tokens: int, rows: int, columns: int) -> Callable[..., dict[str, Any]]:
    """A product of a decode step of few requests."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        return dict(
            x=_normal(generator, device, tokens, columns),
            weight=_normal(generator, device, rows, columns),
            output=torch.empty(tokens, rows, dtype=DTYPE, device=device),
        )

    return make


def w8a8(tokens: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        return dict(
            x=whole(generator, device, tokens, HIDDEN),
            weight=whole(generator, device, 2 * INTERMEDIATE, HIDDEN),
            x_scale=positive(generator, device, tokens, 1),
            weight_scale=positive(generator, device, 2 * INTERMEDIATE, 1),
            output=torch.empty(tokens, 2 * INTERMEDIATE, dtype=DTYPE, device=device),
        )

    return make


def w4a16(tokens: int, group: int = 128) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        rows, limit = 2 * INTERMEDIATE, 2**31 - 1
        shape = (rows, HIDDEN // 8)
        words = torch.randint(-limit, limit, shape, generator=generator, device=device)
        zeros = torch.randint(0, 16, (rows, HIDDEN // group), generator=generator, device=device)
        return dict(
            x=_normal(generator, device, tokens, HIDDEN),
            words=words.int(),
            scale=positive(generator, device, rows, HIDDEN // group),
            zero=zeros.to(torch.uint8),
            output=torch.empty(tokens, rows, dtype=DTYPE, device=device),
        )

    return make


def _byte_cache(generator: torch.Generator, device: torch.device, blocks: int) -> Tensor:
    numbers = whole(generator, device, blocks, BLOCK, KV_HEADS, DIM)
    scales = positive(generator, device, blocks, BLOCK, KV_HEADS, 1) / 50
    return torch.cat((numbers, scales.view(torch.int8)), -1)


def store_int8(tokens: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        problem = store_kv(tokens)(generator, device)
        for name in ("key_cache", "value_cache"):
            problem[name] = _byte_cache(generator, device, len(problem[name]))
        return problem

    return make


def decode_int8(requests: int, length: int) -> Callable[..., dict[str, Any]]:
    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        problem = decode(requests, length)(generator, device)
        for name in ("key_cache", "value_cache"):
            problem[name] = _byte_cache(generator, device, len(problem[name]))
        return problem

    return make


def masked(rows: int, vocab_size: int = 151_936) -> Callable[..., dict[str, Any]]:
    """Half of the tokens are allowed, in every row."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        shape = (rows, -(-vocab_size // 32))
        words = torch.randint(-(2**31), 2**31, shape, generator=generator, device=device)
        return dict(
            logits=torch.randn(rows, vocab_size, generator=generator, device=device),
            bitmask=words.int(),
            indices=torch.arange(rows, dtype=torch.int32, device=device),
        )

    return make


def judged(requests: int, drafts: int, vocab_size: int = 151_936) -> Callable[..., dict[str, Any]]:
    """All requests have as many drafts, and about half of them are accepted."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        total = requests * drafts
        tokens, bonus, recovered = (
            torch.randint(vocab_size, (n,), generator=generator, device=device)
            for n in (total, requests, total)
        )
        p, q, u = (
            torch.rand(*shape, generator=generator, device=device)
            for shape in ((total, vocab_size), (total, vocab_size), (total,))
        )
        return dict(
            output=torch.empty(requests, drafts + 1, dtype=torch.int64, device=device),
            draft_ends=torch.arange(1, requests + 1, device=device).mul(drafts).int(),
            draft_token_ids=tokens,
            draft_probs=q,
            target_probs=p,
            bonus_token_ids=bonus,
            recovered_token_ids=recovered,
            uniform_probs=u,
        )

    return make


def drawn(rows: int, vocab_size: int = 151_936) -> Callable[..., dict[str, Any]]:
    """All rows are random, of temperature 0.6."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        seeds = torch.randint(-(2**62), 2**62, (rows,), generator=generator, device=device)
        work = torch.empty(2, rows, num_tiles(vocab_size), device=device)
        return dict(
            token_ids=torch.empty(rows, dtype=torch.int64, device=device),
            logits=_normal(generator, device, rows, vocab_size),
            temperature=torch.full((rows,), 0.6, device=device),
            seeds=seeds,
            num_output_tokens=torch.arange(rows, device=device),
            largest=work[0],
            mass=work[1],
            max_logit=MAX_LOGIT,
        )

    return make


def grouped(tokens: int, experts: int = 128, top_k: int = 8) -> Callable[..., dict[str, Any]]:
    """The first product of a layer of Qwen3-30B-A3B, whose experts are drawn evenly."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        size, inner = 2048, 768
        scores = torch.rand(tokens, experts, generator=generator, device=device)
        tile = rows_tile(tokens * top_k, experts)
        sorted_ids, expert_ids, _ = moe_align_block_size(scores.topk(top_k).indices, tile, experts)
        return dict(
            x=_normal(generator, device, tokens, size),
            weight=_normal(generator, device, experts, 2 * inner, size),
            sorted_ids=sorted_ids,
            expert_ids=expert_ids,
            top_k=top_k,
            output=torch.empty(tokens * top_k, 2 * inner, dtype=DTYPE, device=device),
        )

    return make


def gdn(requests: int, heads: int = 32, dim: int = 128) -> Callable[..., dict[str, Any]]:
    """A layer of Qwen3-Next, whose q, k and v are float32 as in the engine; no request is new."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        query, key, value = (
            _normal(generator, device, requests, heads, dim).float() for _ in range(3)
        )
        return dict(
            query=query / dim,
            key=key / dim**0.5,
            value=value,
            g=-positive(generator, device, requests, heads),
            beta=positive(generator, device, requests, heads) / 2,
            states=torch.randn(requests, heads, dim, dim, generator=generator, device=device),
            block_ids=torch.randperm(requests, generator=generator, device=device),
            is_new=torch.zeros(requests, dtype=torch.bool, device=device),
            output=torch.empty_like(value),
        )

    return make


def mla(requests: int, length: int, heads: int, splits: int = 1) -> Callable[..., dict[str, Any]]:
    """DeepSeek's latents, of 512 numbers and 64 that turn."""

    def make(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
        blocks = requests * -(-length // BLOCK)
        order = torch.randperm(blocks, generator=generator, device=device)
        shape, dtype = (requests, heads, splits), torch.float32 if splits > 1 else DTYPE
        return dict(
            query=_normal(generator, device, requests, heads, 576),
            latents=_normal(generator, device, blocks, BLOCK, 576),
            block_table=order.view(requests, -1).int(),
            seq_lens=torch.full((requests,), length, dtype=torch.int32, device=device),
            scale=192**-0.5,
            output=torch.empty(*shape, 512, dtype=dtype, device=device),
            lse=torch.empty(shape, device=device),
        )

    return make


LARGE = (
    Large("store_kv", "16,384 tokens", store_kv(16384)),
    Large("paged_decode", "64 requests of 4,096 tokens", decode(64, 4096)),
    Large("paged_decode", "256 requests of 1,024 tokens", decode(256, 1024)),
    Large("paged_decode", "256 requests of 128 to 2,048 tokens", ragged(decode(256, 2048))),
    Large(
        "paged_decode",
        "256 requests of 128 to 2,048 tokens, the longest first",
        ragged(decode(256, 2048), order=True),
        target=0.85,
        optional="order_ptr",
    ),
    Large("split_decode", "1 request of 32,768 tokens, 32 splits", decode(1, 32768, 32)),
    Large("reduce_splits", "64 requests, 16 splits", reduce(64, 16)),
    Large("paged_prefill", "4 requests of 4,096 tokens", prefill(4, 4096)),
    Large("tiled_prefill", "4 requests of 4,096 tokens", prefill(4, 4096), target=0.3),
    Large("rms_norm", "16,384 tokens, with residual", norm(16384)),
    Large("rope", "16,384 tokens", rope(16384)),
    Large("qk_norm_rope_store", "256 tokens", qkv(256), target=0.25),
    Large("qk_norm_rope_store", "16,384 tokens", qkv(16384), target=0.75),
    Large("decode_inputs", "3 requests in a graph of 4, 16 blocks", replay(3, 4, 16)),
    Large("decode_inputs", "250 requests in a graph of 256, 64 blocks", replay(250, 256, 64)),
    Large("silu_mul", "16,384 tokens", silu(16384)),
    Large("apply_token_bitmask", "64 rows of 151,936 tokens", masked(64)),
    Large("per_token_quant_int8", "16,384 tokens", per_token(16384)),
    Large("gemm", "16 tokens", dense(16)),
    Large("gemm", "2,048 tokens", dense(2048)),
    Large("gemv", "1 token, gate and up", few(1, 2 * INTERMEDIATE, HIDDEN), target=0.7),
    Large("gemv", "1 token, down", few(1, HIDDEN, INTERMEDIATE), target=0.5),
    Large("gemv", "1 token, head of 151,936 rows", few(1, 151_936, HIDDEN), target=0.9),
    Large("gemv", "4 tokens, gate and up", few(4, 2 * INTERMEDIATE, HIDDEN), target=0.6),
    Large("w8a8_gemm", "16 tokens", w8a8(16)),
    Large("w8a8_gemm", "2,048 tokens", w8a8(2048)),
    Large("w4a16_gemm", "1 token", w4a16(1)),
    Large("w4a16_gemm", "16 tokens", w4a16(16)),
    Large("store_kv_int8", "16,384 tokens", store_int8(16384)),
    Large("paged_decode_int8", "64 requests of 4,096 tokens", decode_int8(64, 4096)),
    Large(
        "paged_decode_int8",
        "256 requests of 128 to 2,048 tokens",
        ragged(decode_int8(256, 2048)),
    ),
    Large(
        "paged_decode_int8",
        "256 requests of 128 to 2,048 tokens, the longest first",
        ragged(decode_int8(256, 2048), order=True),
        optional="order_ptr",
    ),
    Large("rejection_random_sample", "64 requests of 4 drafts, 151,936 tokens", judged(64, 4)),
    Large("draw_tokens", "256 rows of 151,936 tokens", drawn(256)),
    Large("lora_shrink", "128 rows of 32 adapters", shrink(128, 32)),
    Large("lora_shrink", "8,192 rows of 4 adapters", shrink(8192, 4)),
    Large("lora_expand", "128 rows of 32 adapters", expand(128, 32)),
    Large("lora_expand", "8,192 rows of 4 adapters", expand(8192, 4)),
    Large("grouped_gemm", "16 tokens, 8 of 128 experts each", grouped(16)),
    Large("grouped_gemm", "4,096 tokens, 8 of 128 experts each", grouped(4096)),
    Large("gdn_decode", "256 requests, 32 heads of 128 x 128", gdn(256), target=0.8),
    Large("mla_decode", "64 requests of 4,096 tokens, 16 heads", mla(64, 4096, 16), target=0.6),
    Large("mla_decode", "64 requests of 4,096 tokens, 128 heads", mla(64, 4096, 128), target=0.3),
    Large("mla_decode", "1 request of 32,768 tokens, 32 splits", mla(1, 32768, 16, 32), target=0.2),
    Large(
        "mla_decode",
        "256 requests of 128 to 2,048 tokens, 128 heads",
        ragged(mla(256, 2048, 128)),
    ),
    Large(
        "mla_decode",
        "256 requests of 128 to 2,048 tokens, 128 heads, the longest first",
        ragged(mla(256, 2048, 128), order=True),
        optional="order_ptr",
    ),
)


def large_of(spec: str, optional: Collection[str]) -> tuple[Large, ...]:
    """The problems by which a kernel with these `optional` parameters is timed."""
    known = [large for large in LARGE if large.spec == spec]
    return tuple(large for large in known if not large.optional or large.optional in optional)
