"""Questions of phase 01: what one token costs."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question


def naive_work(rng: Random) -> Question:
    prompt, output = rng.randint(4, 30), rng.randint(3, 12)

    def engine() -> int:
        length, total = prompt, 0
        for _ in range(output):
            total += length
            length += 1
        return total

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
        f" {tokens} tokens through weights of 2 bytes. What limits it: compute or memory? (Forget"
        " the KV cache.)",
        engine,
        lambda: "compute" if tokens > flops / bandwidth else "memory",
        f"2 FLOP a weight and token, 2 bytes a weight: the intensity is {tokens} FLOP/byte. The"
        f" ridge lies at {flops / bandwidth:.0f}.",
        choices=("compute", "memory"),
    )


KINDS = {"naive-work": naive_work, "cache-bytes": cache_bytes, "bound": bound}
