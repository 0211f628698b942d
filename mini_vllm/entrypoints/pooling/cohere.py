"""``POST /v2/embed``: embeddings in the format of Cohere's API.

Source: vllm/entrypoints/pooling/embed/io_processor.py#L370-L434
(EmbedIOProcessor._pre_process_cohere_online) @ v0.22.1
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.entrypoints.openai.errors import APIError, json_response
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.entrypoints.pooling.protocol import CohereEmbedRequest, InputRequest
from mini_vllm.entrypoints.pooling.serving import pool, require, tokens_of
from mini_vllm.errors import show
from mini_vllm.pooling.config import PoolingArgs
from mini_vllm.pooling_outputs import EmbeddingOutput

FIELDS = ("texts", "images", "inputs")
SIGNED = 128
"""The difference between a byte of "ubinary" and one of "binary"."""


async def create_cohere_embedding(
    state: ServerState, request: CohereEmbedRequest, headers: Headers
) -> Response:
    """The vectors of texts, in each requested type."""
    args = require(state, "embed", "Embeddings API")
    lora = state.check_model(request.model)
    state.check_alive()
    tokenizer = state.engine.tokenizer
    has_template = bool(state.chat_template or getattr(tokenizer, "chat_template", None))
    asked = _requests(request, _instruction(request, args), has_template)
    prompts = [ids for one in asked for ids in await tokens_of(state, one)]
    most = request.max_tokens
    longest = max(map(len, prompts))
    if request.truncate == "NONE" and most is not None and longest > most:
        raise APIError(
            f"Input of {longest} tokens exceeds max_tokens={most} with truncate=NONE. Set truncate "
            "to END or START to allow truncation.",
            param="max_tokens",
        )
    answer = await pool(state, asked[0], headers, "embd-", prompts, request.params(), lora)
    rows = [EmbeddingOutput.from_base(output.outputs).embedding for output in answer.outputs]
    body = {
        "id": answer.id,
        "embeddings": typed(rows, request.embedding_types or ["float"]),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": _billed(request, answer.usage["prompt_tokens"]),
        },
        "response_type": "embeddings_by_type",
    }
    return json_response(body if request.texts is None else {**body, "texts": request.texts})


def _billed(request: CohereEmbedRequest, num_tokens: int) -> dict[str, int]:
    is_image = request.images is not None
    return {
        "input_tokens": 0 if is_image else num_tokens,
        "image_tokens": num_tokens if is_image else 0,
    }


def _instruction(request: CohereEmbedRequest, args: PoolingArgs) -> str:
    """The instruction before each text; "" without one.

    Raises:
        APIError: for an ``input_type`` that the model has no instruction for.
    """
    name = request.input_type
    if name is None:
        return ""
    if name not in args.instructions:
        known = ", ".join(sorted(args.instructions))
        raise APIError(
            f"Unsupported input_type {show(name)}. "
            + (
                f"Supported values: {known}"
                if known
                else "This model does not define any input_type task instructions."
            ),
            param="input_type",
        )
    return args.instructions[name]


def _requests(
    request: CohereEmbedRequest, instruction: str, has_template: bool
) -> list[InputRequest]:
    """The same as prompts. Texts without instruction, or for a model without chat template, become
    plain prompts, with the instruction before each. All others become one conversation each."""
    given = [name for name in FIELDS if getattr(request, name) is not None]
    if len(given) != 1 or not getattr(request, given[0]):
        raise APIError("One of texts, images, or inputs must be provided", param="texts")
    common = {"priority": request.priority, **request.cut()}
    if request.texts is not None and not (instruction and has_template):
        return [InputRequest(input=[instruction + text for text in request.texts], **common)]
    if request.images is not None:
        contents = [[_image({"url": url})] for url in request.images]
    elif request.inputs is not None:
        contents = [_parts(one) for one in request.inputs]
    else:
        contents = [[_text(text)] for text in request.texts or ()]
    before = [{"role": "system", "content": [_text(instruction)]}] if instruction else []
    return [
        InputRequest(messages=[*before, {"role": "user", "content": parts}], **common)
        for parts in contents
    ]


def _parts(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of one of ``inputs``, in the form of a chat message."""
    parts = given.get("content")
    if not isinstance(parts, list) or not parts or not all(isinstance(p, dict) for p in parts):
        raise APIError(
            f"inputs has {show(given)}; each must have content, a list of parts", param="inputs"
        )
    kinds = {"text": _text, "image_url": _image}
    for part in parts:
        kind = part.get("type")
        if kind not in kinds or part.get(kind) is None:
            raise APIError(
                f"inputs has the part {show(part)}; a part is {{'type': 'text', 'text': ...}} or "
                "{'type': 'image_url', 'image_url': {'url': ...}}",
                param="inputs",
            )
    return [kinds[part["type"]](part[part["type"]]) for part in parts]


def _text(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def typed(rows: Sequence[Sequence[float]], kinds: Sequence[str]) -> dict[str, Any]:
    """Vectors in Cohere's types: numbers; a bit for each number, 1 where it is not negative; or
    little-endian float32 bytes in base64.

    Source: vllm/entrypoints/pooling/embed/protocol.py#L211-L228 (build_typed_embeddings) @ v0.22.1
    """
    values = np.asarray(rows, np.dtype("<f4"))
    forms: dict[str, Any] = {}
    for kind in kinds:
        if kind == "float":
            forms[kind] = [list(row) for row in rows]
        elif kind == "base64":
            forms[kind] = [base64.b64encode(row.tobytes()).decode() for row in values]
        else:
            forms[kind] = (_bits(values) - (SIGNED if kind == "binary" else 0)).tolist()
    return forms


def _bits(values: NDArray[np.float32]) -> NDArray[np.int16]:
    size = values.shape[1]
    if size % 8:
        raise APIError(
            f"Embedding dimension must be a multiple of 8 for binary embedding types, but got "
            f"{size}.",
            param="embedding_types",
        )
    return np.packbits(values >= 0, axis=1).astype(np.int16)
