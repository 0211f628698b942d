"""The plain sampler in two kernels that read the logits once: tiles of a row, then one token a row.

Only kernels live here: `kernels/sampling.py` says how they are launched.
"""

import triton
import triton.language as tl


@triton.jit
def tile_masses_kernel(
    logits_ptr,  # [B, V], rows `logits_stride` apart
    temperature_ptr,  # [B] float32; 0 marks a greedy row. Not read if GREEDY
    largest_ptr,  # [B, N] float32
    mass_ptr,  # [B, N] float32
    logits_stride,
    vocab_size,
    num_tiles,
    GREEDY: tl.constexpr,
    TILE: tl.constexpr,
):
    """Largest logit of a tile, and the sum of exp((logit - largest) / temperature). Grid: (B, N).

    A greedy row counts as one of temperature 1. A tile of -inf alone has mass 0; NaN or +inf make
    the mass NaN, which tells the second kernel that the row failed.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    place = logits_ptr + row * logits_stride + token
    logit = tl.load(place, mask=token < vocab_size, other=-float("inf")).to(tl.float32)
    largest = tl.max(logit, axis=0)
    weight = tl.where(logit == -float("inf"), 0.0, tl.exp(
        (logit - largest) / _divisor(temperature_ptr, row, GREEDY)
    ))  # fmt: skip
    tl.store(largest_ptr + row * num_tiles + tile, largest)
    tl.store(mass_ptr + row * num_tiles + tile, tl.sum(weight, axis=0))


@triton.jit
def draw_tokens_kernel(
    token_ids_ptr,  # [B] int64
    logits_ptr,  # [B, V], rows `logits_stride` apart
    temperature_ptr,  # [B] float32; 0 marks a greedy row. Not read if GREEDY, nor the next two
    seeds_ptr,  # [B] int64
    num_output_tokens_ptr,  # [B] int64: the index of the token that is drawn
    largest_ptr,  # [B, N] float32
    mass_ptr,  # [B, N] float32
    logits_stride,
    vocab_size,
    num_tiles,
    max_logit,
    GREEDY: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token of one row, or what stands for its failure. Grid: (B,).

    A greedy row takes the first of its largest logits. Any other row inverts the cumulative
    distribution: its number u in [0, 1) falls into one tile of the sum of masses, and there on one
    token. Of the logits this kernel reads that tile only. -1 stands for a row with NaN, or whose
    largest logit is beyond `max_logit` on either side; -2 for a row of -inf alone.

    TILES is a power of two, at least N = num_tiles.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    is_tile = tile < num_tiles
    largest = tl.load(largest_ptr + row * num_tiles + tile, mask=is_tile, other=-float("inf"))
    mass = tl.load(mass_ptr + row * num_tiles + tile, mask=is_tile, other=0.0)
    is_broken = tl.max((mass != mass).to(tl.int32), axis=0) != 0
    top = tl.max(tl.where(mass != mass, -float("inf"), largest), axis=0)
    failure = tl.where((top == -float("inf")) & (is_broken == 0), -2, -1)
    is_broken = is_broken | (tl.abs(top) > max_logit)

    chosen = tl.min(tl.where(largest == top, tile, TILES), axis=0)
    divisor = _divisor(temperature_ptr, row, GREEDY)
    rest = 0.0
    if not GREEDY:
        is_greedy = tl.load(temperature_ptr + row) == 0
        share = tl.where(largest == -float("inf"), 0.0, mass * tl.exp((largest - top) / divisor))
        running = tl.cumsum(share, axis=0)
        u = _uniform(tl.load(seeds_ptr + row), tl.load(num_output_tokens_ptr + row))
        target = u * tl.max(running, axis=0)
        drawn = tl.min(tl.where((running > target) & (share > 0), tile, TILES), axis=0)
        chosen = tl.where(is_greedy, chosen, drawn)
        before = tl.sum(tl.where(tile == chosen, running - share, 0.0), axis=0)
        rest = target - before  # how far into the tile's share

    chosen = tl.where(is_broken, 0, tl.minimum(chosen, num_tiles - 1))
    token = chosen * TILE + tl.arange(0, TILE)
    place = logits_ptr + row * logits_stride + token
    logit = tl.load(place, mask=token < vocab_size, other=-float("inf")).to(tl.float32)
    picked = tl.min(tl.where(logit == top, token, vocab_size), axis=0)
    if not GREEDY:
        weight = tl.where(logit == -float("inf"), 0.0, tl.exp((logit - top) / divisor))
        is_above = (tl.cumsum(weight, axis=0) > rest) & (weight > 0)
        above = tl.min(tl.where(is_above, token, vocab_size), axis=0)
        # Rounding may leave the tile's sum a little below what the first kernel found.
        last = tl.max(tl.where(weight > 0, token, 0), axis=0)
        picked = tl.where(is_greedy, picked, tl.minimum(above, last))
    tl.store(token_ids_ptr + row, tl.where(is_broken, failure, picked).to(tl.int64))


@triton.jit
def _divisor(temperature_ptr, row, GREEDY: tl.constexpr):
    """What a row's logits are divided by: its temperature, or 1 if it is greedy."""
    if GREEDY:
        return 1.0
    temperature = tl.load(temperature_ptr + row)
    return tl.where(temperature == 0, 1.0, temperature)


@triton.jit
def _uniform(seed, index):
    """The number in [0, 1) of a seed and an index: `uniform_numbers` of `sample/sampler.py`."""
    golden: tl.constexpr = 0x9E3779B97F4A7C15
    start = _mix64(seed.to(tl.uint64, bitcast=True) + golden)
    bits = _mix64(start + index.to(tl.uint64, bitcast=True) * golden)
    return (bits >> 40).to(tl.float32) * (1.0 / 16777216)


@triton.jit
def _mix64(x):
    """`mix64` of `sample/sampler.py`."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
