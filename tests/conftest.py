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


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Choose the profile before the first module that draws examples. Those of tests/public draw
    none: whoever waits for `make lab-NN` need not wait for Hypothesis."""
    if isinstance(collector, pytest.Module) and PUBLIC not in collector.path.parents:
        load_profile()


@cache
def load_profile() -> None:
    """The same examples in every run, unless HYPOTHESIS_PROFILE=explore asks for new ones."""
    from hypothesis import HealthCheck, Phase, settings

    # No clock decides: a machine that stands still while an example is drawn makes no test fail.
    common: dict[str, Any] = {
        "deadline": None,
        "print_blob": True,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    # Both say `derandomize`: where `CI` is set, Hypothesis' own default is to ignore the seed, and
    # every grade there would ask the same questions.
    settings.register_profile("fixed", derandomize=True, **common)
    explore = settings(derandomize=False, **common)
    settings.register_profile("explore", explore)
    # For a grade, whose report explains in its own words: Hypothesis would run a failing test again
    # and again to find out which parts of the example do not matter.
    shorter = (Phase.explicit, Phase.generate, Phase.shrink)
    settings.register_profile("graded", explore, phases=shorter)
    # For who asks only whether a test fails: no search for a smaller example.
    settings.register_profile("unshrunk", explore, phases=(Phase.explicit, Phase.generate))
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


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
