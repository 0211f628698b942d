"""How the kernels of `kernels/sampling_kernels.py` are launched, and the least work they can do."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.kernels.sampling_kernels"
TILE = 1024
"""Tokens of a tile. A vocabulary of 151,936 has 149 tiles; the second kernel reads one number of
each."""


def num_tiles(vocab_size: int) -> int:
    return -(-vocab_size // TILE)


def plan_draw_tokens(
    token_ids: Tensor,
    logits: Tensor,
    temperature: Tensor | None,
    seeds: Tensor | None,
    num_output_tokens: Tensor | None,
    largest: Tensor,
    mass: Tensor,
    max_logit: float,
) -> list[Launch]:
    """`token_ids` `[B]` int64; `logits` `[B, V]` with a free row stride; `temperature` `[B]`
    float32, `seeds` and `num_output_tokens` `[B]` int64, all three None if every row is greedy;
    `largest` and `mass` `[B, num_tiles(V)]` float32, both room to work in."""
    num_rows, vocab_size = logits.shape
    tiles = largest.shape[1]
    is_greedy = temperature is None
    if temperature is None or seeds is None or num_output_tokens is None:
        temperature, seeds, num_output_tokens = largest, token_ids, token_ids  # none is read
    sizes = {"logits_stride": logits.stride(0), "vocab_size": vocab_size, "num_tiles": tiles}
    constexprs: dict[str, int | float | bool] = {"GREEDY": is_greedy, "TILE": TILE}
    masses = Launch(
        "tile_masses_kernel",
        grid=(num_rows, tiles),
        args={
            "logits_ptr": logits,
            "temperature_ptr": temperature,
            "largest_ptr": largest,
            "mass_ptr": mass,
            **sizes,
        },
        constexprs=constexprs,
    )
    draw = Launch(
        "draw_tokens_kernel",
        grid=(num_rows,),
        args={
            "token_ids_ptr": token_ids,
            "logits_ptr": logits,
            "temperature_ptr": temperature,
            "seeds_ptr": seeds,
            "num_output_tokens_ptr": num_output_tokens,
            "largest_ptr": largest,
            "mass_ptr": mass,
            **sizes,
            "max_logit": max_logit,
        },
        constexprs={**constexprs, "TILES": next_power_of_2(tiles)},
    )
    return [masses, draw]


def work_draw_tokens(
    token_ids: Tensor,
    logits: Tensor,
    temperature: Tensor | None,
    seeds: Tensor | None,
    num_output_tokens: Tensor | None,
    largest: Tensor,
    mass: Tensor,
    max_logit: float,
) -> Work:
    """Every logit once; the parameters of each row; and one token a row."""
    rows = [tensor for tensor in (temperature, seeds, num_output_tokens) if tensor is not None]
    written = tensor_bytes(token_ids, largest, mass)
    return Work(tensor_bytes(logits, *rows), written, flops=0)


DRAW_TOKENS = KernelSpec(
    name="draw_tokens",
    module=MODULE,
    kernels=("tile_masses_kernel", "draw_tokens_kernel"),
    plan=plan_draw_tokens,
    work=work_draw_tokens,
    outputs=("token_ids", "largest", "mass"),
)

SPECS = (DRAW_TOKENS,)
