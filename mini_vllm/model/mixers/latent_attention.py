"""Multi-head latent attention as a layer: DeepSeek's.

    x -> (latent ->) q [N, P + R]    its last R features are rotated
      -> c [C], norm
      -> k_r [R], rotated
         c | k_r -> cache
    a prompt: keys and values of its whole context      a decode: attention over the latents

Source: vllm/model_executor/models/deepseek_v2.py#L865-L1067 (DeepseekV2MLAAttention) @ v0.22.1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.triton_backend import starting_order
from mini_vllm.kernels import can_launch
from mini_vllm.kernels.mixers import mla_decode, mla_programs
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.interface import LayerSpec
from mini_vllm.model.layers import Build, Linear, RMSNorm, to_compute_dtype
from mini_vllm.model.layout import WHOLE, Layout, ParamSpec
from mini_vllm.model.mixers.mla import attend_expanded, attend_latent
from mini_vllm.model.parts.attention import neighbours_apart
from mini_vllm.model.rope import apply_rope

LATENT_EPS = 1e-6
"""The epsilon of the norms of latents; the config's is for the other norms."""


class FromLatents(nn.Module):
    """The matrix that maps latents to keys and values: `[N * (P + V), C]`, `kv_b_proj` in files.

    A decode never multiplies by the whole matrix, so it is not a `Linear`.
    """

    def __init__(self, rows: int, columns: int, layout: Layout) -> None:
        super().__init__()
        self.parts, self.whole_parts = (one.parts(columns, [rows]) for one in (layout, WHOLE))
        self.weight = nn.Parameter(torch.empty(self.parts[0].output_size, columns))
        self.weight.spec = ParamSpec(out_dim=0, in_dim=1)  # type: ignore[attr-defined]

    def process_weights_after_loading(self) -> None:
        self.weight.data = to_compute_dtype(self.weight)


class LatentAttention(nn.Module):
    """Arguments as of every mixer, see `model/decoder.py`."""

    layer_spec = LayerSpec()  # latents of every token are read

    def __init__(self, args: ModelArgs, build: Build, index: int, prefix: str) -> None:
        super().__init__()
        assert args.latent is not None
        self.args = own = args.latent
        heads, hidden, bias = args.num_attention_heads, args.hidden_size, args.qkv_bias
        column, row = build.parallel.column(), build.parallel.row()
        rows = heads * own.qk_head_dim
        if own.q_lora_rank is None:
            self.q_proj = Linear(hidden, rows, False, build, column, f"{prefix}.q_proj")
        else:
            rank = own.q_lora_rank
            self.q_a_proj = Linear(hidden, rank, bias, build, prefix=f"{prefix}.q_a_proj")
            self.q_a_layernorm = RMSNorm(rank, LATENT_EPS)
            self.q_b_proj = Linear(rank, rows, False, build, column, f"{prefix}.q_b_proj")
        self.kv_a_proj_with_mqa = Linear(
            hidden, own.cache_size, bias, build, prefix=f"{prefix}.kv_a_proj_with_mqa"
        )
        self.kv_a_layernorm = RMSNorm(own.kv_lora_rank, LATENT_EPS)
        rows = heads * (own.qk_nope_head_dim + own.v_head_dim)
        self.kv_b_proj = FromLatents(rows, own.kv_lora_rank, column)
        width = heads * own.v_head_dim
        self.o_proj = Linear(width, hidden, args.o_bias, build, row, f"{prefix}.o_proj")
        self.turns_neighbours = args.parts.turns_neighbours
        self.scale = args.parts.attention_scale or own.qk_head_dim**-0.5

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """One plane, because a latent is key and value at once, and one "head" that all share."""
        return 1, 1, self.args.cache_size

    def queries(self, x: Tensor) -> Tensor:
        """The queries before rotation, `[T, H] -> [T, N, P + R]`."""
        if self.args.q_lora_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return q.view(len(x), -1, self.args.qk_head_dim)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], kv_cache: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """`[T, H] -> [T, H]`; `kv_cache` is `[1, blocks, block_size, 1, C + R]`."""
        own = self.args
        q_n, q_r = self.queries(x).split([own.qk_nope_head_dim, own.qk_rope_head_dim], dim=-1)
        c, k_r = self.kv_a_proj_with_mqa(x).split([own.kv_lora_rank, own.qk_rope_head_dim], dim=-1)
        turning = torch.cat((q_r, k_r[:, None]), dim=1)
        if self.turns_neighbours:
            turning = neighbours_apart(turning, own.qk_rope_head_dim)
        turned = apply_rope(turning, *rope)
        query = torch.cat((q_n, turned[:, :-1]), dim=-1)
        latents = torch.cat((self.kv_a_layernorm(c.contiguous()), turned[:, -1]), dim=-1)
        pages = kv_cache[0, :, :, 0]
        slots = metadata.slot_mapping.clamp(min=0)  # padding goes into the null block
        pages[slots // pages.shape[1], slots % pages.shape[1]] = latents.to(pages.dtype)
        return self.o_proj(self.attend(query, pages, metadata).flatten(1))

    def attend(self, query: Tensor, pages: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Attention `[T, N, V]` of `query` over `pages` `[blocks, block_size, C + R]`."""
        weight = self.kv_b_proj.weight.view(query.shape[1], -1, self.args.kv_lora_rank)
        num, outs = metadata.num_decode_reqs, []
        if num and can_launch(query):
            outs.append(self.attend_on_pages(query[:num], pages, metadata, weight))
        elif num:
            lens = metadata.seq_lens_cpu[:num]
            latents = gather(pages, metadata.block_table[:num], max(lens)).to(query.dtype)
            seen = metadata.seq_lens[:num]
            outs.append(attend_latent(query[:num], latents, seen, weight, self.scale))
        start = num  # decodes have a token each
        for request in range(num, metadata.num_reqs):
            length, count = metadata.seq_lens_cpu[request], metadata.query_lens_cpu[request]
            table = metadata.block_table[request : request + 1]
            latents = gather(pages, table, length)[0].to(query.dtype)
            own = query[start : start + count]
            outs.append(attend_expanded(own, latents, weight, self.scale))
            start += count
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def attend_on_pages(
        self, query: Tensor, pages: Tensor, metadata: AttentionMetadata, weight: Tensor
    ) -> Tensor:
        """`attend_latent` by a kernel that reads the pages in place."""
        p, num = self.args.qk_nope_head_dim, len(query)
        absorbed = torch.einsum("bnp,npc->bnc", query[..., :p], weight[:, :p])
        mixed = mla_decode(
            torch.cat((absorbed, query[..., p:]), dim=-1), pages, metadata.block_table[:num],
            metadata.seq_lens[:num], self.scale, weight.shape[2], metadata.max_seq_len,
            starting_order(metadata, mla_programs(num, query.shape[1])),
        )  # fmt: skip
        return torch.einsum("bnc,nvc->bnv", mixed, weight[:, p:])


def gather(pages: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` latents `[R, length, C + R]` of requests by their block tables."""
    width = -(-length // pages.shape[1])
    return pages[table[:, :width].long()].flatten(1, 2)[:, :length]
