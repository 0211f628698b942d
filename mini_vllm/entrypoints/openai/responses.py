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
from mini_vllm.entrypoints.openai.chat import prompt_of
from mini_vllm.entrypoints.openai.errors import json_response
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest
from mini_vllm.entrypoints.openai.sse import EventStream, sse_event
from mini_vllm.entrypoints.openai.state import ServerState, request_id, room_for_output


async def create_response(
    state: ServerState, request: ResponsesRequest, headers: Headers
) -> Response:
    lora = state.check_model(request.model)
    state.check_alive()
    messages = (
        [{"role": "user", "content": request.input}]
        if isinstance(request.input, str)
        else [{key: item.get(key) for key in ("role", "content")} for item in request.input]
    )
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    chat = ChatCompletionRequest(
        model=request.model,
        messages=messages,
        stream=request.stream,
        temperature=request.temperature,
        top_p=request.top_p,
        response_format=request.response_format(),
    )
    token_ids = await prompt_of(state, chat)
    max_tokens = room_for_output(state, len(token_ids), request.max_output_tokens)
    params = chat.sampling_params(state.default_params, max_tokens, None)
    answer_id = request_id("resp", headers, request.request_id)
    (stream,) = await state.submit(answer_id, [token_ids], [params], lora)
    answer = _Answer(state, request, answer_id, stream)
    if request.stream:
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
        self, state: ServerState, request: ResponsesRequest, id: str, stream: Stream
    ) -> None:
        self.state, self.request, self.id, self.stream = state, request, id, stream
        self.message_id = f"msg_{uuid.uuid4().hex}"
        self.created = time.time()
        self.text, self.num_tokens, self.finish_reason = "", 0, None

    def take(self, completion: Any) -> None:
        self.text += completion.text
        self.num_tokens += len(completion.token_ids)
        self.finish_reason = completion.finish_reason

    def part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

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
            "model": self.request.model or self.state.model_name,
            "output": [self.item("incomplete" if cut else "completed")] if done else [],
            "parallel_tool_calls": True,
            "temperature": self.request.temperature,
            "top_p": self.request.top_p,
            "tool_choice": "auto",
            "tools": [],
            "max_output_tokens": self.request.max_output_tokens,
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
    async for output in answer.state.engine.outputs(answer.stream):
        answer.state.check_output(output)
        completion = output.outputs[0]
        answer.take(completion)
        if completion.text:
            delta = completion.text
            yield event("response.output_text.delta", **place, delta=delta, logprobs=[])
    yield event("response.output_text.done", **place, text=answer.text, logprobs=[])
    yield event("response.content_part.done", **place, part=answer.part(answer.text))
    body = answer.body("completed")
    yield event("response.output_item.done", output_index=0, item=body["output"][0])
    kind = "response.incomplete" if body["status"] == "incomplete" else "response.completed"
    yield event(kind, response=body)
