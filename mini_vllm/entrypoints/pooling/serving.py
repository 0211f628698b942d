"""The answers of a pooling model's routes.

Either all prompts of a request are accepted or none. The answer is sent when the last is pooled.
Source: vllm/entrypoints/pooling/base/serving.py#L77-L245 (PoolingServingBase) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.engine.async_llm import Stream
from mini_vllm.engine.scoring import ScoringOptions, check_score_type, prepare
from mini_vllm.entrypoints.openai.chat import prompt_of
from mini_vllm.entrypoints.openai.completion import split_prompts
from mini_vllm.entrypoints.openai.errors import APIError, json_response
from mini_vllm.entrypoints.openai.state import ServerState, check_text, request_id, usage_of
from mini_vllm.entrypoints.pooling.encoding import bytes_response, encode
from mini_vllm.entrypoints.pooling.protocol import (
    ClassificationRequest,
    EmbeddingRequest,
    InputRequest,
    PoolingBasicRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    ScoringRequest,
)
from mini_vllm.errors import RequestError, show
from mini_vllm.inputs import PromptType
from mini_vllm.outputs import RequestOutput
from mini_vllm.pooling.config import PoolingArgs
from mini_vllm.pooling_outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
)
from mini_vllm.pooling_params import PoolingParams

Outputs = list[PoolingRequestOutput[PoolingOutput]]
SIDES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""Names of the fields with the two texts to compare."""


@dataclass(frozen=True)
class Answer:
    """The pooled prompts of a request."""

    state: ServerState
    id: str
    model: str
    outputs: Outputs

    @property
    def usage(self) -> dict[str, Any]:
        num_prompt = sum(len(output.prompt_token_ids) for output in self.outputs)
        num_cached = sum(output.num_cached_tokens for output in self.outputs)
        return usage_of(self.state, num_prompt, 0, num_cached)

    def about(self, kind: str = "list") -> dict[str, Any]:
        """The fields of an answer besides its data."""
        now = int(time.time())
        return {"id": self.id, "object": kind, "created": now, "model": self.model}


async def create_embedding(
    state: ServerState, request: EmbeddingRequest, headers: Headers
) -> Response:
    """``POST /v1/embeddings``."""
    require(state, "embed", "Embeddings API")
    answer = await _pool_input(state, request, headers, "embd-", request.params())
    if request.encoding_format.startswith("bytes"):
        return bytes_response(answer.outputs, request, answer.about() | {"usage": answer.usage})
    data = [
        {"index": index, "object": "embedding", "embedding": encode(output.outputs.data, request)}
        for index, output in enumerate(answer.outputs)
    ]
    for output in answer.outputs:
        EmbeddingOutput.from_base(output.outputs)
    return json_response(answer.about() | {"data": data, "usage": answer.usage})


async def create_pooling(state: ServerState, request: PoolingRequest, headers: Headers) -> Response:
    """``POST /pooling``: any task of the model."""
    require(state, None, "Pooling API")
    answer = await _pool_input(state, request, headers, "pool-", request.params())
    if request.encoding_format.startswith("bytes"):
        return bytes_response(answer.outputs, request, answer.about() | {"usage": answer.usage})
    data = [
        {"index": index, "object": "pooling", "data": encode(output.outputs.data, request)}
        for index, output in enumerate(answer.outputs)
    ]
    return json_response(answer.about() | {"data": data, "usage": answer.usage})


async def create_classify(
    state: ServerState, request: ClassificationRequest, headers: Headers
) -> Response:
    """``POST /classify``.

    Source: vllm/entrypoints/pooling/classify/serving.py#L34-L72
    (ServingClassification._build_response) @ v0.22.1
    """
    args = require(state, "classify", "Classification API")
    answer = await _pool_input(state, request, headers, "classify-", request.params())
    data = []
    for index, output in enumerate(answer.outputs):
        probs = ClassificationOutput.from_base(output.outputs).probs
        label = args.labels[int(np.argmax(probs))]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
    return json_response(answer.about() | {"data": data, "usage": answer.usage})


async def create_score(state: ServerState, request: ScoreRequest, headers: Headers) -> Response:
    """``POST /score``."""
    given = request.__pydantic_fields_set__
    names = next((names for names in SIDES if given.issuperset(names)), None)
    if names is None:
        raise APIError(
            f"the texts to compare are missing; send {' and '.join(SIDES[0])}, or "
            f"{' and '.join(SIDES[-1])}",
            param=SIDES[0][0],
        )
    sides = {name: getattr(request, name) for name in names}
    answer = await _score(state, request, headers, "score-", sides)
    data = [
        {"index": index, "object": "score", "score": _number(output)}
        for index, output in enumerate(answer.outputs)
    ]
    return json_response(answer.about() | {"data": data, "usage": answer.usage})


async def create_rerank(state: ServerState, request: RerankRequest, headers: Headers) -> Response:
    """``POST /rerank``: the documents, best first.

    Source: vllm/entrypoints/pooling/scoring/serving.py#L138-L185
    (ServingScores._request_output_to_rerank_response) @ v0.22.1
    """
    documents = request.documents if isinstance(request.documents, list) else [request.documents]
    sides = {"query": request.query, "documents": documents}
    answer = await _score(state, request, headers, "rerank-", sides)
    results: list[dict[str, Any]] = []
    for index, output in enumerate(answer.outputs):
        document = documents[index]
        shown = {"text": document} if isinstance(document, str) else document
        echo = {"document": {**shown, "multi_modal": None}} if request.return_documents else {}
        results.append({"index": index, **echo, "relevance_score": _number(output)})
    results.sort(key=lambda result: result["relevance_score"], reverse=True)
    usage = {name: answer.usage[name] for name in ("prompt_tokens", "total_tokens")}
    body = {"id": answer.id, "model": answer.model, "usage": usage}
    top = request.top_n if request.top_n > 0 else len(results)
    return json_response(body | {"results": results[:top]})


def require(state: ServerState, task: str | None, api: str) -> PoolingArgs:
    """The pooling model's arguments. Raises APIError if it does not have the task; None: any."""
    args = state.engine.input_processor.pooling
    if args is None or (task is not None and task not in args.tasks):
        how = "--runner pooling" if args is None else ""
        how += f" --convert {task}" if task is not None else ""
        raise APIError(
            f"The model does not support {api}; start the server with{' ' + how.strip()}"
        )
    return args


async def _pool_input(
    state: ServerState,
    request: InputRequest,
    headers: Headers,
    prefix: str,
    params: PoolingParams,
) -> Answer:
    lora = state.check_model(request.model)
    state.check_alive()
    token_ids = await tokens_of(state, request)
    return await pool(state, request, headers, prefix, token_ids, params, lora)


async def tokens_of(state: ServerState, request: InputRequest) -> list[list[int]]:
    """The prompts of ``input``, or the conversation of ``messages``, as token ids."""
    if (request.input is None) == (request.messages is None):
        raise APIError("send either input or messages, and not both", param="input")
    special = request.add_special_tokens
    if request.messages is not None:
        prompts: list[PromptType] = [await prompt_of(state, request)]
        how = request.tokenization(bool(special))
    else:
        prompts = _inputs(request.input)
        how = request.tokenization(special is not False)
    if request.truncate_prompt_tokens is not None:
        for prompt in prompts:
            if isinstance(prompt, str):
                check_text(state, prompt)
    tokenize = state.engine.pooling_tokenizer.tokenize
    return await _tokens(state, lambda: [tokenize(prompt, how) for prompt in prompts])


def _inputs(given: Any) -> list[PromptType]:
    try:
        return split_prompts(given)
    except APIError as error:
        raise APIError(error.message.replace("prompt ", "input "), param="input") from None


async def _tokens(
    state: ServerState, work: Callable[[], list[list[int]]], param: str | None = "input"
) -> list[list[int]]:
    """Tokenize in a thread, and check all prompts before the first is accepted. Errors name
    `param`, the field of the prompts, if they all come from one field."""
    try:
        prompts = await asyncio.to_thread(work)
        for token_ids in prompts:
            state.engine.limits.check(token_ids)
        return prompts
    except RequestError as error:
        if error.param == "prompt":
            raise APIError(str(error), param=param) from error
        raise


async def pool(
    state: ServerState,
    request: PoolingBasicRequest,
    headers: Headers,
    prefix: str,
    token_ids: Sequence[list[int]],
    params: PoolingParams,
    lora: Any,
) -> Answer:
    """Hand the prompts to the engine, all or none, and wait for their results."""
    answer_id = request_id(prefix, headers, request.request_id)
    salt = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    prompts: list[PromptType] = [{"prompt_token_ids": ids, **salt} for ids in token_ids]
    streams = await state.submit(
        answer_id, prompts, [params] * len(prompts), lora, request.priority, headers
    )
    try:
        finals = await asyncio.gather(*(_last(state, stream) for stream in streams))
    finally:
        state.close(streams)
    outputs = [PoolingRequestOutput.of(final) for final in finals]
    return Answer(state, answer_id, state.name_of(lora), outputs)


async def _last(state: ServerState, stream: Stream) -> RequestOutput:
    async for output in state.engine.outputs(stream):
        state.check_output(output)
        if output.pooled is not None:
            return output
    raise APIError("the request was aborted", 503)


async def _score(
    state: ServerState,
    request: ScoringRequest,
    headers: Headers,
    prefix: str,
    sides: dict[str, Any],
) -> Answer:
    """Compare the texts of two fields."""
    args = require(state, None, "Score API")
    check_score_type(args)
    lora = state.check_model(request.model)
    state.check_alive()
    one, other = (_texts_of(state, args, name, side) for name, side in sides.items())
    options = ScoringOptions(
        request.tokenization(),
        request.max_tokens_per_query,
        request.max_tokens_per_doc,
        state.chat_template,
        request.template_kwargs,
    )
    tokenizer = state.engine.pooling_tokenizer
    scoring = await asyncio.to_thread(prepare, tokenizer, one, other, options)
    await _tokens(state, lambda: scoring.prompts, param=None)
    params = PoolingParams(request.activates, task=scoring.task)
    answer = await pool(state, request, headers, prefix, scoring.prompts, params, lora)
    return Answer(state, answer.id, answer.model, scoring.combine(answer.outputs))


def _texts_of(state: ServerState, args: PoolingArgs, name: str, side: Any) -> list[str]:
    """The texts of a field. Clients of Cohere and Jina may put each into an object."""
    texts = []
    for given in side if isinstance(side, list) else [side]:
        text = given.get("text") if isinstance(given, dict) and "content" not in given else given
        if not isinstance(text, str):
            raise APIError(
                f"the texts hold {show(given)}; MultiModalParam is not supported for {args.name}: "
                "send texts",
                param=name,
            )
        check_text(state, text)
        texts.append(text)
    if not texts:
        raise APIError(f"{name} is empty; send at least one text", param=name)
    return texts


def _number(output: PoolingRequestOutput[PoolingOutput]) -> float:
    return ScoringOutput.from_base(output.outputs).score
