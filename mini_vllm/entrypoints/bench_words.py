"""Parse the values of `bench serve`'s options.

Raises ValueError for an invalid value, with the option's name.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mini_vllm.config.options import json_value
from mini_vllm.entrypoints.load import METRICS


def thresholds(words: str) -> tuple[float, float]:
    """The two thresholds of the timeline's colors, in seconds."""
    try:
        low, high = (float(word) / 1000 for word in words.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low < high:
        raise ValueError(
            f"--timeline-itl-thresholds is {words!r}; it must be two ascending times in ms, such "
            "as 25,50"
        )
    return low, high


def metrics(words: str) -> list[str]:
    """The metrics to show, by name."""
    unknown = [word for word in words.split(",") if word not in METRICS]
    if unknown:
        raise ValueError(
            f"--percentile-metrics has {unknown[0]!r}; it must be of {', '.join(METRICS)}"
        )
    return words.split(",")


def percentiles(words: str) -> list[float]:
    """The percentiles to show, in the given order."""
    try:
        numbers = [float(word) for word in words.split(",")]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= number <= 100 for number in numbers):
        raise ValueError(
            f"--metric-percentiles is {words!r}; it must be numbers from 0 to 100, such as 50,99"
        )
    return numbers


def slos(words: Sequence[str]) -> dict[str, float]:
    """The limit in milliseconds of each metric that has an objective."""
    limits = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            limits[name] = float(limit)
        except ValueError:
            limits[name] = 0.0
        if name not in ("ttft", "tpot", "e2el") or not limits[name] > 0:
            raise ValueError(f"--goodput has {word!r}; it must be ttft:MS, tpot:MS or e2el:MS")
    return limits


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object for argparse; raises ArgumentTypeError, to which argparse adds the
    option's name."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no JSON object, such as '{{\"min_p\": 0.1}}'"
        )
    return value
