"""``/v1/messages``: Anthropic's interface, as a layer over a chat.

::

    event: message_start          the model, and the prompt's tokens
    event: ping
    event: content_block_start    {"index": 0, "content_block": {"type": "text", "text": ""}}
    event: content_block_delta    {"index": 0, "delta": {"type": "text_delta", "text": "I lo"}}
    event: content_block_stop     {"index": 0}           a block ends before the next one begins
    event: message_delta          why it ended, and the answer's tokens
    event: message_stop

Source: vllm/entrypoints/anthropic/serving.py#L57-L839 (AnthropicServingMessages) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.entrypoints.anthropic.conversation import chat_of
from mini_vllm.entrypoints.anthropic.errors import error_body
from mini_vllm.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from mini_vllm.entrypoints.openai.chat import ChatAnswer, input_tokens_of, prepare_chat
from mini_vllm.entrypoints.openai.errors import APIError, as_api_error, json_response
from mini_vllm.entrypoints.openai.response_items import Item
from mini_vllm.entrypoints.openai.responses import Output
from mini_vllm.entrypoints.openai.sse import EventStream, sse_event
from mini_vllm.entrypoints.openai.state import ServerState, request_id
from mini_vllm.entrypoints.openai.tools import check_tools
from mini_vllm.errors import show
from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
DELTAS = {
    "message": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "function_call": ("input_json_delta", "partial_json"),
}
"""For each type of item the type of its deltas, and the name of their text field."""


async def create_messages(
    state: ServerState, request: MessagesRequest, headers: Headers
) -> Response:
    """``POST /v1/messages``. All checks are made before the first event is sent."""
    lora = state.check_model(request.model)
    state.check_alive()
    chat = chat_of(request)
    chat.thinking_token_budget = _budget(state, request)
    chat.check_fields(state.engine.limits.vocab_size)
    check_tools(state, chat)
    prompt, params = await prepare_chat(state, chat)
    answer_id = request_id("msg_", headers, None)
    assert isinstance(params, SamplingParams)  # beams are for chats
    (stream,) = await state.submit(answer_id, [prompt], [params], lora, headers=headers)
    name = state.name_of(lora)
    message = _Message(ChatAnswer(state, chat, answer_id, name, stream, "assistant"))
    if request.stream:
        await state.settle([stream], [params])
        return EventStream(_stream(message), lambda: state.close([stream]), done=b"")
    try:
        async for output in state.engine.outputs(stream):
            state.check_output(output)
            await asyncio.to_thread(list, message.take(output.outputs[0]))
        return json_response(message.body())
    finally:
        state.close([stream])


def _budget(state: ServerState, request: MessagesRequest) -> int | None:
    """`thinking.budget_tokens`; None, too, if the answer ends before it is spent, and on a server
    that does not know where a thought ends. Raises APIError for what is no number of tokens.

    Difference: vLLM does not look at it.
    """
    budget, structured = (
        (request.thinking or {}).get("budget_tokens"),
        state.engine.config.structured,
    )
    if budget is None:
        return None
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
        raise APIError(
            f"thinking.budget_tokens is {show(budget)}; it must be an integer of at least 0",
            param="thinking",
        )
    is_known = structured.reasoning_parser and not structured.enable_in_reasoning
    return budget if is_known and budget < request.max_tokens else None


async def count_tokens(
    state: ServerState, request: CountTokensRequest, headers: Headers
) -> Response:
    """``POST /v1/messages/count_tokens``: the length of a prompt, without running the model.

    Source: vllm/entrypoints/anthropic/serving.py#L811-L839
    (AnthropicServingMessages.count_tokens) @ v0.22.1
    """
    state.check_model(request.model)
    chat = chat_of(request)
    number = len(await input_tokens_of(state, chat))
    return json_response(
        {"input_tokens": number, "context_management": {"original_input_tokens": number}}
    )


class _Message:
    """An answer that is being generated."""

    def __init__(self, answer: ChatAnswer) -> None:
        self.answer, self.output = answer, Output(answer.parser())
        self.num_tokens = 0
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None

    def take(self, completion: CompletionOutput) -> Iterator[tuple[int, str]]:
        """The new pieces of an output: the index of a block, and the text that is added to it."""
        self.num_tokens += len(completion.token_ids)
        is_last = completion.finish_reason is not None
        yield from self.output.read(completion.text, is_last)
        if is_last:
            self._end(completion)

    def _end(self, completion: CompletionOutput) -> None:
        """Set the stop reason: the end of the turn, a stop sequence, the limit, or tool calls.

        For a call of a named tool OpenAI's reason is "stop", Anthropic's is "tool_use".
        """
        reason, calls = completion.finish_reason, self.output.parser.calls
        if reason == "stop" and isinstance(completion.stop_reason, str):
            given = self.answer.request.stop or ()
            if completion.stop_reason in given:
                self.stop_sequence = completion.stop_reason
        if reason == "stop" and calls and all(call.is_whole for call in calls):
            reason = "tool_calls"
        ended = "stop_sequence" if self.stop_sequence is not None else "end_turn"
        self.stop_reason = STOP_REASONS.get(str(reason), ended)

    def usage(self) -> dict[str, int]:
        """The usage. Cached prompt tokens are counted separately, if the server reports them."""
        live, state = self.answer.stream.live, self.answer.state
        num_prompt, usage = len(live.prompt_token_ids), {}
        if state.enable_prompt_tokens_details:
            usage = {"cache_read_input_tokens": live.num_cached_tokens}
            num_prompt -= live.num_cached_tokens
        return {"input_tokens": num_prompt, "output_tokens": self.num_tokens, **usage}

    def body(self) -> dict[str, Any]:
        """The message as far as it is generated."""
        return {
            "id": self.answer.id,
            "type": "message",
            "role": "assistant",
            "content": [block_of(item) for item in self.output.items if not _is_empty(item)],
            "model": self.answer.model,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "usage": self.usage(),
        }


def block_of(item: Item) -> dict[str, Any]:
    """A whole item as a block. The input of a truncated call is {}."""
    if item["type"] == "function_call":
        return _empty_block(item) | {"input": _object(item["arguments"])}
    name, text = DELTAS[item["type"]][1], item["content"][0]["text"]
    more = {"signature": _signature(item)} if item["type"] == "reasoning" else {}
    return _empty_block(item) | {name: text} | more


def _empty_block(item: Item) -> dict[str, Any]:
    """An item as a block without content."""
    if item["type"] == "function_call":
        return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": {}}
    name = DELTAS[item["type"]][1]
    return {"type": name, name: ""}


def _is_empty(item: Item) -> bool:
    """Whether it is a message without text, which has no block."""
    return item["type"] == "message" and not item["content"][0]["text"]


def _signature(item: Item) -> str:
    """A signature, without which clients do not send thinking back; it is never checked."""
    return str(item["id"])


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------------- events


def event(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\n".encode() + sse_event({"type": kind, **more})


async def _stream(message: _Message) -> AsyncIterator[bytes]:
    """The events of a streamed answer. An error after the start is an event, too."""
    state, has_begun = message.answer.state, False
    writer = _BlockWriter(message.output)
    try:
        async for output in state.engine.outputs(message.answer.stream):
            state.check_output(output)
            if not has_begun:
                has_begun = True
                yield event("message_start", message=message.body())
                yield event("ping")
            for place, piece in message.take(output.outputs[0]):
                for one in writer.write(place, piece):
                    yield one
        for one in writer.close():
            yield one
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        yield event("message_delta", delta=delta, usage=message.usage())
        yield event("message_stop")
    except (asyncio.CancelledError, OSError, GeneratorExit):
        raise
    except Exception as error:
        problem = as_api_error(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("a stream ended with an error: %s", problem.message)
        yield event("error", error=error_body(problem.status, problem.message)["error"])


class _BlockWriter:
    """Writes items as blocks, of which only the last one is open."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.num_begun = 0

    def write(self, place: int, piece: str) -> Iterator[bytes]:
        item = self.output.items[place]
        if _is_empty(item):
            return
        if place == self.num_begun:
            yield from self.close()
            self.num_begun += 1
            yield event("content_block_start", index=place, content_block=_empty_block(item))
        if piece:
            kind, name = DELTAS[item["type"]]
            yield event("content_block_delta", index=place, delta={"type": kind, name: piece})

    def close(self) -> Iterator[bytes]:
        """End the open block, if there is one."""
        place = self.num_begun - 1
        if place < 0:
            return
        item = self.output.items[place]
        if item["type"] == "reasoning":
            delta = {"type": "signature_delta", "signature": _signature(item)}
            yield event("content_block_delta", index=place, delta=delta)
        yield event("content_block_stop", index=place)
