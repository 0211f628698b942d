"""What ``LLM`` and ``AsyncLLM`` both ask of the arguments of their controls."""

from __future__ import annotations

from mini_vllm.errors import show


def check_sleep(level: int, mode: str) -> None:
    """Raises ValueError for a kind of sleep that there is not."""
    if level != 1:
        raise ValueError(f"level is {show(level)}; only level 1 is supported")
    if mode not in ("abort", "wait"):
        raise ValueError(f"mode is {show(mode)}; it must be 'abort' or 'wait'")


def check_reset(**options: bool) -> None:
    """Raises ValueError for an option of ``reset_prefix_cache`` that is not False."""
    for name, value in options.items():
        if value:
            raise ValueError(f"{name} is {show(value)}; only False is supported")
