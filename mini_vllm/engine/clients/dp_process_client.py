"""The server's side of several engines, each in a process of its own, that look like one.

Source: vllm/v1/engine/core_client.py#L1349-L1520 (DPLBAsyncMPClient) @ v0.22.1
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.distributed.dp_router import DPRouter, one_answer
from mini_vllm.engine.clients.loops import do_in
from mini_vllm.engine.clients.messages import EngineCoreOutputs, EngineInfo
from mini_vllm.engine.clients.prefix_routing import PrefixRouting
from mini_vllm.engine.clients.process_client import ProcessClient


class DataParallelProcessClient:
    """Sends every request to one of several engines; if one engine ends, all end.

    It does what a :class:`~mini_vllm.engine.clients.process_client.ProcessClient` does for a front
    end with one engine.

    Args:
        config: of all engines.
        scheduler: a policy's name, or ``path/to/file.py:ClassName``.

    Raises:
        ValueError: what an engine says of settings that contradict the model or the memory.
        EngineDeadError: if its process ends before it is ready.
    """

    def __init__(self, config: EngineConfig, scheduler: str = "vllm-v1") -> None:
        self.router = DPRouter(config.parallel.data_parallel_size)
        self.clients: list[ProcessClient] = []
        self._reading: dict[asyncio.Task[EngineCoreOutputs], int] = {}
        try:
            for replica in range(config.parallel.data_parallel_size):
                self.clients.append(ProcessClient(config, scheduler, replica))
        except BaseException:
            self.close()
            raise
        infos = [client.info for client in self.clients]
        self.info: EngineInfo = min(infos, key=lambda info: info.num_usable_blocks)
        self.prefixes: PrefixRouting | None = None
        if config.parallel.data_parallel_routing == "prefix":
            sizes = self.info.block_size, self.info.num_usable_blocks
            self.prefixes = PrefixRouting(len(infos), *sizes)

    @property
    def dead(self) -> str | None:
        """Why an engine is gone; None while all live."""
        return next((client.dead for client in self.clients if client.dead is not None), None)

    def on_death(self, tell: Callable[[str], object]) -> None:
        for client in self.clients:
            client.on_death(tell)

    # ------------------------------------------------------------------ sending

    def add_request(self, request: EngineCoreRequest) -> None:
        rank = request.data_parallel_rank
        if self.prefixes is not None:
            rank = self.prefixes.choose(request, self.router, rank)
        chosen = self.router.get_core_engine_for_request(request.request_id, rank)
        request.data_parallel_rank = chosen
        self.clients[chosen].add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        for engine, ids in self.router.split(request_ids).items():
            self.clients[engine].abort_requests(ids)
        self.router.finish(request_ids)

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of all engines; one answer, for all of them."""
        answers = await asyncio.gather(*(client.call(method, *args) for client in self.clients))
        if method == "reset_prefix_cache" and self.prefixes is not None and all(answers):
            self.prefixes.clear()
        if method == "collective_rpc":
            return [answer for answers_of_one in answers for answer in answers_of_one]
        return one_answer(method, answers)

    def tell(self, method: str, *args: Any) -> None:
        """Call a method of one engine without waiting for its answer."""
        self.clients[0].tell(method, *args)

    async def get_outputs(self) -> EngineCoreOutputs:
        """What the next step of an engine brings; its figures say which one it was."""
        task = await self._next_read()
        engine = self._reading.pop(task)
        outputs = task.result()
        self.router.finish(o.request_id for o in outputs.outputs if o.finish_reason is not None)
        if outputs.stats is not None:
            self.router.set_counts(
                engine, outputs.stats.num_waiting_reqs, outputs.stats.num_running_reqs
            )
        return outputs

    async def _next_read(self) -> asyncio.Task[EngineCoreOutputs]:
        """A read that is done; meanwhile there is a pending read of every engine.

        Other reads that are done stay here for the next call, which may come from another loop:
        such a read is taken as it is, since a task of a closed loop cannot be waited for.
        """
        loop = asyncio.get_running_loop()
        for task in list(self._reading):  # reads of a loop that has ended will bring nothing
            if task.cancelled() or (not task.done() and task.get_loop() is not loop):
                del self._reading[task]
        done = next((task for task in self._reading if task.done()), None)
        if done is not None:
            return done
        for engine, client in enumerate(self.clients):
            if engine not in self._reading.values():
                self._reading[loop.create_task(client.get_outputs())] = engine
        first, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
        return first.pop()

    def fail_calls(self, error: Exception) -> None:
        for client in self.clients:
            client.fail_calls(error)

    # ------------------------------------------------------------------ the end

    def shutdown(self, timeout: float = 0.0) -> None:
        """Ask all engines to end, after ``timeout`` seconds at most for requests that still run."""
        for client in self.clients:
            client.ask_to_end(timeout)  # all of them, before one is waited for
        for client in self.clients:
            client.shutdown(timeout)
        for task in list(self._reading):
            do_in(task.get_loop(), task.cancel)

    def close(self) -> None:
        for client in self.clients:
            client.close()
