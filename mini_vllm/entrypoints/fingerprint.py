"""`system_fingerprint` in answers: the same text for servers that answer a seed alike."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mini_vllm import __version__

if TYPE_CHECKING:
    from mini_vllm.config import EngineConfig

MODES = ("full", "hash", "custom", "none")


def system_fingerprint(config: EngineConfig, mode: str, value: str | None) -> str | None:
    """`mini_vllm-VERSION[-tp2][-pp2][-dp2][-ep]-HASH`, where the hash is of the configuration.

    Args:
        mode: "full"; "hash" without the degrees of parallelism; "custom": `value`; "none": None.

    Source: vllm/entrypoints/openai/fingerprint.py#L50-L84 (build_system_fingerprint) @ v0.22.1
    """
    if mode in ("custom", "none"):
        return value if mode == "custom" else None
    parallel, parts = config.parallel, [f"mini_vllm-{__version__}"]
    if mode == "full":
        for name in ("tensor", "pipeline", "data"):
            degree = getattr(parallel, f"{name}_parallel_size")
            parts += [f"{name[0]}p{degree}"] if degree > 1 else []
        parts += ["ep"] if parallel.enable_expert_parallel else []
    return "-".join([*parts, hashlib.sha256(repr(config).encode()).hexdigest()[:8]])
