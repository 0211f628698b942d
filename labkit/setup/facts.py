"""What the environment can do, as JSON: run by the doctor in a child, because imports may fail.

`python -m labkit.setup.facts` prints one object. Each entry is a plain fact, or `{"error": "..."}`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"


def torch_facts() -> dict[str, Any]:
    """Version, which build it is, and the first GPU as torch sees it."""
    import torch

    facts: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda, "gpu": None}
    facts["mps"] = torch.backends.mps.is_available()
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        facts["gpu"] = {
            "name": device.name,
            "capability": f"{device.major}.{device.minor}",
            "memory_gib": round(device.total_memory / 2**30, 1),
            "count": torch.cuda.device_count(),
        }
    return facts


def triton_facts() -> dict[str, Any]:
    """Version, and whether the interpreter adds two vectors correctly on the CPU."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def add(x, y, out, n: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, n)
        tl.store(out + at, tl.load(x + at) + tl.load(y + at))

    x, out = torch.arange(8.0), torch.zeros(8)
    add[(1,)](x, x, out, 8)
    return {"version": triton.__version__, "interpreter": bool(torch.equal(out, 2 * x))}


def transformers_facts() -> dict[str, Any]:
    """Version, and whether the model classes the engine is compared with can be imported."""
    import transformers
    from transformers import Qwen3Config

    return {"version": transformers.__version__, "qwen3": Qwen3Config.__name__}


def kernels_facts() -> dict[str, Any]:
    """Whether the engine's C++ kernels are built here, which may take half a minute."""
    from mini_vllm.kernels import native

    if native.is_switched_off():
        return {"built": False, "why": "MINI_VLLM_NATIVE is 0"}
    try:
        native.load()
    except (OSError, RuntimeError) as error:
        return {"built": False, "without": native.WITHOUT, "why": str(error)}
    return {"built": True, "folder": str(native.cache_folder())}


def ask(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The facts, or the error in one line: a broken install must not hide the other answers."""
    try:
        return question()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


if __name__ == "__main__":
    questions = {
        "torch": torch_facts,
        "triton": triton_facts,
        "transformers": transformers_facts,
        "kernels": kernels_facts,
    }
    print(json.dumps({name: ask(question) for name, question in questions.items()}))
