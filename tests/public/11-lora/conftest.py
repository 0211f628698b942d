"""Builders for the tests of phase 11. The story: three customers have a fine-tune each, a pirate,
one that writes JSON, and a polite one; ben uses the base as it is. Layers have a few numbers.
"""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.config import LoRAConfig
from mini_vllm.lora.peft import PEFTHelper
from mini_vllm.lora.scheduling import LoRASchedulerExtension
from mini_vllm.request import Request


def helper(**config: Any) -> PEFTHelper:
    """A config with r 8 and lora_alpha 16, unless told otherwise."""
    return PEFTHelper(**{"r": 8, "lora_alpha": 16, **config})


def request(name: str | None, request_id: str = "r") -> Request:
    return Request(request_id, [1, 2], lora_name=name)


def gate(max_loras: int, *pinned: str) -> LoRASchedulerExtension:
    extension = LoRASchedulerExtension(LoRAConfig(max_loras=max_loras))
    extension.pinned = set(pinned)
    return extension


@cache
def tensors() -> dict[str, Any]:
    """The builders that need torch, of `tensors.py`: loaded for the tests that use one alone."""
    return runpy.run_path(str(Path(__file__).with_name("tensors.py")))


class Lab:
    """All builders of this file, and of `tensors.py`."""

    helper, request, gate = staticmethod(helper), staticmethod(request), staticmethod(gate)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return tensors()[name]


@pytest.fixture
def lab() -> Lab:
    """All builders."""
    return Lab()
