"""A scheduler with a connector that does what a test says, and steps of a pretended model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.scheduler_output import (
    EngineCoreOutput,
    KVConnectorOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.kv_transfer import KVConnectorBase_V1, KVConnectorMetadata
from mini_vllm.kv_transfer.scheduler import RemoteKVScheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


class Scripted(KVConnectorBase_V1):
    """Offers ``tokens[id]`` tokens of each request, once; ``is_async``: beside other steps."""

    def __init__(self, is_async: bool = True, tokens: dict[str, int | None] | None = None) -> None:
        self.is_async, self.tokens = is_async, dict(tokens or {})
        self.keeps: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self.allocated: list[tuple[str, list[int], int]] = []
        self.finished: list[tuple[str, list[int]]] = []
        self.heard: list[KVConnectorOutput] = []
        self.resets = 0

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        self.asked.append((request.request_id, num_computed_tokens))
        held = self.tokens.get(request.request_id, 0)
        if held is None:
            return None, False
        external = max(held - num_computed_tokens, 0)
        return external, self.is_async and external > 0

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external: int) -> None:
        self.allocated.append((request.request_id, blocks.get_block_ids(), num_external))
        if num_external:
            self.tokens.pop(request.request_id)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.heard.append(connector_output)

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict | None]:
        self.finished.append((request.request_id, list(block_ids)))
        keeps = request.request_id in self.keeps
        return keeps, {"from": request.request_id} if keeps else None

    def reset(self) -> None:
        self.resets += 1


class Engine:
    """A scheduler whose model samples a token for each request that is computed whole."""

    def __init__(
        self,
        connector: KVConnectorBase_V1,
        policy: str = "recompute",
        num_gpu_blocks: int = 65,
        block_size: int = 4,
        **limits: Any,
    ) -> None:
        usual = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 256}
        scheduler = make_scheduler(
            SchedulerConfig(**(usual | limits)),
            CacheConfig(block_size=block_size, num_gpu_blocks=num_gpu_blocks),
            connector=connector,
            kv_load_failure_policy=policy,
            hash_root=b"root" * 8,
        )
        assert isinstance(scheduler, RemoteKVScheduler)
        self.scheduler = scheduler
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    def add(self, request_id: str, prompt: Iterable[int], max_tokens: int = 4) -> Request:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        request = Request(request_id, prompt, params, arrival_time=float(len(self.requests)))
        self.requests[request_id] = request
        self.scheduler.add_request(request)
        return request

    def step(
        self,
        received: Iterable[str] = (),
        sent: Iterable[str] = (),
        invalid: Iterable[int] = (),
    ) -> SchedulerOutput:
        """One step; what the worker reports with it."""
        plan = self.scheduler.schedule()
        sampled = {
            i: [1000 + self.requests[i].num_tokens]
            for i in plan.num_scheduled_tokens
            if self.requests[i].num_computed_tokens >= self.requests[i].num_tokens
        }
        report = KVConnectorOutput(set(sent), set(received), set(invalid))
        result = ModelRunnerOutput(sampled, kv_connector_output=report)
        for output in finish_step(self.scheduler, plan, result):
            self.outputs.setdefault(output.request_id, []).append(output)
        self.scheduler.check_integrity()
        return plan

    def blocks(self, request_id: str) -> list[int]:
        return self.scheduler.kv_cache_manager.get_block_ids(request_id)

    @property
    def num_free(self) -> int:
        return self.scheduler.kv_cache_manager.num_free_blocks
