"""``POST /v1/chat/completions``: a conversation in, the assistant's message out.

Source: vllm/entrypoints/openai/chat_completion/serving.py#L85-L1598 (OpenAIServingChat) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.engine.async_llm import Stream
from mini_vllm.engine.chat_template import flatten, render_chat
from mini_vllm.engine.vocabulary import Vocabulary
from mini_vllm.entrypoints.openai.beams import search_beams
from mini_vllm.entrypoints.openai.completion import finite, prompt_logprobs, token_text
from mini_vllm.entrypoints.openai.errors import APIError, json_response
from mini_vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    TokenizeRequest,
    check_effort,
)
from mini_vllm.entrypoints.openai.reasoning_parser import (
    ReasoningAnswerParser,
    ReasoningParser,
    beginning_of,
)
from mini_vllm.entrypoints.openai.required_tools import (
    AnswerParser,
    join_news,
    one_change_a_call,
    parser_of,
)
from mini_vllm.entrypoints.openai.sse import EventStream, sse_event
from mini_vllm.entrypoints.openai.state import (
    ServerState,
    check_max_tokens,
    check_text,
    cut_prompt,
    request_id,
    room_for_output,
    usage_of,
)
from mini_vllm.entrypoints.openai.tool_parser import ToolCall, tool_schema
from mini_vllm.entrypoints.openai.tools import check_tools
from mini_vllm.inputs import PromptType
from mini_vllm.multimodal.chat import encode_chat, take_images, with_placeholders
from mini_vllm.outputs import CompletionOutput, Logprob
from mini_vllm.reasoning import Beginning
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams

RENDER_ARGUMENTS = {
    "messages", "conversation", "tokenizer", "template", "chat_template", "tools", "tokenize",
    "add_generation_prompt", "continue_final_message", "return_tensors", "return_dict",
}  # fmt: skip
"""Names that ``chat_template_kwargs`` may not have."""


@dataclass
class ChatAnswer:
    """A request that is being answered."""

    state: ServerState
    request: ChatCompletionRequest
    id: str
    model: str
    stream: Stream
    role: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def echoed(self) -> str:
        """The last message, which the answer continues, if ``echo`` is set; else ""."""
        last = self.request.messages[-1]
        if not self.request.echo or last.get("role") != self.role:
            return ""
        return with_placeholders(flatten(len(self.request.messages) - 1, last.get("content")))

    @property
    def tool_choice(self) -> Any:
        """None without tools; else "auto", "required", or a named tool."""
        if not self.request.tools or self.request.tool_choice == "none":
            return None
        return self.request.tool_choice or "auto"

    @cached_property
    def beginning(self) -> Beginning | None:
        """Where the answer begins; None for a model without reasoning."""
        return beginning_of(self.state, self.request, self.stream.live.prompt_token_ids)

    def parser(self) -> AnswerParser:
        """A new parser for one completion."""
        answer = parser_of(self.tool_choice, self.request.parallel_tool_calls)
        reasoning = self.reasoning_parser()
        if reasoning is None:
            return answer
        return ReasoningAnswerParser(reasoning, answer, self.request.include_reasoning)

    def reasoning_parser(self) -> ReasoningParser | None:
        form = self.state.reasoning
        if form is None or self.beginning is None:
            return None
        is_asleep = not self.state.engine.config.structured.enable_in_reasoning
        if self.request.has_form and is_asleep:  # a constraint begins only after the end tag
            form = replace(form, call=None)
        return ReasoningParser(form, self.beginning)

    def frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    @property
    def prompt_text(self) -> str | None:
        """What the model reads, as text, if ``return_prompt_text`` asks for it."""
        tokenizer = self.state.engine.tokenizer
        is_asked = self.request.return_prompt_text and tokenizer is not None
        return tokenizer.decode(self.stream.live.prompt_token_ids) if is_asked else None

    def usage(self, num_completion: int) -> dict[str, Any]:
        live = self.stream.live
        return usage_of(
            self.state, len(live.prompt_token_ids), num_completion, live.num_cached_tokens
        )


async def create_chat_completion(
    state: ServerState, request: ChatCompletionRequest, headers: Headers
) -> Response:
    """Answer a chat. Every error that can be found is raised before the first byte of an answer."""
    lora = state.check_model(request.model)
    state.check_alive()
    request.check_fields(state.engine.limits.vocab_size)
    check_tools(state, request)
    answer_id = request_id("chatcmpl-", headers, request.request_id)
    prompt, params = await prepare_chat(state, request)
    submit: Any = search_beams if request.use_beam_search else ServerState.submit
    (stream,) = await submit(state, answer_id, [prompt], [params], lora, request.priority, headers)
    role = state.response_role
    if not request.add_generation_prompt and request.messages:
        role = str(request.messages[-1].get("role", role))
    answer = ChatAnswer(state, request, answer_id, state.name_of(lora), stream, role)
    if request.stream:
        if isinstance(params, SamplingParams):  # a search is over by now
            await state.settle([stream], [params])
        return EventStream(chat_stream(answer), lambda: state.close([stream]))
    try:
        return await _whole(answer)
    finally:
        state.close([stream])


async def prepare_chat(
    state: ServerState, request: ChatCompletionRequest
) -> tuple[PromptType, SamplingParams | BeamSearchParams]:
    """The prompt and its parameters for the engine: token ids, with the images if there are any."""
    wanted = _num_output_tokens(state, request)
    images = take_request_images(state, request)
    token_ids = await prompt_of(state, request, wanted)
    token_ids = cut_prompt(state, token_ids, request, wanted)
    params = _params(state, request, wanted or room_for_output(state, len(token_ids)))
    beginning = beginning_of(state, request, token_ids)
    if beginning and isinstance(params, SamplingParams) and params.structured_outputs is not None:
        params.structured_outputs.reasoning_ended = beginning is not Beginning.INSIDE
    if request.cache_salt is None and not images and not request.mm_processor_kwargs:
        return token_ids, params
    prompt: dict[str, Any] = {"prompt_token_ids": token_ids, "cache_salt": request.cache_salt}
    prompt |= {"mm_processor_kwargs": request.mm_processor_kwargs}
    prompt |= {"multi_modal_data": {"image": images}} if images else {}
    return prompt, params


def take_request_images(
    state: ServerState, request: ChatCompletionRequest | TokenizeRequest
) -> list[Any]:
    """The images of a conversation; in its messages, placeholders replace them. For a text-only
    model the messages stay as they are, and images in them are refused later."""
    if state.engine.input_processor.images is None or request.messages is None:
        return []
    request.messages, images = take_images(request.messages)
    return images


async def input_tokens_of(
    state: ServerState, request: ChatCompletionRequest | TokenizeRequest
) -> list[int]:
    """A conversation as token ids, including the placeholder tokens of its images."""
    images = take_request_images(state, request)
    token_ids = await prompt_of(state, request)
    if images:
        prompt: dict[str, Any] = {"prompt_token_ids": token_ids}
        prompt |= {"multi_modal_data": {"image": images}}
        prompt |= {"mm_processor_kwargs": request.mm_processor_kwargs}
        token_ids, _ = await state.engine.preprocess(prompt)
    return token_ids


def _num_output_tokens(state: ServerState, request: ChatCompletionRequest) -> int:
    """``max_completion_tokens``, or else the older ``max_tokens``; 0 if neither is given."""
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    wanted = getattr(request, name)
    if wanted is not None and wanted < 1:
        raise APIError(f"{name} is {wanted}; it must be at least 1", param=name)
    check_max_tokens(state, name, wanted)
    return wanted or 0


async def prompt_of(state: ServerState, request: Any, num_output_tokens: int = 0) -> list[int]:
    """The conversation as token ids, formatted by the chat template.

    Args:
        num_output_tokens: output tokens that must fit after the prompt.
    """
    template = getattr(request, "chat_template", None)
    if template is not None and not state.trust_request_chat_template:
        raise APIError(
            "chat_template is given; this server runs only its own; start it with "
            "--trust-request-chat-template to allow it",
            param="chat_template",
        )
    tools = getattr(request, "tools", None)
    if state.exclude_tools_when_tool_choice_none and getattr(request, "tool_choice", 0) == "none":
        tools = None  # else the model sees them, and its answer is text all the same
    more = state.template_kwargs(request)
    for name in more.keys() & RENDER_ARGUMENTS:
        raise APIError(
            f"chat_template_kwargs has {name!r}, which the server sets itself; remove it",
            param="chat_template_kwargs",
        )
    documents, effort = (getattr(request, k, None) for k in ("documents", "reasoning_effort"))
    if documents is not None:
        more["documents"] = documents
    if effort is not None:
        check_effort("reasoning_effort", effort)
        more["reasoning_effort"] = effort
    tokenizer = state.engine.tokenizer

    def render() -> list[int]:
        text = render_chat(
            tokenizer,
            request.messages,
            template=template or state.chat_template,
            tools=tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=getattr(request, "continue_final_message", False),
            **more,
        )
        if getattr(request, "truncate_prompt_tokens", 0) is None:  # it will not be truncated
            state.engine.input_processor.check_length(text, num_output_tokens)
        check_text(state, text)
        # The template has written the special tokens that the model needs.
        special = bool(getattr(request, "add_special_tokens", False))
        sees = state.engine.input_processor.images is not None
        return encode_chat(tokenizer, text, sees, add_special_tokens=special)

    return await asyncio.to_thread(render)  # a long conversation must not block the event loop


def _params(
    state: ServerState, request: ChatCompletionRequest, max_tokens: int
) -> SamplingParams | BeamSearchParams:
    tops = request.top_logprobs
    if tops and not request.logprobs:  # clients that fill in every field send 0 for none
        raise APIError(
            "top_logprobs is given but logprobs is not true; set it", param="top_logprobs"
        )
    tops = state.engine.input_processor.num_logprobs("top_logprobs", tops)
    request.top_logprobs = tops
    if request.echo and request.prompt_logprobs is None and not request.stream:
        request.prompt_logprobs = tops or 0  # as in vLLM; a stream has none
    num_logprobs = (tops or 0) if request.logprobs else None
    most = 1 if request.parallel_tool_calls is False else None
    schema = tool_schema(request.tools, request.tool_choice, most) if request.tools else None
    if schema is not None:
        # Without white space: JSON allows any amount, and small models may never end it.
        request.structured_outputs = {"json": schema, "disable_any_whitespace": True}
        request.response_format = None
    has_tags = request.tools and request.tool_choice in (None, "auto")
    if has_tags or state.reasoning is not None:
        request.skip_special_tokens = False  # the tags of some models are special tokens
    if request.use_beam_search:
        return request.beam_search_params(max_tokens)
    return request.sampling_params(state.default_params, max_tokens, num_logprobs)


# ---------------------------------------------------------------------- a whole answer


async def _whole(answer: ChatAnswer) -> Response:
    final = await answer.state.last_output(answer.stream)
    choices = [_whole_choice(answer, completion) for completion in final.outputs]
    num_tokens = sum(len(completion.token_ids) for completion in final.outputs)
    wants_prompt = answer.request.prompt_logprobs is not None
    body = answer.frame("chat.completion") | {
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": answer.state.fingerprint,
        "usage": answer.usage(num_tokens),
        "prompt_logprobs": prompt_logprobs(final) if wants_prompt else None,
        "prompt_token_ids": final.prompt_token_ids if answer.request.return_token_ids else None,
        "prompt_text": answer.prompt_text,
        "kv_transfer_params": final.kv_transfer_params,
    }
    return json_response(body)


def _whole_choice(answer: ChatAnswer, completion: CompletionOutput) -> dict[str, Any]:
    content, reasoning, calls, reason = _parsed(answer, completion)
    if answer.echoed:
        content = answer.echoed + (content or "")
    message = {
        "role": answer.role,
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [call.as_dict() for call in calls],
        "reasoning": reasoning,
    }
    return {
        "index": completion.index,
        "message": message,
        "logprobs": chat_logprobs(answer.request, completion, answer.state.vocabulary),
        "finish_reason": reason,
        "stop_reason": completion.stop_reason,
        "token_ids": completion.token_ids if answer.request.return_token_ids else None,
    }


def _parsed(
    answer: ChatAnswer, completion: CompletionOutput
) -> tuple[str | None, str | None, list[ToolCall], str | None]:
    """Content, reasoning, calls and finish reason of a finished completion, parsed like a stream of
    one piece."""
    parser, reason = answer.parser(), completion.finish_reason
    news = join_news(parser.extract_streaming(completion.text), parser.finish())
    content, reasoning = news.get("content", ""), news.get("reasoning")
    if (parser.calls and answer.tool_choice == "auto") or reasoning is not None:
        content = content or None
    reason = "tool_calls" if parser.are_whole and reason == "stop" else reason
    return content, reasoning, parser.calls, reason


# ---------------------------------------------------------------------- a streamed answer


async def chat_stream(answer: ChatAnswer) -> AsyncIterator[bytes]:
    """The events of a streamed answer, without ``[DONE]``.

    The first event of each choice has the role. The last token and the finish reason share an
    event. With ``include_usage`` one more event follows, which has no choices. The last event of a
    choice, or that of the usage, has the server's fingerprint.

    Source: vllm/entrypoints/openai/chat_completion/serving.py#L400-L1004
    (OpenAIServingChat.chat_completion_stream_generator) @ v0.22.1
    """
    state, request = answer.state, answer.request
    frame = answer.frame("chat.completion.chunk")
    head = b"data: " + orjson.dumps(frame)[:-1] + b',"choices":['
    wants_ids = request.return_token_ids
    includes_usage = request.includes_usage or state.enable_force_include_usage
    counts: dict[int, int] = {}
    writers: dict[int, DeltaWriter] = {}
    async for output in state.engine.outputs(answer.stream):
        state.check_output(output)
        for completion in output.outputs:
            index = completion.index
            if index not in writers:
                writers[index], counts[index] = DeltaWriter(answer), 0
                delta = {"role": answer.role, "content": ""}
                first = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                about: dict[str, Any] = {}
                about |= {"prompt_token_ids": output.prompt_token_ids} if wants_ids else {}
                about |= {"prompt_text": answer.prompt_text} if request.return_prompt_text else {}
                yield head + orjson.dumps(first) + _tail(answer, 0, about)
                if answer.echoed:
                    echo = first | {"delta": {"content": answer.echoed}}
                    yield head + orjson.dumps(echo) + _tail(answer, 0)
            counts[index] += len(completion.token_ids)
            tail = _tail(answer, counts[index])
            for choice in writers[index].write(completion):
                if choice["finish_reason"] and not includes_usage:
                    tail = _tail(answer, counts[index], state.stamp)
                yield head + orjson.dumps(choice) + tail
    if includes_usage:
        usage = {"choices": [], "usage": answer.usage(sum(counts.values()))}
        yield sse_event(frame | usage | state.stamp)


def _tail(answer: ChatAnswer, num_tokens: int, more: dict[str, Any] | None = None) -> bytes:
    """The end of an event, after its choice: usage and ``more``, if there are any."""
    if answer.request.continuous_usage:
        more = {**(more or {}), "usage": answer.usage(num_tokens)}
    return b"]," + orjson.dumps(more)[1:] + b"\n\n" if more else b"]}\n\n"


class DeltaWriter:
    """Turns the outputs of one completion into deltas, with or without tool calls."""

    def __init__(self, answer: ChatAnswer) -> None:
        self.answer = answer
        self.parser = answer.parser()
        self._logprobs: list[dict[str, Any]] = []

    def write(self, completion: CompletionOutput) -> list[dict[str, Any]]:
        """The choices to send for an output: usually one. None while a tool call is held back,
        unless the request asks for token ids."""
        delta = self.parser.extract_streaming(completion.text)
        reason = completion.finish_reason
        if reason is not None:
            delta = join_news(delta, self.parser.finish())
            if reason == "stop" and self.parser.are_whole:
                reason = "tool_calls"
        if "tool_calls" in delta:
            delta["tool_calls"] = one_change_a_call(delta["tool_calls"])
        vocabulary = self.answer.state.vocabulary
        logprobs = chat_logprobs(self.answer.request, completion, vocabulary)
        if logprobs is not None:
            self._logprobs += logprobs["content"]
        wants_ids = self.answer.request.return_token_ids
        if not delta and reason is None and not (wants_ids and completion.token_ids):
            return []
        choice: dict[str, Any] = {
            "index": completion.index,
            "delta": delta,
            "logprobs": {"content": self._logprobs} if self._logprobs else None,
            "finish_reason": reason,
        }
        if reason is not None:
            choice["stop_reason"] = completion.stop_reason
        if wants_ids:
            choice["token_ids"] = completion.token_ids
        self._logprobs = []
        return [choice]


def chat_logprobs(
    request: ChatCompletionRequest, completion: CompletionOutput, vocabulary: Vocabulary | None
) -> dict[str, Any] | None:
    """An entry for each token, if the request asks for logprobs.

    ``bytes`` are those of the token alone: joined, they are the bytes of the text, even where a
    token ends inside a character. All tokens of ``logprob_token_ids`` are listed, whatever
    ``top_logprobs`` is.

    Source: vllm/entrypoints/openai/chat_completion/serving.py#L1467-L1529
    (OpenAIServingChat._create_chat_logprobs) @ v0.22.1
    """
    if not request.wants_logprobs or completion.logprobs is None:
        return None
    num_top = request.top_logprobs or 0 if request.logprob_token_ids is None else None

    def entry(token_id: int, found: Logprob) -> dict[str, Any]:
        return {
            "token": token_text(request, token_id, found),
            "logprob": finite(found.logprob),
            "bytes": None if vocabulary is None else list(vocabulary.bytes_of(token_id)),
        }

    content = [
        entry(token_id, candidates[token_id])
        | {"top_logprobs": [entry(*item) for item in list(candidates.items())[:num_top]]}
        for token_id, candidates in zip(completion.token_ids, completion.logprobs, strict=False)
    ]
    return {"content": content}
