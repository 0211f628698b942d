"""Which attention backend a step uses: the first of those that its platform offers that can do the
work; if none can, every reason why not.

Source: vllm/v1/attention/selector.py#L52-L136 (get_attn_backend) @ v0.22.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from mini_vllm.errors import show
from mini_vllm.import_utils import resolve_obj_by_qualname
from mini_vllm.platforms.interface import Platform

BACKENDS: dict[str, str] = {
    "triton": "mini_vllm.attention.triton_backend.TritonAttention",
    "cpu": "mini_vllm.attention.cpu.CpuAttention",
    "reference": "mini_vllm.attention.reference.ReferenceAttention",
}
"""Where each backend's class is. A plugin adds its own with :func:`register_backend`."""


class AttentionSelectorConfig(NamedTuple):
    """What a backend must be able to do; None: not known, so nothing is refused for it.

    Source: vllm/v1/attention/selector.py#L21-L49 (AttentionSelectorConfig) @ v0.22.1.
    """

    dtype: torch.dtype | None = None
    block_size: int | None = None


def register_backend(name: str, qualname: str) -> None:
    """Add a backend that lies in another package, such as "my_package.attention.MyAttention".

    Raises:
        ValueError: if another backend has the name.

    Source: vllm/v1/attention/backends/registry.py#L203-L255 (register_backend) @ v0.22.1.
    """
    if BACKENDS.setdefault(name, qualname) != qualname:
        raise ValueError(
            f"attention backend {name!r} is {BACKENDS[name]} already; register {qualname} under "
            "another name"
        )


def refusals(name: str, platform: Platform, config: AttentionSelectorConfig) -> list[str]:
    """Every reason why the backend called `name` cannot do the work; none: it can.

    First that the platform does not offer it, with the names that it offers; then that no backend
    of that name is registered, or why its class cannot be imported. Else all that its
    `validate_configuration(platform, config)` says; a backend without one does any work.
    """
    # TODO 19.9
    raise NotImplementedError(
        "TODO 19.9: write refusals in labs/19-performance-engineer/selector.py"
        " (phase 19, 02-mini-build.md#task-9)"
    )


def get_valid_backends(
    platform: Platform, config: AttentionSelectorConfig
) -> tuple[list[str], dict[str, list[str]]]:
    """The backends that can do the work, the best first; and the others, with all reasons.

    Only those that the platform offers are checked, each once; it names the best first.

    Source: vllm/platforms/cuda.py#L258-L290 (CudaPlatformBase.get_valid_backends) @ v0.22.1.
    """
    # TODO 19.9
    raise NotImplementedError(
        "TODO 19.9: write get_valid_backends in labs/19-performance-engineer/selector.py"
        " (phase 19, 02-mini-build.md#task-9)"
    )


def get_attn_backend_cls(
    platform: Platform, selected: str | None, config: AttentionSelectorConfig
) -> Any:
    """The class of the backend called `selected`, or of the best one.

    Raises:
        ValueError: for an unknown name, "" too, with the known ones; for one that cannot do the
            work, with its name and every reason; and without a name, if none can, with the
            platform's `device_type` and the name and every reason of each.

    Source: vllm/platforms/cuda.py#L293-L362 (CudaPlatformBase.get_attn_backend_cls) @ v0.22.1.
    """
    # TODO 19.9
    raise NotImplementedError(
        "TODO 19.9: write get_attn_backend_cls in labs/19-performance-engineer/selector.py"
        " (phase 19, 02-mini-build.md#task-9)"
    )
