"""How the kernels of `gdn_decode.py` and `mla_decode.py` are launched, and the least work they can
do."""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.kernels.attention import MIN_DOT, REDUCE_SPLITS, choose_num_splits
from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes
from mini_vllm.platforms import platform_of


# ---------------------------------------------------------------- gdn_decode
def plan_gdn_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    states: Tensor,
    block_ids: Tensor,
    is_new: Tensor,
    output: Tensor,
) -> list[Launch]:
    """`query`, `key` `[R, H, Dk]` and `value` `[R, H, Dv]` (only the request stride is free), `g`,
    `beta` `[R, H]` float32, `states` `[blocks, H, Dk, Dv]` float32 (its block stride is free),
    `block_ids` `[R]` int64, `is_new` `[R]` bool -> `output` `[R, H, Dv]`."""
    num_reqs, num_heads, key_dim = query.shape
    value_dim = value.shape[2]
    value_tile = min(next_power_of_2(value_dim), 32)
    launch = Launch(
        "gdn_decode_kernel",
        grid=(num_reqs, num_heads, -(-value_dim // value_tile)),
        args={
            "output_ptr": output,
            "states_ptr": states,
            "query_ptr": query,
            "key_ptr": key,
            "value_ptr": value,
            "g_ptr": g,
            "beta_ptr": beta,
            "block_ids_ptr": block_ids,
            "is_new_ptr": is_new,
            "states_stride": states.stride(0),
            "query_stride": query.stride(0),
            "key_stride": key.stride(0),
            "value_stride": value.stride(0),
        },
        constexprs={
            "KEY_DIM": key_dim,
            "VALUE_DIM": value_dim,
            "KEY_TILE": next_power_of_2(key_dim),
            "VALUE_TILE": value_tile,
        },
    )
    return [launch]


def work_gdn_decode(states: Tensor, is_new: Tensor, output: Tensor, **tokens: Tensor) -> Work:
    """Each state once, except new ones; the inputs of each token; and both results."""
    state, num_reqs = tensor_bytes(states[0]), len(output)
    read = tensor_bytes(is_new, *tokens.values()) + int((~is_new).sum()) * state
    written = num_reqs * state + tensor_bytes(output)
    return Work(read, written, flops=7 * num_reqs * states[0].numel())


GDN_DECODE = KernelSpec(
    name="gdn_decode",
    module="mini_vllm.kernels.gdn_decode",
    kernels=("gdn_decode_kernel",),
    plan=plan_gdn_decode,
    work=work_gdn_decode,
    outputs=("output",),
    updates=("states",),
)


# ---------------------------------------------------------------- mla_decode
def head_tile(num_heads: int) -> int:
    """Heads of a program. The accumulators of more than 32 do not fit into registers."""
    return MIN_DOT if num_heads <= MIN_DOT else 32


def mla_programs(num_reqs: int, num_heads: int) -> int:
    """Programs of a decode over latents whose contexts are not split."""
    return num_reqs * -(-num_heads // head_tile(num_heads))


def plan_mla_decode(
    query: Tensor,
    latents: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    output: Tensor,
    lse: Tensor,
    order: Tensor | None = None,
) -> list[Launch]:
    """`query` `[R, N, C + P]` (its request stride is free), `latents` `[blocks, block_size, C + P]`
    -> `output` `[R, N, S, C]` and `lse` `[R, N, S]` float32, for S splits. `order` is that of
    `decode_launch`."""
    num_reqs, num_heads, num_splits, latent = output.shape
    rope = query.shape[2] - latent
    heads = head_tile(num_heads)
    launch = Launch(
        "mla_decode_kernel",
        grid=(num_reqs, -(-num_heads // heads), num_splits),
        args={
            "output_ptr": output,
            "lse_ptr": lse,
            "query_ptr": query,
            "latents_ptr": latents,
            "block_table_ptr": block_table,
            "seq_lens_ptr": seq_lens,
            "query_stride": query.stride(0),
            "table_stride": block_table.stride(0),
            "scale": scale,
        }
        | ({} if order is None else {"order_ptr": order}),
        constexprs={
            "BLOCK_SIZE": latents.shape[1],
            "NUM_HEADS": num_heads,
            "LATENT": latent,
            "ROPE": rope,
            "HEAD_TILE": heads,
            "LATENT_TILE": max(next_power_of_2(latent), MIN_DOT),
            "ROPE_TILE": max(next_power_of_2(rope), MIN_DOT),
            "KEY_TILE": 32 if query.itemsize < 4 else 16,
        },
        num_warps=heads // 4,
    )
    return [launch]


def work_mla_decode(
    query: Tensor,
    latents: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    output: Tensor,
    lse: Tensor,
    order: Tensor | None = None,
) -> Work:
    """Each latent once, for all heads; its table entry; queries; the order; and both results."""
    block_size, width = latents.shape[1:]
    num_heads, latent = output.shape[1], output.shape[3]
    num_tokens = int(seq_lens.sum())
    num_entries = int((-(-seq_lens // block_size)).sum())
    read = num_tokens * width * latents.itemsize + num_entries * block_table.itemsize
    read += 0 if order is None else tensor_bytes(order)
    return Work(
        read + tensor_bytes(query, seq_lens),
        tensor_bytes(output, lse),
        flops=2 * num_tokens * num_heads * (width + latent),
    )


MLA_DECODE = KernelSpec(
    name="mla_decode",
    module="mini_vllm.kernels.mla_decode",
    kernels=("mla_decode_kernel",),
    plan=plan_mla_decode,
    work=work_mla_decode,
    outputs=("output", "lse"),
)

SPECS = (GDN_DECODE, MLA_DECODE)


# ---------------------------------------------------------------- for the engine
def gdn_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    states: Tensor,
    block_ids: Tensor,
    is_new: Tensor,
) -> Tensor:
    """Outputs `[R, H, Dv]` of one token of each request; `states` are updated in place. Shapes are
    those of `plan_gdn_decode`."""
    output = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    tokens = dict(query=query, key=key, value=value, g=g, beta=beta)
    GDN_DECODE.run(states=states, block_ids=block_ids, is_new=is_new, output=output, **tokens)
    return output


def mla_decode(
    query: Tensor,
    latents: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    size: int,
    max_seq_len: int,
    order: Tensor | None = None,
) -> Tensor:
    """Averages `[R, N, C]` of the first `size` = C numbers of each request's latents, by its
    queries `[R, N, C + P]`. A context is split where requests and heads leave the GPU idle. With
    `order` programs start in this order of requests."""
    num_reqs, num_heads, _ = query.shape
    processors = platform_of(query.device).num_compute_units(query.device)
    splits = choose_num_splits(mla_programs(num_reqs, num_heads), max_seq_len, processors)
    shape, device = (num_reqs, num_heads, splits), query.device
    partial_dtype = query.dtype if splits == 1 else torch.float32
    partial = torch.empty(*shape, size, dtype=partial_dtype, device=device)
    lse = torch.empty(shape, dtype=torch.float32, device=device)
    MLA_DECODE.run(
        query=query, latents=latents, block_table=block_table, seq_lens=seq_lens, scale=scale,
        output=partial, lse=lse, order=order,
    )  # fmt: skip
    if splits == 1:
        return partial[:, :, 0]
    output = torch.empty(num_reqs, num_heads, size, dtype=query.dtype, device=device)
    REDUCE_SPLITS.run(partial=partial, lse=lse, output=output)
    return output
