"""``POST /tokenize`` and ``POST /detokenize``: texts to token ids and back.

Source: vllm/entrypoints/serve/tokenize/serving.py#L30-L158 (OpenAIServingTokenization) @ v0.22.1
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.entrypoints.openai.chat import input_tokens_of
from mini_vllm.entrypoints.openai.errors import APIError, json_response
from mini_vllm.entrypoints.openai.protocol import DetokenizeRequest, TokenizeRequest
from mini_vllm.entrypoints.openai.state import ServerState, check_text


async def create_tokenize(
    state: ServerState, request: TokenizeRequest, headers: Headers
) -> Response:
    state.check_model(request.model)
    tokenizer = _tokenizer(state)
    if request.messages is not None:
        tokens = await input_tokens_of(state, request)
    elif request.prompt is not None:
        check_text(state, request.prompt)
        tokens = await asyncio.to_thread(
            tokenizer.encode,
            request.prompt,
            add_special_tokens=request.add_special_tokens is not False,
        )
    else:
        raise APIError("prompt is missing; send prompt or messages", param="prompt")
    texts = None
    if request.return_token_strs:
        texts = await asyncio.to_thread(tokenizer.convert_ids_to_tokens, tokens)
    body = {
        "count": len(tokens),
        "max_model_len": state.engine.limits.max_model_len,
        "tokens": tokens,
        "token_strs": texts,
    }
    return json_response(body)


async def create_detokenize(
    state: ServerState, request: DetokenizeRequest, headers: Headers
) -> Response:
    state.check_model(request.model)
    vocab_size = state.engine.limits.vocab_size
    bad = [token for token in request.tokens if not 0 <= token < vocab_size]
    if bad:
        raise APIError(
            f"tokens has id {bad[0]}; the vocabulary has {vocab_size} tokens, from 0 on",
            param="tokens",
        )
    text = await asyncio.to_thread(_tokenizer(state).decode, request.tokens)
    return json_response({"prompt": text})


def tokenizer_info(state: ServerState) -> dict[str, Any]:
    """The settings of the tokenizer as JSON, with its class and the chat template.

    Source: vllm/entrypoints/serve/tokenize/serving.py#L162-L193 (TokenizerInfo) @ v0.22.1
    """
    tokenizer = _tokenizer(state)
    files = ("vocab_file", "merges_file", "tokenizer_file", "name_or_path")  # paths of this machine
    given = {k: v for k, v in tokenizer.init_kwargs.items() if k not in files}
    template = state.chat_template or tokenizer.chat_template
    more = {"tokenizer_class": type(tokenizer).__name__}
    return _plain(given) | more | ({"chat_template": template} if template else {})


def _plain(value: Any) -> Any:
    """Settings as plain JSON values; a token object becomes its text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return getattr(value, "content", str(value))


def _tokenizer(state: ServerState):  # type: ignore[no-untyped-def]
    if state.engine.tokenizer is None:
        raise APIError("this server has no tokenizer; it works on token ids only")
    return state.engine.tokenizer
