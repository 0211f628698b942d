"""The gated delta rule: the state of a head is a matrix S that maps keys to values.

    S <- e^g S                     decay of the old state (g <= 0)
    d  = beta (v - S^T k)          the error of the value stored for key k, times a rate beta
    S <- S + k d^T                 correction of the stored value
    o  = S^T q                     the output: the value stored for the query

A decode computes exactly this (`recurrent_gated_delta_rule`). For a prompt that would be one step
after another, so prompts are computed in chunks (`chunk_gated_delta_rule`): the corrections of the
tokens of a chunk depend on each other through one triangular system, and S is updated once per
chunk. G is the running sum of g inside a chunk, and A is the part of beta (K K^T) e^{G_i - G_j}
strictly below the diagonal, because a token does not correct itself:

    N = (I + A)^-1 beta (V - e^G K S)         the correction of each token
    O = e^G Q S + tril(Q K^T e^{G_i - G_j}) N
    S <- e^{G_C} S + (e^{G_C - G} K)^T N

Both compute in the dtype of the states, which is float32: in bfloat16 small corrections are lost.
Source: vllm/model_executor/layers/fla/ops/chunk.py#L23-L86 (chunk_gated_delta_rule_fwd) @ v0.22.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.model.mixers.chunks import Chunks, decay_between


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """`x` with its last dimension scaled to length 1."""
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def log_decay(a: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """g, the logarithm of the decay factor: `[T, H]` float32, at most 0."""
    return -a_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())


def recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of each of R requests: outputs `[R, H, Dv]` and new states `[R, H, Dk, Dv]`.

    `q` and `k` `[R, H, Dk]`, `v` `[R, H, Dv]`, `g` and `beta` `[R, H]`. `q` is scaled already. All
    are taken to the dtype of `states`, in which both results are. No argument is changed.
    Source: vllm/model_executor/layers/fla/ops/fused_recurrent.py#L27-L175
    (fused_recurrent_gated_delta_rule_fwd_kernel) @ v0.22.1.
    """
    q, k, v, g, beta = (x.to(states.dtype) for x in (q, k, v, g, beta))
    states = states * g.exp()[..., None, None]
    answer = (k[..., None, :] @ states)[..., 0, :]
    delta = beta[..., None] * (v - answer)
    states = states + k[..., :, None] * delta[..., None, :]
    return (q[..., None, :] @ states)[..., 0, :], states


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor, chunks: Chunks
) -> tuple[Tensor, Tensor]:
    """All new tokens of R requests: outputs `[T, H, Dv]` and new states `[R, H, Dk, Dv]`.

    The same numbers as from `recurrent_gated_delta_rule` token by token; shapes are those there,
    with the T tokens of the flat batch in place of R, and a state a request. Tokens of different
    requests know nothing of each other. No exponent is above 0 (`decay_between`), so a head that
    forgets at once gives numbers. States move on once a chunk (`chunks.rounds`), never once a
    token. No argument is changed.
    """
    q, k, v = (chunks.split(x.to(states.dtype)) for x in (q, k, v))  # [M, H, C, D]
    g, beta = (chunks.split_scalars(x.to(states.dtype)) for x in (g, beta))  # [M, H, C]
    total = g.cumsum(-1)
    decay, kept = decay_between(total), total.exp()
    system = (k @ k.mT).mul_(decay).mul_(beta[..., None])  # its diagonal is not read
    one = torch.eye(chunks.size, dtype=k.dtype, device=k.device).expand_as(system)
    solution = torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
    solution = solution.mul_(beta[..., None, :])
    scores = (q @ k.mT).mul_(decay)
    query, key = q.mul_(kept[..., None]), k * kept[..., None]
    left = k.mul_((total[..., -1:] - total).exp_()[..., None])

    out, states = torch.empty_like(v), states.clone()
    for rows, chunk in chunks.rounds:
        state = states[rows]
        written = solution[chunk] @ v[chunk].sub_(key[chunk] @ state)
        torch.add(query[chunk] @ state, scores[chunk] @ written, out=out[chunk])
        end = kept[chunk, :, -1:, None]
        states[rows] = (left[chunk].mT @ written).addcmul_(end, state)
    return chunks.join(out), states
