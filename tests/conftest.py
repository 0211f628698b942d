"""Settings that every suite shares. Imports neither torch nor Hypothesis: many tests need none."""

from __future__ import annotations

import os
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported: two workers on two cores must not fight over threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MINI_VLLM_UNPACK_FROM", "512")  # not what this machine measures
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # a start says nothing that goes well

PUBLIC = Path(__file__).parent / "public"
HIDDEN = Path(__file__).parent / "hidden"


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Choose the profile before the first module that draws examples. Those of tests/public draw
    none, so `make lab-NN` need not wait until Hypothesis is imported."""
    if isinstance(collector, pytest.Module) and PUBLIC not in collector.path.parents:
        load_profile(HIDDEN in collector.path.parents)


def load_profile(is_hidden: bool = False) -> None:
    """The same examples in every run, unless HYPOTHESIS_PROFILE=explore asks for new ones.

    Args:
        is_hidden: for a module of tests/hidden. Its examples run in another process, which no
            health check knows, and none of them is kept.
    """
    from hypothesis import settings

    register_profiles()
    name = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
    settings.load_profile(f"hidden-{name}" if is_hidden else name)


@cache
def register_profiles() -> None:
    from hypothesis import HealthCheck, Phase, settings

    # No clock decides: a machine that stands still while an example is drawn makes no test fail.
    common: dict[str, Any] = {
        "deadline": None,
        "print_blob": True,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    # Both say `derandomize`: where `CI` is set, Hypothesis' own default is to ignore the seed, and
    # every grade there would ask the same questions.
    explore = settings(derandomize=False, **common)
    # For a grade, whose report explains in its own words: Hypothesis would run a failing test again
    # and again to find out which parts of the example do not matter.
    shorter = (Phase.explicit, Phase.generate, Phase.shrink)
    profiles = {
        "fixed": settings(derandomize=True, **common),
        "explore": explore,
        "graded": settings(explore, phases=shorter),
        # For a run that asks only whether a test fails: no search for a smaller example.
        "unshrunk": settings(explore, phases=(Phase.explicit, Phase.generate)),
    }
    for name, profile in profiles.items():
        settings.register_profile(name, profile)
        settings.register_profile(
            f"hidden-{name}", profile, database=None, suppress_health_check=list(HealthCheck)
        )


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a table that is marked `sampled(n)`, every test but one in n is slow; always the same."""
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and zlib.crc32(item.name.encode()) % mark.args[0]:
            item.add_marker("slow")


def pytest_report_header(config: pytest.Config) -> str:
    profile = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
    return f"hypothesis profile: {profile} (HYPOTHESIS_PROFILE=explore draws new examples)"
