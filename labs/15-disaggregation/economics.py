"""When is KV worth fetching? Bytes, links and prefill speed, and where they meet.

Computing a token's keys and values takes time, and so does carrying them. Both grow with the number
of tokens, but only carrying has a price of its own for every trip::

    seconds
      |            . computing: n / prefill rate
      |         .
      |      .            _ carrying: fixed + n * bytes / bandwidth
      |   .  _  -
      | _ .
      |.-----------------------  tokens
           break-even

A link that is slower than ``bytes per token * prefill rate`` never catches up, however long the
prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LINKS = {
    "10 GbE": 1.2e9,
    "NVMe": 6e9,
    "100 GbE": 12e9,
    "PCIe 5 x16": 55e9,
    "NVLink": 400e9,
}
"""Bytes per second that such a link carries in practice."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that decide how many bytes of KV a token has."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    bytes_per_number: int = 2


SHAPES = {
    "storyteller": Shape(4, 2, 64, 4),
    "Qwen3-0.6B": Shape(28, 8, 128),
    "Llama-3.1-8B": Shape(32, 8, 128),
    "Llama-3.1-70B": Shape(80, 8, 128),
}


def kv_bytes_per_token(shape: Shape) -> int:
    """Bytes of one token's keys and values, over all layers."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.bytes_per_number


def load_seconds(
    num_tokens: int, bytes_per_token: int, bandwidth: float, fixed_seconds: float = 0.0
) -> float:
    """Seconds to carry the KV of ``num_tokens`` tokens over a link.

    Args:
        bandwidth: bytes per second.
        fixed_seconds: that every trip takes, however little it carries.
    """
    return fixed_seconds + num_tokens * bytes_per_token / bandwidth


def break_even_tokens(
    bytes_per_token: int, bandwidth: float, prefill_rate: float, fixed_seconds: float = 0.0
) -> float:
    """From how many tokens on carrying is faster than computing.

    Computing takes ``1 / prefill_rate`` seconds a token, carrying ``bytes_per_token / bandwidth``
    and ``fixed_seconds`` once. Attention's square is left out; with it carrying would pay even
    sooner.

    Args:
        bandwidth: bytes per second.
        prefill_rate: tokens per second.

    Returns:
        The number, as a fraction; infinity if a token is not carried faster than it is computed.
    """
    # TODO 15.1
    raise NotImplementedError(
        "TODO 15.1: write break_even_tokens in labs/15-disaggregation/economics.py"
        " (phase 15, 02-mini-build.md#task-1)"
    )


def table(prefill_rate: float, fixed_seconds: float = 1e-3) -> list[tuple[str, str, float]]:
    """Break-even lengths of well-known models over well-known links."""
    return [
        (
            model,
            link,
            break_even_tokens(kv_bytes_per_token(shape), bandwidth, prefill_rate, fixed_seconds),
        )
        for model, shape in SHAPES.items()
        for link, bandwidth in LINKS.items()
    ]
