"""Mamba2's state space: the state of a head is a matrix to which each token adds.

    S <- e^{dt A} S + (dt x) B^T          A < 0 per head, dt > 0 per head and token
    y  = S C + D x

B corresponds to the key in attention, C to the query, x to the value; a group of heads shares B and
C. As in `gated_delta.py`, a decode computes exactly this, and prompts are computed in chunks.
Tokens do not correct each other, so no system is solved:

    Y = e^G C S^T + tril(C B^T e^{G_i - G_j}) (dt X)         G: running sum of dt A in a chunk
    S <- e^{G_C} S + (dt X)^T (e^{G_C - G} B)

Source: vllm/model_executor/layers/mamba/mamba_mixer2.py#L234-L245 (MambaMixer2) @ v0.22.1.
"""

from __future__ import annotations

from torch import Tensor

from mini_vllm.model.mixers.chunks import Chunks, decay_between


def of_heads(x: Tensor, num_heads: int) -> Tensor:
    """Repeat the vectors of groups for each of their heads: `[T, G, N] -> [T, H, N]`."""
    return x.repeat_interleave(num_heads // x.shape[1], dim=1)


def selective_state_update(
    x: Tensor, dt: Tensor, b: Tensor, c: Tensor, states: Tensor, *, a: Tensor, d: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of each of R requests: outputs `[R, H, P]` and new states `[R, H, P, N]`.

    `x` `[R, H, P]`, `dt` `[R, H]` (after softplus), `b` and `c` `[R, G, N]`, `a` and `d` `[H]`.
    Source: vllm/model_executor/layers/mamba/ops/mamba_ssm.py#L237-L490
    (_selective_scan_update_kernel) @ v0.22.1.
    """
    x, dt, b, c, a, d = (one.to(states.dtype) for one in (x, dt, b, c, a, d))
    b, c = (of_heads(one, x.shape[1]) for one in (b, c))
    added = (dt[..., None] * x)[..., :, None] * b[..., None, :]
    states = (dt * a).exp()[..., None, None] * states + added
    return (states @ c[..., :, None])[..., 0] + d[:, None] * x, states


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    states: Tensor,
    chunks: Chunks,
    *,
    a: Tensor,
    d: Tensor,
) -> tuple[Tensor, Tensor]:
    """All new tokens of R requests: outputs `[T, H, P]` and new states `[R, H, P, N]`.

    Shapes are those of `selective_state_update`, with the T tokens of the flat batch in place of R,
    and one state per request.
    Source: vllm/model_executor/layers/mamba/ops/ssd_combined.py#L27-L154
    (_mamba_chunk_scan_combined_fwd) @ v0.22.1.
    """
    x, dt, b, c, a, d = (one.to(states.dtype) for one in (x, dt, b, c, a, d))
    skip = d[:, None] * x
    b, c = (chunks.split(of_heads(one, x.shape[1])) for one in (b, c))  # [M, H, C, N]
    dt = chunks.split_scalars(dt)  # [M, H, C]
    written = chunks.split(x).mul_(dt[..., None])  # [M, H, C, P]
    total = (dt * a[:, None]).cumsum(-1)
    kept = total.exp()
    out = (c @ b.mT).mul_(decay_between(total)) @ written
    query, left = c.mul_(kept[..., None]), b.mul_((total[..., -1:] - total).exp_()[..., None])

    states = states.clone()
    for rows, chunk in chunks.rounds:
        state = states[rows]
        out[chunk] += query[chunk] @ state.mT
        end = kept[chunk, :, -1:, None]
        states[rows] = (written[chunk].mT @ left[chunk]).addcmul_(end, state)
    return chunks.join(out) + skip, states
