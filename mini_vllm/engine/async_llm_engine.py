"""An older name of :class:`AsyncLLM`, which scripts still use.

Source: vllm/engine/async_llm_engine.py#L4-L7 (AsyncLLM) @ v0.22.1
"""

from __future__ import annotations

from mini_vllm.engine.async_llm import AsyncLLM

AsyncLLMEngine = AsyncLLM
