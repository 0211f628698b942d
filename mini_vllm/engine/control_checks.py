"""What ``LLM`` and ``AsyncLLM`` both ask of the arguments of their controls."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.config.checks import require_flag
from mini_vllm.errors import bad_value

SLEEP_TAGS = frozenset({"weights", "kv_cache"})
"""What level 1 of sleep gives back, in vLLM's words."""
SCHEDULING = frozenset({"scheduling"})
"""What level 0 of sleep stops: requests are taken, and none is computed."""


def check_tags(tags: Sequence[str] | None) -> frozenset[str]:
    """What `wake_up` is to bring back: all of it without tags.

    Raises:
        RequestError: for a text in place of a list, and for a tag that no level has.
    """
    if not tags:
        return SLEEP_TAGS | SCHEDULING
    given = {tags} if isinstance(tags, str) else set(tags)
    if isinstance(tags, str) or given - SLEEP_TAGS - SCHEDULING:
        rule = "it must be None, or a list of 'weights', 'kv_cache' and 'scheduling'"
        raise bad_value("tags", tags, rule)
    return frozenset(given)


def check_sleep(level: int, mode: str) -> None:
    """Raises ValueError for a kind of sleep that there is not."""
    if level == 2:
        raise bad_value(
            "level",
            level,
            "weights are not forgotten to be loaded anew; use 1, or make a new engine",
        )
    if level not in (0, 1):
        raise bad_value("level", level, "it must be 0 (wait) or 1 (give memory back)")
    if mode not in ("abort", "wait") and (level, mode) != (0, "keep"):
        raise bad_value("mode", mode, "it must be 'abort' or 'wait', or 'keep' with level 0")


def check_reset(reset_running_requests: bool, reset_connector: bool) -> None:
    """Raises ValueError: what a connector keeps elsewhere is not forgotten from here."""
    require_flag("reset_running_requests", reset_running_requests)
    if reset_connector:
        raise bad_value("reset_connector", reset_connector, "only False is supported")


def check_seconds(name: str, seconds: float) -> None:
    """Raises ValueError for what is no time to wait."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and 0 <= seconds < float("inf")):
        raise bad_value(name, seconds, "it must be a number of seconds, at least 0")
