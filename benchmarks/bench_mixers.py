"""What the second form of a mixer gains over the first: CPU time of a call.

    python -m benchmarks.bench_mixers              one thread; about half a minute
    python -m benchmarks.bench_mixers --size 64    the same in larger chunks
    python -m benchmarks.bench_mixers --threads 2  time on the clock, with two threads

    gated delta rule   a prompt token by token, in chunks of torch's products, and in chunks in C++.
                       The limit is the gain if nothing were left but three products a token with a
                       head's matrix, which all forms need, as fast as PyTorch multiplies anything
    state space        the same of Mamba2
    latent attention   a decode with keys and values made of the cache, and on latents as they are;
                       and the bytes that a token takes in the cache

Each figure is the shortest of some turns, in milliseconds; with one thread of CPU time: neighbours
come and go. All forms take turns. The gain is that of the last form over the first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.arena.measure import processor
from mini_vllm.kernels import native_states
from mini_vllm.model.mixers.chunks import CHUNK_SIZE, Chunks
from mini_vllm.model.mixers.gated_delta import chunk_gated_delta_rule, recurrent_gated_delta_rule
from mini_vllm.model.mixers.mamba2 import chunk_scan, selective_state_update
from mini_vllm.model.mixers.mla import attend_expanded, attend_latent

Action = Callable[[], Any]
DELTA = {"Qwen3-Next's layer": (32, 128), "a storyteller's layer": (4, 32)}
"""Value heads, and the sides of a head's matrix."""
LATENT = {"DeepSeek-V2-Lite": (16, 128, 128, 64, 512), "DeepSeek-V3": (128, 128, 128, 64, 512)}
"""Heads, P, V, R and C, see `mla.py`."""


def best_ms(actions: Sequence[Action], turns: int) -> list[float]:
    """The shortest time of a call of each: of one thread's work, or on the clock for several. They
    take turns, so that none has a quieter time of the machine, or warmer caches."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = [float("inf")] * len(actions)
    for turn in range(turns + 1):
        for index, action in enumerate(actions):
            start = clock()
            action()
            taken = clock() - start
            best[index] = min(best[index], taken) if turn else best[index]  # the first warms up
    return [seconds * 1e3 for seconds in best]


def gated_delta(num: int, heads: int, side: int, chunk: int) -> list[Action]:
    """A prompt of `num` tokens: token by token, in chunks, and where it is built in C++."""
    q, k, v = (torch.randn(num, heads, side) for _ in range(3))
    q, k = F.normalize(q, dim=-1) * side**-0.5, F.normalize(k, dim=-1)
    g, beta = -F.softplus(torch.randn(num, heads)), torch.rand(num, heads)
    states = torch.zeros(1, heads, side, side)

    def by_token() -> Tensor:
        state = states
        for q1, k1, v1, g1, beta1 in zip(*(x.split(1) for x in (q, k, v, g, beta)), strict=True):
            _, state = recurrent_gated_delta_rule(q1, k1, v1, g1, beta1, state)
        return state

    chunks = Chunks([num], chunk)  # once a step, for all layers
    actions = [by_token, lambda: chunk_gated_delta_rule(q, k, v, g, beta, states, chunks)]
    if native_states.can_run_gated_delta(states):
        call, tokens = native_states.gated_delta, (q, k, v, g, beta)
        actions.append(lambda: call(*tokens, states.clone(), chunks.starts))  # it changes them
    return actions


def state_space(num: int, heads: int, side: int, chunk: int) -> tuple[Action, Action]:
    """A prompt of `num` tokens: token by token, and in chunks. A state is twice as wide as high."""
    x, dt = torch.randn(num, heads, side), torch.rand(num, heads)
    a, d = -torch.rand(heads), torch.rand(heads)
    b, c = torch.randn(2, num, 1, 2 * side)
    states = torch.zeros(1, heads, side, 2 * side)

    def by_token() -> Tensor:
        state = states
        for x1, dt1, b1, c1 in zip(*(y.split(1) for y in (x, dt, b, c)), strict=True):
            _, state = selective_state_update(x1, dt1, b1, c1, state, a=a, d=d)
        return state

    return by_token, lambda: chunk_scan(x, dt, b, c, states, Chunks([num], chunk), a=a, d=d)


def latent(context: int, heads: int, p: int, v: int, r: int, c: int) -> tuple[Action, Action]:
    """A decode: with keys and values made of the whole cache, and on latents."""
    query, latents = torch.randn(1, heads, p + r), torch.randn(context, c + r)
    weight = torch.randn(heads, p + v, c) / c**0.5
    lens, scale = torch.tensor([context]), (p + r) ** -0.5
    return (
        lambda: attend_expanded(query, latents, weight, scale),
        lambda: attend_latent(query, latents[None], lens, weight, scale),
    )


def report(what: str, forms: Sequence[Action], turns: int, least: float = 0.0) -> None:
    """A line; `least` is what the last form takes at least, in ms, if that was counted."""
    times = best_ms(forms, turns)
    limit = f"{times[0] / least:>9.1f}x" if least else ""
    print(f"{what:<52}{columns(f'{ms:.2f}' for ms in times)}{times[0] / times[-1]:>8.1f}x{limit}")


def columns(words: Iterable[str]) -> str:
    """Two columns, or three, in the place of three."""
    return "".join(f"{word:>10}" for word in words).ljust(30)


def products_per_ms(turns: int) -> float:
    """Multiplications with an addition in a ms, in one large product."""
    a, b = torch.randn(2, 1024, 1024)
    return 1024**3 / best_ms([lambda: a @ b], turns)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--size", type=int, default=CHUNK_SIZE, help="tokens of a chunk")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    turns, chunk = args.turns, args.size
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with torch.inference_mode():
        rate = products_per_ms(turns)
        print(f"{args.threads} threads, {processor()}: {2 * rate / 1e6:.0f} GFLOP/s in a product")
        head = f"ms, chunks of {chunk}"
        print(f"{head:<52}{columns(('by token', 'chunks', 'in C++'))}{'gain':>9}{'limit':>10}")
        for name, (heads, side) in DELTA.items():
            for num in (16, 128, 512):
                forms = gated_delta(num, heads, side, chunk)
                least = 3 * side**2 * num * heads / rate  # K S, Q S and K^T N, which no form spares
                report(f"gated delta, {name}, {num} tokens", forms, turns, least)
        for num in (16, 128, 512):
            pair = state_space(num, 64, 64, chunk)
            report(f"state space, 64 heads of 64, {num} tokens", pair, turns)
        print(f"{'ms':<52}{columns(('expanded', 'latents'))}{'gain':>9}")
        report("latent attention, DeepSeek-V2-Lite, context 1,024",
               latent(1024, *LATENT["DeepSeek-V2-Lite"]), turns)  # fmt: skip
    print("bytes a token and layer in bfloat16")
    for name, (heads, p, v, r, c) in LATENT.items():
        print(f"  {name}: {2 * (c + r)} as a latent, {2 * heads * (p + r + v)} as keys and values")


if __name__ == "__main__":
    main()
