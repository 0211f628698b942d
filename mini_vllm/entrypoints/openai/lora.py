"""``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: fine-tunes that come and go.

Source: vllm/entrypoints/openai/models/serving.py#L160-L237
(OpenAIServingModels.load_lora_adapter) @ v0.22.1
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import LoadLoRARequest, UnloadLoRARequest
from mini_vllm.entrypoints.openai.state import ServerState


async def load(state: ServerState, request: LoadLoRARequest, headers: Headers) -> Response:
    """Make an adapter answer to a model name of its own."""
    raise APIError("this server was started without --enable-lora", HTTPStatus.NOT_IMPLEMENTED)


async def unload(state: ServerState, request: UnloadLoRARequest, headers: Headers) -> Response:
    """Forget an adapter; requests that use it run on."""
    raise APIError("this server was started without --enable-lora", HTTPStatus.NOT_IMPLEMENTED)
