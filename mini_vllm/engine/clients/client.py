"""How a front end reaches an engine, here or in another process: four calls.

Source: vllm/v1/engine/core_client.py#L70-L272 (EngineCoreClient) @ v0.22.1
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput
from mini_vllm.engine.core import EngineCore, StepObserver, call_utility


class EngineClient(ABC):
    """What front ends know of an engine."""

    observers: list[StepObserver]
    """Called in this process after every step of the engine."""

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand in a request. Raises ValueError if the engine here refuses it."""

    @abstractmethod
    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests early; unknown ids are ignored."""

    @abstractmethod
    def get_outputs(self) -> list[EngineCoreOutput]:
        """What the next step brings."""

    @abstractmethod
    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the engine by name, such as ``reset_prefix_cache``."""

    @abstractmethod
    def shutdown(self) -> None:
        """Let go of the engine."""


class InprocClient(EngineClient):
    """An engine in this process: it steps when outputs are asked for.

    Source: vllm/v1/engine/core_client.py#L275-L305 (InprocClient) @ v0.22.1
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.observers = core.observers

    def add_request(self, request: EngineCoreRequest) -> None:
        self.core.add_request(self.core.preprocess_add_request(request))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort_requests(request_ids)

    def get_outputs(self) -> list[EngineCoreOutput]:
        return self.core.step()

    def call(self, method: str, *args: Any) -> Any:
        return call_utility(self.core, method, *args)

    def shutdown(self) -> None:
        self.core.shutdown()
