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
    reasons = []
    if name not in platform.attention_backends:
        offered = ", ".join(platform.attention_backends)
        reasons.append(f"{platform.device_type} does not offer it, but {offered}")
    try:
        backend = resolve_obj_by_qualname(BACKENDS[name])
    except KeyError:
        return [*reasons, "it is not registered"]
    except ImportError as error:
        return [*reasons, f"ImportError: {error}"]
    validate = getattr(backend, "validate_configuration", None)
    return reasons if validate is None else [*reasons, *validate(platform, config)]


def get_valid_backends(
    platform: Platform, config: AttentionSelectorConfig
) -> tuple[list[str], dict[str, list[str]]]:
    """The backends that can do the work, the best first; and the others, with all reasons.

    Only those that the platform offers are checked, each once; it names the best first.

    Source: vllm/platforms/cuda.py#L258-L290 (CudaPlatformBase.get_valid_backends) @ v0.22.1.
    """
    found = {name: refusals(name, platform, config) for name in platform.attention_backends}
    valid = [name for name, reasons in found.items() if not reasons]
    return valid, {name: reasons for name, reasons in found.items() if reasons}


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
    if selected is not None:
        if selected not in BACKENDS:
            raise ValueError(
                f"attention backend {show(selected)} is unknown; choose one of {list(BACKENDS)}"
            )
        if reasons := refusals(selected, platform, config):
            raise ValueError(
                f"attention backend {selected!r} cannot run on {platform.device_type}: "
                f"{'; '.join(reasons)}"
            )
        return resolve_obj_by_qualname(BACKENDS[selected])
    valid, refused = get_valid_backends(platform, config)
    if not valid:
        said = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in refused.items())
        raise ValueError(f"no attention backend can run on {platform.device_type}: {said}")
    return resolve_obj_by_qualname(BACKENDS[valid[0]])
