"""``/v1/responses``: OpenAI's newer interface, as a layer over a chat.

::

    output:  reasoning "Hm."    message "I look."    function_call weather    message "I wait."
             └── items, one after the other: each ends before the next begins ──┘

Source: vllm/entrypoints/openai/responses/serving.py#L140-L1576 (OpenAIServingResponses) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.engine.async_llm import Stream
from mini_vllm.entrypoints.openai.chat import (
    ChatAnswer,
    chat_logprobs,
    input_tokens_of,
    prepare_chat,
)
from mini_vllm.entrypoints.openai.errors import APIError, json_response
from mini_vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    InputTokensRequest,
    ResponsesRequest,
)
from mini_vllm.entrypoints.openai.reasoning_parser import count_reasoning_tokens
from mini_vllm.entrypoints.openai.required_tools import AnswerParser, TextParser
from mini_vllm.entrypoints.openai.response_items import Item, as_listed, chat_of, input_items
from mini_vllm.entrypoints.openai.sse import EventStream, sse_event
from mini_vllm.entrypoints.openai.state import ServerState, check_max_tokens, request_id
from mini_vllm.entrypoints.openai.tool_parser import ToolCall
from mini_vllm.entrypoints.openai.tools import check_tools
from mini_vllm.errors import show
from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import SamplingParams


async def create_response(
    state: ServerState, request: ResponsesRequest, headers: Headers
) -> Response:
    """``POST /v1/responses``. Every error that can be found is raised before the first event."""
    lora = state.check_model(request.model)
    state.check_alive()
    request.check_fields(state.engine.limits.vocab_size)
    check_max_tokens(state, "max_output_tokens", request.max_output_tokens)
    items = input_items(request, state.responses)
    chat = chat_of(request, items)
    if chat.tools and chat.tool_choice in (None, "auto") and not state.can_choose_tools:
        chat.tool_choice = "none"  # as vLLM: the model is shown the tools, and its answer is text
    check_tools(state, chat)
    prompt, params = await prepare_chat(state, chat)
    answer_id = request_id("resp_", headers, request.request_id)
    assert isinstance(params, SamplingParams)  # beams are for chats
    (stream,) = await state.submit(answer_id, [prompt], [params], lora, request.priority, headers)
    answer = _Answer(state, request, chat, params, answer_id, state.name_of(lora), stream, items)
    if request.stream:
        await state.settle([stream], [params])
        return EventStream(_stream(answer), lambda: state.close([stream]), done=b"")
    try:
        async for output in state.engine.outputs(stream):
            state.check_output(output)
            await asyncio.to_thread(list, answer.take(output.outputs[0]))  # do not block the loop
        return json_response(answer.finished())
    finally:
        state.close([stream])


async def count_input_tokens(
    state: ServerState, request: InputTokensRequest, headers: Headers
) -> Response:
    """``POST /v1/responses/input_tokens``: how long the prompt of a response would be."""
    state.check_model(request.model)
    request.check_fields(state.engine.limits.vocab_size)
    chat = chat_of(request, input_items(request, state.responses))
    number = len(await input_tokens_of(state, chat))
    return json_response({"object": "response.input_tokens", "input_tokens": number})


async def retrieve_response(state: ServerState, response_id: str, stream: bool) -> Response:
    """``GET /v1/responses/{id}``."""
    body = state.responses.get(response_id).body
    if stream:
        raise APIError(
            "stream is true, and the response has ended; leave it out to get the whole",
            param="stream",
        )
    return json_response(body)


async def list_input_items(
    state: ServerState, response_id: str, after: str | None, limit: int, order: str
) -> Response:
    """``GET /v1/responses/{id}/input_items``: the conversation before a response, in pages."""
    kept = state.responses.get(response_id)
    items = [as_listed(*pair) for pair in enumerate(kept.items[: kept.num_input])]
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise APIError(f"after is {show(after)}; it must be the id of an item", param="after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
    return json_response({"object": "list", "data": page, "has_more": len(items) > limit, **ends})


async def delete_response(state: ServerState, response_id: str) -> Response:
    """``DELETE /v1/responses/{id}``."""
    state.responses.delete(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(state: ServerState, response_id: str) -> Response:
    """``POST /v1/responses/{id}/cancel``: refused, because all stored responses have ended."""
    state.responses.get(response_id)
    raise APIError(
        "the response has ended, and this server runs none in the background; to cancel a response "
        "that is still coming, close its connection"
    )


# ---------------------------------------------------------------------- items of the output

WORDS = re.compile(r'[^<>{}\[\],:"\s]+|.', re.DOTALL)
"""Words, and one by one the punctuation of JSON and of tags."""


class Output:
    """The items of an answer while it grows. Only the last one is open.

    Attributes:
        items: messages and calls as they are answered.
    """

    def __init__(self, parser: AnswerParser) -> None:
        self.parser = parser
        self.items: list[Item] = []

    def read(self, text: str, is_last: bool) -> Iterator[tuple[int, str]]:
        """The new pieces of a text: the index of an item, and the text that is added to it.

        A text that may have calls is read word by word. A call begins or ends at punctuation, so
        no word belongs to two items, and items keep their order, however the stream was split.
        """
        pieces = [text] if isinstance(self.parser, TextParser) else WORDS.findall(text)
        news = [self.parser.extract_streaming(piece) for piece in pieces]
        news += [self.parser.finish()] if is_last else []
        pairs = (pair for delta in news for pair in self._take(delta))
        for place, group in itertools.groupby(pairs, lambda pair: pair[0]):
            yield place, "".join(piece for _, piece in group)
        if is_last and not self.items:
            yield self._add(_message()), ""

    def _take(self, delta: dict[str, Any]) -> Iterator[tuple[int, str]]:
        """Reasoning comes first. Content comes after the last piece of an open call, but before a
        new call."""
        content, changes = delta.get("content", ""), delta.get("tool_calls", ())
        yield from self._take_text("reasoning", delta.get("reasoning", ""))
        if self._is_open("function_call"):
            yield from itertools.chain(
                self._take_calls(changes), self._take_text("message", content)
            )
        else:
            yield from itertools.chain(
                self._take_text("message", content), self._take_calls(changes)
            )

    def _take_text(self, kind: str, text: str) -> Iterator[tuple[int, str]]:
        if text:
            if not self._is_open(kind):
                self._add(_message() if kind == "message" else _reasoning())
            self.items[-1]["content"][0]["text"] += text
            yield len(self.items) - 1, text

    def _take_calls(self, changes: Sequence[dict[str, Any]]) -> Iterator[tuple[int, str]]:
        for change in changes:
            if "id" in change:
                self._add(_call(self.parser.calls[change["index"]]))
            arguments = change["function"]["arguments"]
            self.items[-1]["arguments"] += arguments
            yield len(self.items) - 1, arguments

    def _is_open(self, kind: str) -> bool:
        return bool(self.items) and self.items[-1]["type"] == kind

    def _add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1

    def close(self, place: int, is_cut: bool) -> Item:
        """Set the status of an item: a call is completed if its arguments are; text is completed
        unless a limit ended it."""
        item = self.items[place]
        if item["type"] == "function_call":
            call = next(one for one in self.parser.calls if one.id == item["call_id"])
            is_cut = not call.is_whole
        item["status"] = "incomplete" if is_cut else "completed"
        return item


def _message() -> Item:
    part: Item = {"type": "output_text", "text": "", "annotations": [], "logprobs": None}
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [part],
    }


def _reasoning() -> Item:
    return {
        "id": f"rs_{uuid.uuid4().hex}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": ""}],
        "encrypted_content": None,
        "status": "in_progress",
    }


def _call(call: ToolCall) -> Item:
    return {
        "id": f"fc_{uuid.uuid4().hex}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": "",
        "status": "in_progress",
    }


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
        items: list[Item],
    ) -> None:
        self.state, self.request, self.stream = state, request, stream
        self.id, self.model, self.items = id, model, items
        self.chat, self.params = chat, params
        self.answer = ChatAnswer(state, chat, id, model, stream, "assistant")
        self.output = Output(self.answer.parser())
        self.created = int(time.time())
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._held: list[dict[str, Any]] = []  # logprobs of tokens without text yet

    def take(self, completion: CompletionOutput) -> Iterator[tuple[int, str, list[Any]]]:
        """The new pieces of an output: the index of an item, its text, and the logprobs of a
        message; those of calls are not sent."""
        found = chat_logprobs(self.chat, completion, self.state.vocabulary)
        self._held += found["content"] if found is not None else []
        self.token_ids += completion.token_ids
        self.finish_reason = completion.finish_reason
        is_last = completion.finish_reason is not None
        for place, piece in self.output.read(completion.text, is_last):
            logprobs, self._held = self._held, []
            item = self.output.items[place]
            if item["type"] == "message" and self.chat.wants_logprobs:
                part = item["content"][0]
                part["logprobs"] = (part["logprobs"] or []) + logprobs
            yield place, piece, logprobs

    @property
    def is_cut(self) -> bool:
        return self.finish_reason == "length"

    def finished(self) -> dict[str, Any]:
        """The body of the whole response, which is stored unless ``store`` is false."""
        last = len(self.output.items) - 1
        for place in range(last + 1):
            self.output.close(place, self.is_cut and place == last)
        body = self.body("incomplete" if self.is_cut else "completed")
        if self.request.store is not False:
            self.state.responses.add(body, self.items)
        return body

    def _usage(self) -> dict[str, Any]:
        num_prompt, num_output = len(self.stream.live.prompt_token_ids), len(self.token_ids)
        parser, vocabulary, num_reasoning = self.answer.reasoning_parser(), self.state.vocabulary, 0
        if parser is not None and vocabulary is not None:
            num_reasoning = count_reasoning_tokens(parser, self.token_ids, vocabulary)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": self.stream.live.num_cached_tokens},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": num_prompt + num_output,
        }

    def body(self, status: str) -> dict[str, Any]:
        """The response object. It is "incomplete" if a limit ended it."""
        done = status != "in_progress"
        request = self.request
        is_cut = status == "incomplete"
        function = {"description": None, "parameters": None, "strict": None}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "error": None,
            "instructions": request.instructions,
            "model": self.model,
            "output": self.output.items if done else [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "temperature": self.params.temperature,
            "top_p": self.params.top_p,
            "presence_penalty": self.params.presence_penalty,
            "frequency_penalty": self.params.frequency_penalty,
            "tool_choice": request.tool_choice or "auto",
            "tools": [function | tool for tool in request.tools or []],
            "max_output_tokens": self.params.max_tokens,
            "max_tool_calls": request.max_tool_calls,
            "background": False,
            "metadata": request.metadata,
            "previous_response_id": request.previous_response_id,
            "prompt": None,
            "reasoning": request.reasoning,
            "service_tier": "auto",
            "store": request.store is not False,
            "text": request.text,
            "top_logprobs": self.params.logprobs,
            "truncation": request.truncation or "disabled",
            "user": request.user,
            "kv_transfer_params": None,
            "usage": self._usage() if done else None,
        }


# ---------------------------------------------------------------------- events


class _Events:
    """Events, numbered from 0."""

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def of(self, kind: str, **more: Any) -> bytes:
        body = {"type": kind, "sequence_number": next(self.numbers), **more}
        return f"event: {kind}\n".encode() + sse_event(body)

    def begin(self, place: int, item: Item) -> Iterator[bytes]:
        """An item that is still empty, and its part if it has one."""
        is_call = item["type"] == "function_call"
        empty: Item = {"arguments": ""} if is_call else {"content": []}
        yield self.of("response.output_item.added", output_index=place, item=item | empty)
        if not is_call:
            part = item["content"][0] | {"text": ""}
            part |= {"logprobs": None} if "logprobs" in part else {}
            yield self.of(f"response.{_part(item)}.added", **_where(place, item), part=part)

    def delta(self, place: int, item: Item, piece: str, logprobs: list[Any]) -> Iterator[bytes]:
        if not piece:
            return
        kind, where = f"response.{TEXTS[item['type']]}.delta", _where(place, item)
        more = {"logprobs": logprobs} if item["type"] == "message" else {}
        yield self.of(kind, **where, delta=piece, **more)

    def end(self, place: int, item: Item) -> Iterator[bytes]:
        """The complete text of an item, then the complete item."""
        kind, where = f"response.{TEXTS[item['type']]}.done", _where(place, item)
        if item["type"] == "function_call":
            yield self.of(kind, **where, name=item["name"], arguments=item["arguments"])
        else:
            part = item["content"][0]
            more = {"logprobs": part["logprobs"] or []} if "logprobs" in part else {}
            yield self.of(kind, **where, text=part["text"], **more)
            yield self.of(f"response.{_part(item)}.done", **where, part=part)
        yield self.of("response.output_item.done", output_index=place, item=item)


TEXTS = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
}
"""Names of an item's text in its events."""


def _part(item: Item) -> str:
    """The name of an item's part in its events; that of reasoning is vLLM's."""
    return "content_part" if item["type"] == "message" else "reasoning_part"


def _where(place: int, item: Item) -> dict[str, Any]:
    """The place of an item, and of its part if it has one."""
    where = {"item_id": item["id"], "output_index": place}
    return where if item["type"] == "function_call" else where | {"content_index": 0}


async def _stream(answer: _Answer) -> AsyncIterator[bytes]:
    """created, in_progress, then of each item: added, its deltas, done; at last completed."""
    events, output, num_begun = _Events(), answer.output, 0
    yield events.of("response.created", response=answer.body("in_progress"))
    yield events.of("response.in_progress", response=answer.body("in_progress"))
    async for one in answer.state.engine.outputs(answer.stream):
        answer.state.check_output(one)
        for place, piece, logprobs in answer.take(one.outputs[0]):
            if place == num_begun:
                if place:
                    for event in events.end(place - 1, output.close(place - 1, False)):
                        yield event
                for event in events.begin(place, output.items[place]):
                    yield event
                num_begun += 1
            for event in events.delta(place, output.items[place], piece, logprobs):
                yield event
    body = answer.finished()
    for event in events.end(num_begun - 1, output.items[-1]):
        yield event
    # As in vLLM, this event also ends an incomplete response: OpenAI's client waits for no other.
    yield events.of("response.completed", response=body)
