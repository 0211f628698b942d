"""What ``AsyncLLM`` does with a pooling model: one prompt in, one vector out.

Source: vllm/v1/engine/async_llm.py#L803-L887 (AsyncLLM.encode) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from mini_vllm.config.vllm_names import refuse_argument
from mini_vllm.engine.exceptions import EngineGenerateError
from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.engine.parts.limits import PromptLimits
from mini_vllm.engine.pooling_inputs import PoolingTokenizer, Tokenization
from mini_vllm.inputs import PromptType, as_tokens
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import RequestOutput
from mini_vllm.pooling_outputs import PoolingOutput, PoolingRequestOutput
from mini_vllm.pooling_params import PoolingParams


class OnlinePooling:
    """The part of ``AsyncLLM`` for pooling models."""

    input_processor: InputProcessor
    limits: PromptLimits
    add_request: Callable[..., Awaitable[Any]]
    outputs: Callable[..., AsyncGenerator[RequestOutput, None]]

    @property
    def pooling_tokenizer(self) -> PoolingTokenizer:
        """Tokenizes prompts as :meth:`encode` does."""
        return PoolingTokenizer(self.input_processor, self.limits.max_model_len)

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        reasoning_ended: bool | None = None,
        *,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Pool a prompt; yields once. Leaving it early aborts, as of :meth:`generate`.

        Args:
            trace_headers, reasoning_ended: vLLM's; only None, as nothing is traced or written.
            tokenization_kwargs: fields of :class:`~mini_vllm.engine.tokenization.Tokenization`.

        Raises:
            EngineGenerateError: if the prompt's output is not finite; else as of :meth:`generate`.

        Source: vllm/v1/engine/async_llm.py#L803-L887 (AsyncLLM.encode) @ v0.22.1
        """
        refuse_argument("AsyncLLM.encode", "trace_headers", trace_headers)
        refuse_argument("AsyncLLM.encode", "reasoning_ended", reasoning_ended)
        self.input_processor.check(request_id, pooling_params, priority, None)
        how = Tokenization.of(tokenization_kwargs).cut_by(pooling_params)
        token_ids = await asyncio.to_thread(self.pooling_tokenizer.tokenize, prompt, how)
        stream = await self.add_request(
            request_id,
            as_tokens(prompt, token_ids),
            pooling_params,
            lora_request=lora_request,
            priority=priority,
            data_parallel_rank=data_parallel_rank,
        )
        async with contextlib.aclosing(self.outputs(stream)) as outputs:
            async for output in outputs:
                if output.pooled is None:
                    raise EngineGenerateError(output.error or "the request was aborted")
                yield PoolingRequestOutput.of(output)
