"""A server without processes: the engine steps where its messages would arrive.

What is said between the two is written and read as between processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starlette.testclient import TestClient

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.engine.clients.messages import (
    EngineCoreOutputs,
    decode_outputs,
    decode_request,
    encode,
)
from mini_vllm.engine.core import EngineCore
from mini_vllm.entrypoints.openai.api_server import build_app
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.observability.metrics import PrometheusRecorder


class HereClient:
    """What :class:`~mini_vllm.engine.clients.process_client.ProcessClient` is to a front end."""

    dead: str | None = None

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        limits, cache = core.limits, core.config.cache
        self.info = SimpleNamespace(
            vocab_size=limits.vocab_size, max_model_len=limits.max_model_len,
            num_usable_blocks=limits.num_usable_blocks, block_size=cache.block_size,
            capacity=limits.capacity,
        )  # fmt: skip

    def add_request(self, request: EngineCoreRequest) -> None:
        self.core.add_request(self.core.preprocess_add_request(decode_request(encode(request))))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort_requests(request_ids)

    async def get_outputs(self) -> EngineCoreOutputs:
        while not self.core.has_requests():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        outputs = EngineCoreOutputs(self.core.step(), self.core.make_stats())
        return decode_outputs(encode(outputs))

    def on_death(self, callback: Any) -> None: ...

    def fail_calls(self, error: Exception) -> None: ...

    def tell(self, method: str, *args: Any) -> None: ...


def make_engine(folder: Path | str, with_tokenizer: bool = True, **options: Any) -> AsyncLLM:
    config = make_engine_config(folder, **{"num_gpu_blocks": 64, "max_model_len": 64} | options)
    core = EngineCore(config)
    tokenizer = load_tokenizer(config.model.model) if with_tokenizer else None
    client: Any = HereClient(core)
    return AsyncLLM(core.config, tokenizer, client=client)


def serve(engine: AsyncLLM, names: Sequence[str] = ("m",), **of_state: Any) -> TestClient:
    """A client of a server with this engine; use it as a context manager."""
    metrics = PrometheusRecorder.of(engine.config, names[0])
    engine.stats.recorders.append(metrics)
    keys = of_state.pop("api_keys", ())
    return TestClient(build_app(ServerState(engine, metrics, list(names), **of_state), keys))
