"""vLLM's own scheduler in this process, without a model: what tests of the maintainer's track use.

    from labkit.maintain.rig import *

    scheduler = make_scheduler(num_gpu_blocks=10)
    scheduler.add_request(make_request("a", 40, max_tokens=3))
    plan, outputs = step(scheduler)
    plan.num_scheduled_tokens      {"a": 40}; fewer where the prefix cache has brought some

The limits of `make_scheduler` are those of `labkit.trace.format.TraceConfig`, for example
`policy="priority", async_scheduling=True`. This module runs beside vLLM only:
`labkit.maintain.child` imports it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from labkit.course.root import ROOT
from labkit.trace import vllm_oracle
from labkit.trace.format import TraceConfig

__all__ = [
    "EOS", "MODEL", "EncoderCacheManager", "KVConnectorOutput", "LoRARequest", "ModelRunnerOutput",
    "RequestStatus", "SamplingParams", "SimpleNamespace", "answer", "make_connector",
    "make_request", "make_scheduler", "picture", "step",
]  # fmt: skip

EOS = 2
MODEL = str(ROOT / "mini_vllm" / "bundled" / "storyteller")
"""A checkpoint with a tokenizer."""
LIMITS = {
    "num_gpu_blocks": 100,
    "max_model_len": 512,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 8,
}
init_none_hash(sha256)


def make_scheduler(*, log_stats: bool = False, grammars: Any = None, **limits: Any) -> Any:
    """A scheduler of vLLM; `grammars` stands in for its StructuredOutputManager."""
    return vllm_oracle.make_scheduler(TraceConfig(**(LIMITS | limits)), grammars, log_stats)


def make_request(
    name: str,
    tokens: int | list[int],
    *,
    priority: int = 0,
    arrival: float = 0.0,
    params: Any = None,
    lora: Any = None,
    pictures: Any = (),
    salt: str | None = None,
    resumable: bool = False,
    **sampling: Any,
) -> Any:
    """A request; `tokens` is its prompt, or the length of one that no other name has.

    `sampling` goes to SamplingParams; without it: greedy, 16 tokens.
    """
    if isinstance(tokens, int):
        first = sum(map(ord, name)) * 1000
        tokens = [first + i for i in range(tokens)]
    if params is None:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **sampling})
        params.update_from_generation_config({}, EOS)
    return Request(
        name,
        list(tokens),
        params,
        None,
        arrival_time=arrival,
        priority=priority,
        lora_request=lora,
        cache_salt=salt,
        mm_features=list(pictures),
        resumable=resumable,
        block_hasher=get_request_block_hasher(16, sha256),
    )


def picture(name: str, offset: int, length: int) -> Any:
    """An image of a prompt, called by what it shows; the pixels are not needed."""
    place = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=place)


def answer(scheduler: Any, plan: Any, tokens: Any = None, **more: Any) -> Any:
    """What a model runner answers to a plan: `tokens` by request; else token 7 for each request
    whose tokens are all computed."""
    sampled = []
    for name in plan.num_scheduled_tokens:
        request = scheduler.requests.get(name)
        done = request is None or request.num_computed_tokens >= request.num_tokens
        sampled.append(list((tokens or {}).get(name, [7] if done else [])))
    names = list(plan.num_scheduled_tokens)
    parts: dict[str, Any] = {"logprobs": None, "prompt_logprobs_dict": {}, "pooler_output": []}
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: row for row, name in enumerate(names)},
        sampled_token_ids=sampled,
        **(parts | more),
    )


def step(scheduler: Any, tokens: Any = None, **more: Any) -> tuple[Any, list[Any]]:
    """One step: the plan, and the outputs of its requests."""
    plan = scheduler.schedule()
    update = scheduler.update_from_output(plan, answer(scheduler, plan, tokens, **more))
    return plan, [output for outputs in update.values() for output in outputs.outputs]


def make_connector(scheduler: Any, matched: Any, load_async: bool = False) -> Any:
    """Give a scheduler a KV connector; `matched`: request -> prompt tokens whose KV it can bring,
    or None while it does not know yet."""

    class Connector(KVConnectorBase_V1):
        def __init__(self) -> None: ...

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
            known = matched.get(request.request_id, 0)
            if known is None:
                return None, False
            new = max(0, known - num_computed_tokens)
            return new, load_async and new > 0

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            return KVConnectorMetadata()

        def request_finished(self, request: Any, block_ids: Any) -> Any:
            return False, None

        def get_kv_connector_stats(self) -> Any:
            return None

        def take_events(self) -> Any:
            return ()

        def update_state_after_alloc(self, *args: Any, **kwargs: Any) -> None: ...
        def update_connector_output(self, *args: Any) -> None: ...
        def on_new_request(self, request: Any) -> None: ...
        def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...
        def wait_for_layer_load(self, layer_name: str) -> None: ...
        def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
        def wait_for_save(self) -> None: ...

    scheduler.connector = Connector()
    return scheduler.connector
