"""Settings that every suite shares. Imports no torch: many tests are pure Python."""

from __future__ import annotations

import os

import pytest
from hypothesis import Phase, settings

# Before torch is imported: two workers on two cores must not fight over threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

# The same examples in every run, unless HYPOTHESIS_PROFILE=explore asks for new ones.
# Both say `derandomize`: where `CI` is set, Hypothesis' own default is to ignore the seed, and
# every grade there would ask the same questions.
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
EXPLORE = settings(deadline=None, derandomize=False, print_blob=True)
settings.register_profile("explore", EXPLORE)
# For who asks only whether a test fails: no search for a smaller example.
settings.register_profile("unshrunk", EXPLORE, phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_report_header(config: pytest.Config) -> str:
    profile = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
    return f"hypothesis profile: {profile} (HYPOTHESIS_PROFILE=explore draws new examples)"
