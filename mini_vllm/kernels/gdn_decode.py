"""The gated delta rule for one token a request, on a GPU. Only the kernel lives here:
`kernels/mixers.py` says how it is launched.

    S <- e^g S      d = beta (v - S^T k)      S <- S + k d^T      o = S^T q

A column of S answers by itself, so a program takes some columns through the whole rule: it reads
them once, and writes them once, in place.
"""

import triton
import triton.language as tl


@triton.jit
def gdn_decode_kernel(
    output_ptr,  # [R, H, VALUE_DIM]
    states_ptr,  # [blocks, H, KEY_DIM, VALUE_DIM] float32, blocks `states_stride` apart
    query_ptr,  # [R, H, KEY_DIM], requests `query_stride` apart
    key_ptr,  # the same, requests `key_stride` apart
    value_ptr,  # [R, H, VALUE_DIM], requests `value_stride` apart
    g_ptr,  # [R, H] float32: logarithm of what is kept
    beta_ptr,  # [R, H] float32: how much of what falls short is corrected
    block_ids_ptr,  # [R] int64: the block of each request's state
    is_new_ptr,  # [R] bool: it starts from zeros, whatever lies in its block
    states_stride,
    query_stride,
    key_stride,
    value_stride,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
):
    """Some columns of a head's state, moved on by a token. Grid: (R, H, tiles of VALUE_DIM).

    All is computed in float32. No two requests have the same block.

    Source: vllm/model_executor/layers/fla/ops/fused_recurrent.py#L27-L175
    (fused_recurrent_gated_delta_rule_fwd_kernel) @ v0.22.1.
    """
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = request * tl.num_programs(1) + head
    key_dim = tl.arange(0, KEY_TILE)
    value_dim = tl.program_id(2) * VALUE_TILE + tl.arange(0, VALUE_TILE)
    in_key, in_value = key_dim < KEY_DIM, value_dim < VALUE_DIM
    in_state = in_key[:, None] & in_value[None, :]

    query_at = query_ptr + request * query_stride + head * KEY_DIM + key_dim
    key_at = key_ptr + request * key_stride + head * KEY_DIM + key_dim
    value_at = value_ptr + request * value_stride + head * VALUE_DIM + value_dim
    query = tl.load(query_at, mask=in_key, other=0.0).to(tl.float32)
    key = tl.load(key_at, mask=in_key, other=0.0).to(tl.float32)
    value = tl.load(value_at, mask=in_value, other=0.0).to(tl.float32)

    block = tl.load(block_ids_ptr + request)
    place = (head * KEY_DIM + key_dim[:, None]) * VALUE_DIM + value_dim[None, :]
    state_at = states_ptr + block * states_stride + place
    state = tl.zeros([KEY_TILE, VALUE_TILE], tl.float32)
    if tl.load(is_new_ptr + request) == 0:
        state = tl.load(state_at, mask=in_state, other=0.0)

    state = state * tl.exp(tl.load(g_ptr + row))
    answer = tl.sum(state * key[:, None], axis=0)
    delta = tl.load(beta_ptr + row) * (value - answer)
    state = state + key[:, None] * delta[None, :]
    output = tl.sum(state * query[:, None], axis=0)
    tl.store(state_at, state, mask=in_state)
    tl.store(output_ptr + row * VALUE_DIM + value_dim, output, mask=in_value)
