"""``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: adapters at run time.

Source: vllm/entrypoints/openai/models/serving.py#L160-L237
(OpenAIServingModels.load_lora_adapter) @ v0.22.1
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import LoadLoRARequest, UnloadLoRARequest
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.errors import show
from mini_vllm.lora.request import LoRARequest

_changing = asyncio.Lock()
"""Two requests for one name must reach the engine one after the other."""


async def load(state: ServerState, request: LoadLoRARequest, headers: Headers) -> Response:
    """Load an adapter into the engine, then serve it under its own model name.

    Raises:
        APIError: 400 for a name that is taken, or an adapter that cannot be served.
    """
    check_enabled(state)
    name = request.lora_name
    async with _changing:
        known = state.loras.get(name)
        if name in state.served_model_names:
            raise APIError(
                f"{show(name)} is the model's own name; choose another", param="lora_name"
            )
        if known is not None and not request.load_inplace:
            raise APIError(
                f"the adapter {show(name)} is loaded already; unload it first, or set load_inplace",
                param="lora_name",
            )
        number = known.lora_int_id if known else 1 + max(_numbers(state), default=0)
        try:
            adapter = LoRARequest(
                name, number, request.lora_path, load_inplace=request.load_inplace
            )
            await state.engine.call("add_lora", adapter)
        except (ValueError, RuntimeError) as error:
            raise APIError(str(error), param="lora_path") from error
        state.loras[name] = replace(adapter, load_inplace=False)
    return PlainTextResponse(f"Success: LoRA adapter {name!r} added successfully.")


async def unload(state: ServerState, request: UnloadLoRARequest, headers: Headers) -> Response:
    """Remove an adapter from the server and the engine. Requests that use it still run to their
    end.

    Raises:
        APIError: 404 for a name that no adapter has.
    """
    check_enabled(state)
    name = request.lora_name
    async with _changing:
        if name not in state.loras:
            known = ", ".join(map(repr, state.loras)) or "none"
            raise APIError(
                f"there is no adapter {show(name)}; loaded are {known}",
                HTTPStatus.NOT_FOUND,
                "lora_name",
            )
        await state.engine.call("remove_lora", state.loras.pop(name).lora_int_id)
    return PlainTextResponse(f"Success: LoRA adapter {name!r} removed successfully.")


def check_enabled(state: ServerState) -> None:
    if state.engine.config.lora is None:
        raise APIError("this server was started without --enable-lora", HTTPStatus.NOT_IMPLEMENTED)


def _numbers(state: ServerState) -> list[int]:
    return [adapter.lora_int_id for adapter in state.loras.values()]
