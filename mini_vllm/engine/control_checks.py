"""What ``LLM`` and ``AsyncLLM`` both ask of the arguments of their controls."""

from __future__ import annotations

from mini_vllm.config.checks import require_flag
from mini_vllm.errors import RequestError, show


def check_sleep(level: int, mode: str) -> None:
    """Raises ValueError for a kind of sleep that there is not."""
    if level != 1:
        raise RequestError(
            f"level is {show(level)}; only level 1 is supported", param="level", value=level
        )
    if mode not in ("abort", "wait"):
        raise RequestError(
            f"mode is {show(mode)}; it must be 'abort' or 'wait'", param="mode", value=mode
        )


def check_reset(reset_running_requests: bool, reset_connector: bool) -> None:
    """Raises ValueError: what a connector keeps elsewhere is not forgotten from here."""
    require_flag("reset_running_requests", reset_running_requests)
    if reset_connector:
        raise RequestError(
            f"reset_connector is {show(reset_connector)}; only False is supported",
            param="reset_connector",
            value=reset_connector,
        )


def check_seconds(name: str, seconds: float) -> None:
    """Raises ValueError for what is no time to wait."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and 0 <= seconds < float("inf")):
        raise RequestError(
            f"{name} is {show(seconds)}; it must be a number of seconds, at least 0",
            param=name,
            value=seconds,
        )
