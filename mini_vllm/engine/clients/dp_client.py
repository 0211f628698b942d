"""Several engines side by side that look like one.

::

    front end ── request ──► DPRouter ──► engine 0 ── its workers
                                     └──► engine 1 ── its workers

The engines' schedulers are in this process, their workers are not: while the workers of one
compute, the next engine is given its plan.

Source: vllm/v1/engine/core_client.py#L1349-L1520 (DPLBAsyncMPClient) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput
from mini_vllm.distributed.dp_router import DPRouter, one_answer
from mini_vllm.engine.clients.client import EngineClient, call_utility
from mini_vllm.engine.clients.prefix_routing import PrefixRouting
from mini_vllm.engine.core import EngineCore


class DataParallelClient(EngineClient):
    """Sends every request to one of several engines, and steps all of them at once.

    Args:
        cores: the engines, whose workers are in processes of their own.
    """

    def __init__(self, cores: Sequence[EngineCore]) -> None:
        self.cores = cores
        self.router = DPRouter(len(cores))
        self.observers = cores[0].observers
        for core in cores:
            core.observers = self.observers
        self.prefixes: PrefixRouting | None = None
        if cores[0].config.parallel.data_parallel_routing == "prefix":
            num_blocks = min(core.limits.num_usable_blocks for core in cores)
            self.prefixes = PrefixRouting(len(cores), cores[0].limits.block_size, num_blocks)

    def add_request(self, request: EngineCoreRequest) -> None:
        for number, core in enumerate(self.cores):
            self._count(number, core)
        rank = None if self.prefixes is None else self.prefixes.choose(request, self.router)
        chosen = self.router.get_core_engine_for_request(request.request_id, rank)
        core = self.cores[chosen]
        try:
            core.add_request(core.preprocess_add_request(request))
        except BaseException:
            self.router.finish([request.request_id])
            raise

    def _count(self, number: int, core: EngineCore) -> None:
        stats = core.make_stats()
        self.router.set_counts(number, stats.num_waiting_reqs, stats.num_running_reqs)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        for engine, ids in self.router.split(request_ids).items():
            self.cores[engine].abort_requests(ids)
        self.router.finish(request_ids)

    def get_outputs(self) -> list[EngineCoreOutput]:
        """Outputs of the engines that are ready first; the others go on meanwhile."""
        busy = [core for core in self.cores if core.has_requests()]
        for core in busy:
            core.fill()
        waiting = [core.batch_queue[-1].answer for core in busy if core.batch_queue]
        wait(waiting, return_when=FIRST_COMPLETED)
        outputs: list[EngineCoreOutput] = []
        for core in busy:
            if core.batch_queue and core.batch_queue[-1].answer.done():
                outputs += core.step()
        self.router.finish(o.request_id for o in outputs if o.finish_reason is not None)
        return outputs

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of all engines; one answer, for all of them."""
        answers = [call_utility(core, method, *args) for core in self.cores]
        if method == "reset_prefix_cache" and self.prefixes is not None and all(answers):
            self.prefixes.clear()
        if method == "keep_only":  # a request is gone if no engine has it
            return [i for i in args[0] if all(i in gone for gone in answers)]
        return one_answer(method, answers)

    def shutdown(self) -> None:
        for core in self.cores:
            core.shutdown()
