"""Questions of phase 01: what one token costs."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.practice.question import Question, counted


def _through_the_model(loop: str, prompt: int, output: int) -> int:
    """Tokens that one of the engine's two loops gives to the model, which is counted, not run."""
    from unittest.mock import patch

    import torch

    from mini_vllm.engine import naive

    lengths: list[int] = []

    def count(model: Any, cache: Any, token_ids: list[int], start: int) -> torch.Tensor:
        lengths.append(len(token_ids))
        return torch.zeros(1)

    with (
        patch.object(naive, "next_token_logits", count),
        patch.object(naive, "ContiguousKVCache", lambda model, length: None),
    ):
        getattr(naive, loop)(None, list(range(prompt)), output)
    return sum(lengths)


def naive_work(rng: Random) -> Question:
    prompt, output = rng.randint(4, 30), rng.randint(3, 12)

    def engine() -> int:
        return _through_the_model("greedy_without_cache", prompt, output)

    return Question(
        f"A loop without a cache computes the whole text again for each token. A prompt of {prompt}"
        f" tokens, {output} new ones: how many tokens go through the model in all?",
        engine,
        lambda: output * prompt + output * (output - 1) // 2,
        f"{prompt} for the first token, one more for each that follows: {output} x {prompt} +"
        f" (0 + 1 + … + {output - 1}). With a cache it is {prompt} + {output - 1}.",
    )


def cache_bytes(rng: Random) -> Question:
    layers, heads, size = rng.choice((12, 28, 32)), rng.choice((2, 8)), rng.choice((64, 128))
    tokens = rng.choice((100, 1000, 2048))

    def engine() -> int:
        import torch

        from mini_vllm.model.interface import KVCacheSpec
        from mini_vllm.worker.kv_cache import bytes_per_block

        return bytes_per_block(KVCacheSpec(layers, heads, size, torch.bfloat16), 1) * tokens

    return Question(
        f"{layers} layers, {heads} KV heads of {size}, bfloat16: how many bytes do the keys and"
        f" values of {tokens} tokens take?",
        engine,
        lambda: 2 * layers * heads * size * 2 * tokens,
        f"Keys and values, {layers} layers, {heads} x {size} numbers, 2 bytes each:"
        f" 2 x {layers} x {heads} x {size} x 2 x {tokens}.",
    )


def bound(rng: Random) -> Question:
    flops, bandwidth = rng.choice(((100e12, 1e12), (990e12, 3.35e12), (990e12, 4.8e12)))
    tokens = rng.choice((1, 8, 64, 512, 4096))

    def engine() -> str:
        from mini_vllm.observability.roofline import Machine, StepCost, bound_of

        size = 10**9  # parameters of 2 bytes
        cost = StepCost(2 * size * tokens, 2 * size)
        return bound_of(cost, Machine(flops, bandwidth))

    return Question(
        f"A machine does {flops / 1e12:g} TFLOP/s and reads {bandwidth / 1e12:g} TB/s. A step pushes"
        f" {counted(tokens, 'token')} through weights of 2 bytes. What limits it: compute or"
        f" memory? (Forget"
        " the KV cache.)",
        engine,
        lambda: "compute" if tokens > flops / bandwidth else "memory",
        f"2 FLOP a weight and token, 2 bytes a weight: the intensity is {tokens} FLOP/byte. The"
        f" ridge lies at {flops / bandwidth:.0f}.",
        choices=("compute", "memory"),
    )


def cached_work(rng: Random) -> Question:
    prompt, output = rng.randint(4, 300), rng.randint(3, 60)
    return Question(
        f"A loop with a KV cache, a prompt of {prompt} tokens, {output} new ones: how many tokens go"
        " through the model in all?",
        lambda: _through_the_model("greedy_with_cache", prompt, output),
        lambda: prompt + output - 1,
        "The prompt once, then each new token once; the last one is sampled and never computed.",
    )


def least_time(rng: Random) -> Question:
    flops, moved = rng.choice((2, 20, 200, 2000)), rng.choice((1, 4, 16, 40))
    machine = rng.choice(((100, 1.0), (400, 2.0), (1000, 4.0)))

    def engine() -> float:
        from mini_vllm.observability.roofline import Machine, StepCost, least_seconds

        cost = StepCost(flops * 10**9, moved * 10**6)
        return 1e6 * least_seconds(cost, Machine(machine[0] * 1e12, machine[1] * 1e12))

    computes, moves = flops * 1e3 / machine[0], moved / machine[1]
    return Question(
        f"A step does {flops} GFLOP and moves {moved} MB, on a machine of {machine[0]} TFLOP/s and"
        f" {machine[1]:g} TB/s. How many µs does it take at the least?",
        engine,
        lambda: max(computes, moves),
        f"{computes:g} µs to compute, {moves:g} µs to move; both run at once, so the longer counts.",
        tolerance=0.01,
    )


KINDS = {
    "naive-work": naive_work,
    "cache-bytes": cache_bytes,
    "bound": bound,
    "cached-work": cached_work,
    "least-time": least_time,
}
