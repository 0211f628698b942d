"""What operators ask of a running engine: pause it, put it to sleep, give it adapters, look inside.

Source: vllm/v1/engine/async_llm.py#L750-L1059 (AsyncLLM) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from mini_vllm.config.vllm_names import refuse
from mini_vllm.engine.control_checks import (
    SCHEDULING,
    SLEEP_TAGS,
    check_reset,
    check_seconds,
    check_sleep,
    check_tags,
)
from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.errors import bad_value, show
from mini_vllm.lora.request import LoRARequest
from mini_vllm.observability.log_line import LogLine
from mini_vllm.observability.metrics import ServiceStats
from mini_vllm.observability.profile import trace_file

DRAIN_SECONDS = 0.05
"""Between two looks at whether all requests have ended."""


class EngineControls(ABC):
    """The part of :class:`~mini_vllm.engine.async_llm.AsyncLLM` that is about no request.

    Attributes:
        profiler_config: where :meth:`start_profile` writes: {"torch_profiler_dir": FOLDER}.
    """

    tokenizer: Any
    input_processor: InputProcessor
    stats: ServiceStats
    log_line: LogLine
    profiler_config: Mapping[str, Any]
    _asleep: frozenset[str] = frozenset()
    _num_profiles = 0

    @abstractmethod
    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the engine by name. Raises RuntimeError with what the engine says."""

    @property
    @abstractmethod
    def errored(self) -> bool:
        """Whether the engine is gone."""

    @property
    @abstractmethod
    def num_unfinished_requests(self) -> int:
        """Completions that were asked for and have not ended."""

    # ------------------------------------------------------------------ what it is

    if not TYPE_CHECKING:  # a type checker tells a name that is not here by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Only for names that are not here: those of vLLM's are refused with what to do."""
            refuse(self, name)

    def get_tokenizer(self) -> Any:
        """The tokenizer, of the ``transformers`` kind; None with ``skip_tokenizer_init``."""
        return self.tokenizer

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model does: ("generate",), or the tasks of a pooling model."""
        return self.input_processor.tasks

    async def is_tracing_enabled(self) -> bool:
        return False

    @property
    def is_stopped(self) -> bool:
        return self.errored

    @property
    def is_running(self) -> bool:
        return not self.errored

    # ------------------------------------------------------------------ pausing

    async def pause_generation(
        self,
        *,
        mode: str = "abort",
        wait_for_inflight_requests: bool | None = None,
        clear_cache: bool = True,
    ) -> None:
        """See :meth:`~mini_vllm.engine.clients.core_proc.EngineCoreProc.pause_generation`.

        Args:
            wait_for_inflight_requests: vLLM's older name of ``mode="wait"``, which it overrides.

        Raises:
            ValueError: for another mode.
            RuntimeError: if :meth:`resume_generation` came before the pause was complete.

        Source: vllm/v1/engine/async_llm.py#L750-L788 (AsyncLLM.pause_generation) @ v0.22.1
        """
        mode = "wait" if wait_for_inflight_requests else mode
        if mode not in ("abort", "wait", "keep"):
            raise bad_value("mode", mode, "it must be 'abort', 'wait' or 'keep'")
        await self.call("pause_generation", mode, clear_cache)

    async def resume_generation(self) -> None:
        """Go on after a pause. Raises ValueError while the engine sleeps."""
        if self._asleep:
            raise ValueError("the engine sleeps; call wake_up() instead")
        await self.call("resume_generation")

    async def is_paused(self) -> bool:
        """Whether tokens are handed out to no request, or only to those that run already."""
        return bool(await self.call("is_paused"))

    async def wait_for_requests_to_drain(self, drain_timeout: int = 300) -> None:
        """Return when no request is unfinished. Raises TimeoutError after so many seconds."""
        check_seconds("drain_timeout", drain_timeout)
        end = time.monotonic() + drain_timeout
        while self.num_unfinished_requests:
            if time.monotonic() > end:
                left = self.num_unfinished_requests
                raise TimeoutError(f"{left} requests are unfinished after {drain_timeout} seconds")
            await asyncio.sleep(DRAIN_SECONDS)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached KV; False, with nothing done, while requests hold blocks.

        Args:
            reset_running_requests: take the blocks of running requests, too, and compute them
                anew: what follows comes from the weights as they are then. The answer is True.
            reset_connector: vLLM's; only False is supported.
        """
        check_reset(reset_running_requests, reset_connector)
        return bool(await self.call("reset_prefix_cache", reset_running_requests))

    async def reset_mm_cache(self) -> None:
        """Forget the patches of recent images, which the next turn of a chat would use again."""
        self.input_processor.reset_mm_cache()

    async def reset_encoder_cache(self) -> None:
        """Forget the encodings of all images, for the encoder's weights have changed. Requests that
        run are computed anew; `reset_prefix_cache` forgets keys and values."""
        await self.call("reset_encoder_cache")

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give back the KV cache's memory, and on a GPU the weights', until :meth:`wake_up`.

        Other calls wait meanwhile.

        Args:
            level: 1; with 0 all memory stays, and requests wait. vLLM's 2, which forgets the
                weights, is not supported.
            mode: of unfinished requests: "abort" them, "wait" until they have finished, or, at
                level 0, "keep" them.

        Raises:
            ValueError: for another level or mode.

        Source: vllm/v1/engine/async_llm.py#L931-L937 (AsyncLLM.sleep) @ v0.22.1
        """
        check_sleep(level, mode)
        if self._asleep:
            return
        self._asleep = SLEEP_TAGS if level == 1 else SCHEDULING
        try:
            await self.pause_generation(mode=mode, clear_cache=level == 1)
            if level == 1:
                await self.call("sleep")
        except BaseException:
            self._asleep = frozenset()
            raise
        if level == 1:
            self.stats.sleep_changed(is_asleep=True)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End :meth:`sleep`, or a part of it. After level 1 the cache is empty.

        Args:
            tags: what to take memory for: "weights", "kv_cache", or both; "scheduling" ends
                level 0. Requests go on when all is back, by one call or several.

        Raises:
            ValueError: for another tag.
        """
        if not (wanted := check_tags(tags) & self._asleep):
            return
        if memory := wanted & SLEEP_TAGS:
            await self.call("wake_up", sorted(memory))
        self._asleep -= wanted
        if self._asleep:
            return
        if memory:
            self.stats.sleep_changed(is_asleep=False)
        await self.resume_generation()

    async def is_sleeping(self) -> bool:
        """Whether any part is still asleep."""
        return bool(self._asleep)

    # ------------------------------------------------------------------ adapters

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter for requests to come; True. RuntimeError if it cannot be served."""
        return bool(await self.call("add_lora", lora_request))

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter and free its slot; False if there is none of that number."""
        return bool(await self.call("remove_lora", lora_id))

    async def list_loras(self) -> set[int]:
        """Numbers of the adapters that are loaded."""
        return set(await self.call("list_loras"))

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in a slot until it is removed; True. RuntimeError for an unknown number,
        or if every slot is pinned."""
        return bool(await self.call("pin_lora", lora_id))

    # ------------------------------------------------------------------ looking inside

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method on every worker by name; the answers, in order of rank.

        Args and answers must be plain data, for they travel between processes.

        Source: vllm/v1/engine/async_llm.py#L964-L976 (AsyncLLM.collective_rpc) @ v0.22.1
        """
        if not isinstance(method, str):
            raise ValueError(f"method is {show(method)}; name a method of the workers")
        return list(
            await self.call("collective_rpc", method, timeout, list(args), dict(kwargs or {}))
        )

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record every operation of the engine's process until :meth:`stop_profile`.

        Raises:
            ValueError: without a ``profiler_config``.
        """
        self._num_profiles += 1
        file = trace_file(self.profiler_config, profile_prefix, self._num_profiles)
        await self.call("start_profile", str(file.absolute()))

    async def stop_profile(self) -> None:
        """Write the recording, if there is one."""
        await self.call("stop_profile")

    async def do_log_stats(self) -> None:
        """One line in the log, at the level INFO: throughput since the last one, and gauges."""
        self.log_line.log()
