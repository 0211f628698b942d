"""Questions of phase 11: strengths, sizes and slots."""

from __future__ import annotations

from random import Random
from typing import Any

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
        import numpy as np
        import torch

        from mini_vllm.lora.layers import LinearLoRA
        from mini_vllm.lora.mapping import LoRAKernelMeta

        cpu = torch.device("cpu")
        meta = LoRAKernelMeta(1, 1, cpu)
        meta.prepare_tensors(np.zeros(1, np.int32))
        layer = LinearLoRA(wide, [out], 1, rank, meta, torch.int8, cpu)
        return 100 * layer.num_bytes / (out * wide)

    return Question(
        f"A projection of {out} x {wide} and an adapter of rank {rank}: how many percent of the"
        " projection's numbers does the adapter have, to two digits?",
        engine,
        lambda: 100 * rank * (out + wide) / (out * wide),
        f"A has {rank} x {wide} numbers and B {out} x {rank}.",
        tolerance=0.01,
    )


def _host_memory(room: int) -> Any:
    """The engine's manager without a model: it loads nothing, and has no layers."""
    from collections import OrderedDict

    from mini_vllm.lora.slots import LoRAModelManager

    manager: Any = object.__new__(LoRAModelManager)
    manager.cpu_cache, manager.last_used = OrderedDict(), OrderedDict()
    manager.slots, manager.pinned, manager.paths = [], set(), {}
    manager.max_cpu_loras, manager._load = room, lambda key, path: key
    return manager


def evicted(rng: Random) -> Question:
    calls = [rng.choice("ABCD") for _ in range(7)]

    def engine() -> str:
        manager = _host_memory(2)
        for name in calls:
            manager.add_adapter(name, name)
        return " ".join(sorted(manager.cpu_cache))

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


def admitted(rng: Random) -> Question:
    slots, running = rng.choice((1, 2, 3)), [rng.choice(("base", "A", "B", "C")) for _ in range(4)]
    newcomer = rng.choice(("base", "A", "B", "C"))

    def engine() -> str:
        from types import SimpleNamespace

        from mini_vllm.lora.scheduling import LoRASchedulerExtension
        from mini_vllm.request import Request

        config: Any = SimpleNamespace(max_loras=slots)
        names = [None if name == "base" else name for name in (*running, newcomer)]
        *others, new = [Request("r", [1], lora_name=name) for name in names]
        return "yes" if LoRASchedulerExtension(config).may_admit(new, others) else "no"

    used = {name for name in running if name != "base"}
    return Question(
        f"max_loras {slots}. Requests of {', '.join(running)} run. May one of {newcomer} be admitted?",
        engine,
        lambda: "yes" if newcomer in {"base", *used} or len(used) < slots else "no",
        f"Slots are taken by {', '.join(sorted(used)) or 'no adapter'}. The base needs none, and an"
        " adapter that has one needs no other.",
        choices=("yes", "no"),
    )


def segments(rng: Random) -> Question:
    slots = [rng.choice((-1, 0, 1, 2)) for _ in range(6)]

    def engine() -> str:
        import numpy as np
        import torch

        from mini_vllm.lora.mapping import LoRAKernelMeta

        meta = LoRAKernelMeta(3, 6, torch.device("cpu"))
        meta.prepare_tensors(np.array(slots, np.int32))
        return " ".join(map(str, meta.token_indices_sorted_by_lora_ids.tolist()))

    return Question(
        f"The tokens 0 to 5 of a step have the slots {slots}, -1 for the base. In which order do the"
        " kernels take the tokens?",
        engine,
        lambda: " ".join(map(str, sorted(range(6), key=lambda token: slots[token]))),
        "Sorted by slot, the base first; tokens of one slot keep their order.",
    )


KINDS = {
    "scale": scale,
    "numbers": numbers,
    "evicted": evicted,
    "admitted": admitted,
    "segments": segments,
}
