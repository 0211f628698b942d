"""What ``LLM`` and ``AsyncLLM`` both ask of the arguments of their controls."""

from __future__ import annotations

from mini_vllm.errors import show


def check_sleep(level: int, mode: str) -> None:
    """Raises ValueError for a kind of sleep that there is not."""
    if level != 1:
        raise ValueError(f"level is {show(level)}; only level 1 is supported")
    if mode not in ("abort", "wait"):
        raise ValueError(f"mode is {show(mode)}; it must be 'abort' or 'wait'")


def check_reset(reset_connector: bool) -> None:
    """Raises ValueError: what a connector keeps elsewhere is not forgotten from here."""
    if reset_connector:
        raise ValueError(f"reset_connector is {show(reset_connector)}; only False is supported")
