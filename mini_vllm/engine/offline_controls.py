"""What scripts ask of an engine beside answers: forget the cache, sleep, record, load adapters.

Source: vllm/v1/engine/llm_engine.py#L327-L420 (LLMEngine) @ v0.22.1
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mini_vllm.engine.clients.client import EngineClient
from mini_vllm.engine.control_checks import (
    SCHEDULING,
    SLEEP_TAGS,
    check_reset,
    check_sleep,
    check_tags,
)
from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.lora.request import LoRARequest
from mini_vllm.observability.profile import check_profiler_config, profiled, trace_file


class OfflineControls(ABC):
    """The part of :class:`~mini_vllm.engine.llm_engine.LLMEngine` that is about no request.

    Args:
        profiler_config: where :meth:`start_profile` writes: {"torch_profiler_dir": FOLDER}.
    """

    client: EngineClient
    input_processor: InputProcessor

    def __init__(self, profiler_config: Mapping[str, Any] | None = None) -> None:
        self.profiler_config = check_profiler_config(profiler_config)
        self._profiles = contextlib.ExitStack()
        self._num_profiles = 0
        self._asleep: frozenset[str] = frozenset()

    @abstractmethod
    def step(self) -> Any:
        """One step of the engine."""

    @abstractmethod
    def has_unfinished_requests(self) -> bool:
        """Whether there is anything to step for."""

    @abstractmethod
    def abort_requests(self, request_ids: str | Iterable[str] | None = None) -> None:
        """End requests early, all of them by default."""

    # ------------------------------------------------------------------ memory

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached KV; False, with nothing done, while requests hold blocks.

        Args:
            reset_running_requests: take the blocks of running requests, too, and compute them
                anew: what follows comes from the weights as they are then. The answer is True.
            reset_connector: vLLM's; only False is supported.

        Source: vllm/v1/core/sched/scheduler.py#L1896-L1944 (Scheduler.reset_prefix_cache)
        @ v0.22.1
        """
        check_reset(reset_running_requests, reset_connector)
        return bool(self.client.call("reset_prefix_cache", reset_running_requests))

    def reset_mm_cache(self) -> None:
        """Forget the patches of recent images, which the next turn of a chat would use again."""
        self.input_processor.reset_mm_cache()

    def reset_encoder_cache(self) -> None:
        """Forget the encodings of all images, for the encoder's weights have changed. Requests that
        run are computed anew; `reset_prefix_cache` forgets keys and values."""
        self.client.call("reset_encoder_cache")

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give back the KV cache's memory, and on a GPU the weights', until :meth:`wake_up`.

        Args:
            level: 1; with 0 all memory stays, requests are taken, and no step computes anything.
                vLLM's 2, which forgets the weights, is not supported.
            mode: of unfinished requests: "abort" them, "wait" until they have finished, or, at
                level 0, "keep" them.

        Raises:
            ValueError: for another level or mode.

        Source: vllm/entrypoints/llm.py#L806-L829 (LLM.sleep) @ v0.22.1
        """
        check_sleep(level, mode)
        if self._asleep:
            return
        if mode == "abort":
            self.abort_requests()
        while mode != "keep" and self.has_unfinished_requests():
            self.step()
        if level == 1:
            self.client.call("sleep")
        self._asleep = SLEEP_TAGS if level == 1 else SCHEDULING

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End :meth:`sleep`, or a part of it. After level 1 the cache is empty.

        Args:
            tags: what to take memory for: "weights", "kv_cache", or both; "scheduling" ends
                level 0. The engine answers requests again when all is back, by one call or several.

        Raises:
            ValueError: for another tag.
        """
        if wanted := check_tags(tags) & self._asleep:
            if memory := wanted & SLEEP_TAGS:
                self.client.call("wake_up", sorted(memory))
            self._asleep -= wanted

    def is_sleeping(self) -> bool:
        """Whether any part is still asleep."""
        return bool(self._asleep)

    def takes_requests(self) -> bool:
        """Whether requests may be queued: the engine is awake, or asleep at level 0."""
        return not self._asleep & SLEEP_TAGS

    # ------------------------------------------------------------------ recordings

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record every operation until :meth:`stop_profile`, for https://ui.perfetto.dev.

        Raises:
            ValueError: without a ``profiler_config``, or while another recording goes on.
        """
        file = trace_file(self.profiler_config, profile_prefix, self._num_profiles + 1)
        self.stop_profile()
        self._num_profiles += 1
        self._profiles.enter_context(profiled(file))

    def stop_profile(self) -> None:
        """Write the recording, if there is one."""
        self._profiles.close()

    # ------------------------------------------------------------------ adapters

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter for requests to come; True. ValueError if it cannot be served.

        Source: vllm/v1/engine/llm_engine.py#L394-L396 (LLMEngine.add_lora) @ v0.22.1
        """
        return bool(self.client.call("add_lora", lora_request))

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter and free its slot; False if there is none of that number."""
        return bool(self.client.call("remove_lora", lora_id))

    def list_loras(self) -> set[int]:
        """Numbers of the adapters that are loaded."""
        return set(self.client.call("list_loras"))

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in a slot until it is removed; True. ValueError for an unknown number,
        or if every slot is pinned."""
        return bool(self.client.call("pin_lora", lora_id))
