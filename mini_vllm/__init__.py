"""mini_vllm: a small, real LLM inference engine built after vLLM V1.

The public names are here and are imported lazily. So ``import mini_vllm`` takes milliseconds, and
the core (scheduling, KV cache management) can be used without torch.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch is loaded; see worker/threads.py

from mini_vllm import logger
from mini_vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
)

if TYPE_CHECKING:
    from mini_vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.engine.async_llm_engine import AsyncLLMEngine
    from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError
    from mini_vllm.engine.llm import LLM
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.inputs import PromptType, TextPrompt, TokensPrompt
    from mini_vllm.model.registry import ModelRegistry
    from mini_vllm.outputs import CompletionOutput, RequestOutput
    from mini_vllm.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from mini_vllm.pooling_params import PoolingParams

__version__ = "0.2.0"
__version_tuple__ = (0, 2, 0)
__all__ = [
    "__version__",
    "__version_tuple__",
    "LLM",
    "SamplingParams",
    "RequestOutput",
    "CompletionOutput",
    "TextPrompt",
    "TokensPrompt",
    "PromptType",
    "LLMEngine",
    "EngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "AsyncEngineArgs",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "ModelRegistry",
    "PoolingParams",
    "PoolingOutput",
    "PoolingRequestOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
    "EngineDeadError",
    "EngineGenerateError",
]

logger.configure()

_LAZY = {
    "LLM": "mini_vllm.engine.llm",
    "AsyncLLM": "mini_vllm.engine.async_llm",
    "AsyncEngineArgs": "mini_vllm.engine.arg_utils",
    "AsyncLLMEngine": "mini_vllm.engine.async_llm_engine",
    "EngineArgs": "mini_vllm.engine.arg_utils",
    "LLMEngine": "mini_vllm.engine.llm_engine",
    "ModelRegistry": "mini_vllm.model.registry",
    "TextPrompt": "mini_vllm.inputs",
    "TokensPrompt": "mini_vllm.inputs",
    "PromptType": "mini_vllm.inputs",
    "EngineDeadError": "mini_vllm.engine.exceptions",
    "EngineGenerateError": "mini_vllm.engine.exceptions",
    "CompletionOutput": "mini_vllm.outputs",
    "RequestOutput": "mini_vllm.outputs",
    "PoolingParams": "mini_vllm.pooling_params",
    "PoolingOutput": "mini_vllm.pooling_outputs",
    "PoolingRequestOutput": "mini_vllm.pooling_outputs",
    "EmbeddingOutput": "mini_vllm.pooling_outputs",
    "EmbeddingRequestOutput": "mini_vllm.pooling_outputs",
    "ClassificationOutput": "mini_vllm.pooling_outputs",
    "ClassificationRequestOutput": "mini_vllm.pooling_outputs",
    "ScoringOutput": "mini_vllm.pooling_outputs",
    "ScoringRequestOutput": "mini_vllm.pooling_outputs",
}


if not TYPE_CHECKING:  # type checkers use the imports above

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            said = f"module 'mini_vllm' has no attribute {name!r}"
            raise AttributeError(said, name=name, obj=sys.modules[__name__])
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
