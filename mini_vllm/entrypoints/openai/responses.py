"""``POST /v1/responses``: OpenAI's newer interface, for text, as a thin layer over a chat.

Source: vllm/entrypoints/openai/responses/serving.py#L140-L1576 (OpenAIServingResponses) @ v0.22.1
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.engine.async_llm import Stream
from mini_vllm.entrypoints.openai.chat import chat_logprobs, prepare_chat
from mini_vllm.entrypoints.openai.errors import json_response
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest
from mini_vllm.entrypoints.openai.sse import EventStream, sse_event
from mini_vllm.entrypoints.openai.state import ServerState, check_max_tokens, request_id
from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import SamplingParams


async def create_response(
    state: ServerState, request: ResponsesRequest, headers: Headers
) -> Response:
    lora = state.check_model(request.model)
    state.check_alive()
    request.check_fields(state.engine.limits.vocab_size)
    check_max_tokens(state, "max_output_tokens", request.max_output_tokens)
    chat = request.as_chat()
    prompt, params = await prepare_chat(state, chat)
    answer_id = request_id("resp_", headers, request.request_id)
    assert isinstance(params, SamplingParams)  # beams are for chats
    (stream,) = await state.submit(answer_id, [prompt], [params], lora, request.priority, headers)
    answer = _Answer(state, request, chat, params, answer_id, state.name_of(lora), stream)
    if request.stream:
        await state.settle([stream], [params])
        return EventStream(_stream(answer), lambda: state.close([stream]), done=b"")
    try:
        async for output in state.engine.outputs(stream):
            state.check_output(output)
            answer.take(output.outputs[0])
        return json_response(answer.body("completed"))
    finally:
        state.close([stream])


class _Answer:
    """A response while it grows."""

    def __init__(
        self,
        state: ServerState,
        request: ResponsesRequest,
        chat: ChatCompletionRequest,
        params: SamplingParams,
        id: str,
        model: str,
        stream: Stream,
    ) -> None:
        self.state, self.request, self.stream = state, request, stream
        self.id, self.model = id, model
        self.chat, self.params = chat, params
        self.logprobs: list[dict[str, Any]] = []
        self.message_id = f"msg_{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.text, self.num_tokens = "", 0
        self.finish_reason: str | None = None

    def take(self, completion: CompletionOutput) -> list[dict[str, Any]]:
        """Add what is new; returns its entries of logprobs."""
        found = chat_logprobs(self.chat, completion, self.state.vocabulary)
        news = found["content"] if found is not None else []
        self.logprobs += news
        self.text += completion.text
        self.num_tokens += len(completion.token_ids)
        self.finish_reason = completion.finish_reason
        return news

    def part(self, text: str) -> dict[str, Any]:
        logprobs = self.logprobs if self.chat.wants_logprobs else None
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def item(self, status: str) -> dict[str, Any]:
        content = [self.part(self.text)] if status != "in_progress" else []
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def body(self, status: str) -> dict[str, Any]:
        """The response object; a limit that was reached makes it "incomplete"."""
        cut = status == "completed" and self.finish_reason == "length"
        num_prompt = len(self.stream.live.prompt_token_ids)
        done = status == "completed"
        usage = {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": self.stream.live.num_cached_tokens},
            "output_tokens": self.num_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt + self.num_tokens,
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "incomplete" if cut else status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "instructions": self.request.instructions,
            "model": self.model,
            "output": [self.item("incomplete" if cut else "completed")] if done else [],
            "parallel_tool_calls": True,
            "temperature": self.params.temperature,
            "top_p": self.params.top_p,
            "presence_penalty": self.params.presence_penalty,
            "frequency_penalty": self.params.frequency_penalty,
            "tool_choice": "auto",
            "tools": [],
            "max_output_tokens": self.params.max_tokens,
            "max_tool_calls": None,
            "background": False,
            "metadata": self.request.metadata,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "text": self.request.text,
            "top_logprobs": self.params.logprobs,
            "truncation": self.request.truncation or "disabled",
            "user": self.request.user,
            "kv_transfer_params": None,
            "usage": usage if done else None,
        }


async def _stream(answer: _Answer) -> AsyncIterator[bytes]:
    """The events, numbered from 0: created, in_progress, the item, its part, deltas, done."""
    numbers = itertools.count()
    place = {"item_id": answer.message_id, "output_index": 0, "content_index": 0}

    def event(kind: str, **more: Any) -> bytes:
        body = {"type": kind, "sequence_number": next(numbers), **more}
        return f"event: {kind}\n".encode() + sse_event(body)

    yield event("response.created", response=answer.body("in_progress"))
    yield event("response.in_progress", response=answer.body("in_progress"))
    item = answer.item("in_progress")
    yield event("response.output_item.added", output_index=0, item=item)
    yield event("response.content_part.added", **place, part=answer.part(""))
    held: list[dict[str, Any]] = []  # of tokens without text yet
    async for output in answer.state.engine.outputs(answer.stream):
        answer.state.check_output(output)
        completion = output.outputs[0]
        held += answer.take(completion)
        if completion.text:
            delta = completion.text
            yield event("response.output_text.delta", **place, delta=delta, logprobs=held)
            held = []
    whole = answer.logprobs
    yield event("response.output_text.done", **place, text=answer.text, logprobs=whole)
    yield event("response.content_part.done", **place, part=answer.part(answer.text))
    body = answer.body("completed")
    yield event("response.output_item.done", output_index=0, item=body["output"][0])
    # As vLLM: the status says whether it was cut. OpenAI's client waits for no other event.
    yield event("response.completed", response=body)
