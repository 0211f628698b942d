"""What a front end hands to the engine: a request before the engine has seen it.

Plain data, for it may cross to another process. The engine makes its own
:class:`~mini_vllm.request.Request` of it and never shares that object.

Source: vllm/v1/engine/__init__.py#L81-L126 (EngineCoreRequest) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mini_vllm.mm_features import MultiModalFeatureSpec
from mini_vllm.pooling_params import PoolingParams
from mini_vllm.sampling_params import SamplingParams


@dataclass(slots=True)
class EngineCoreRequest:
    """A tokenized prompt with everything that its caller asks for.

    Attributes:
        request_id: unique among unfinished requests.
        prompt_token_ids: the prompt as tokens.
        sampling_params: with every open question settled; see
            :class:`~mini_vllm.engine.input_processor.InputProcessor`.
        eos_token_id: the token that ends generation, unless ``sampling_params.ignore_eos``.
        arrival_time: seconds on the monotonic clock of the front end.
        priority: smaller runs first under the "priority" policy.
        cache_salt: requests share cached blocks only with requests of the same salt.
        lora_request: the adapter that it uses, if any.
        mm_features: images of the prompt, in order of their placeholders.
        kv_transfer_params: what a KV connector gets with it.
        data_parallel_rank: which of several engines side by side serves it; None: not decided.
        pooling_params: of a request that ends with its prompt; its ``sampling_params`` are
            then those of one token that is never sampled.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_id: int | None
    arrival_time: float
    priority: int = 0
    cache_salt: str | None = None
    lora_request: Any = None
    mm_features: list[MultiModalFeatureSpec] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    data_parallel_rank: int | None = None
    pooling_params: PoolingParams | None = None
