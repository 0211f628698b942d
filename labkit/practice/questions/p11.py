"""Questions of phase 11: strengths, sizes and slots."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question


def scale(rng: Random) -> Question:
    alpha, rank, rs = rng.choice((8, 16, 32)), rng.choice((4, 16, 64)), rng.random() < 0.5

    def engine() -> float:
        import json

        from mini_vllm.lora.peft import PEFTHelper

        config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": rs}
        helper = PEFTHelper.from_json(json.dumps(config).encode())
        return float(helper.scaling("layers.0.self_attn.q_proj", rank))

    return Question(
        f"lora_alpha {alpha}, rank {rank}, use_rslora {rs}: by which factor is the adapter's product"
        " multiplied?",
        engine,
        lambda: alpha / (rank**0.5 if rs else rank),
        "alpha / rank, or with rsLoRA alpha / sqrt(rank).",
        tolerance=0.005,
    )


def numbers(rng: Random) -> Question:
    out, wide, rank = rng.choice((512, 2048)), rng.choice((1024, 4096)), rng.choice((8, 16, 64))

    def engine() -> float:
        import torch

        a, b = torch.empty(rank, wide), torch.empty(out, rank)
        return 100 * (a.numel() + b.numel()) / torch.empty(out, wide).numel()

    return Question(
        f"A projection of {out} x {wide} and an adapter of rank {rank}: how many percent of the"
        " projection's numbers does the adapter have, to two digits?",
        engine,
        lambda: 100 * rank * (out + wide) / (out * wide),
        f"A has {rank} x {wide} numbers and B {out} x {rank}.",
        tolerance=0.01,
    )


def evicted(rng: Random) -> Question:
    calls = [rng.choice("ABCD") for _ in range(7)]

    def engine() -> str:
        from collections import OrderedDict

        held: OrderedDict[str, None] = OrderedDict()
        for name in calls:
            if name not in held and len(held) == 2:
                held.popitem(last=False)
            held[name] = None
            held.move_to_end(name)
        return " ".join(sorted(held))

    def by_hand() -> str:
        recent = list(dict.fromkeys(reversed(calls)))
        return " ".join(sorted(recent[:2]))

    return Question(
        f"Room for two adapters in host memory, least recently used first out. They are asked for in"
        f" the order {' '.join(calls)}. Which two are in memory afterwards, in alphabetical order?"
        " (one, if only one was asked for)",
        engine,
        by_hand,
        "Read the order from its end: the last two different names.",
    )


KINDS = {"scale": scale, "numbers": numbers, "evicted": evicted}
