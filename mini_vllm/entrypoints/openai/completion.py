"""``POST /v1/completions``: prompts in, texts out.

Source: vllm/entrypoints/openai/completion/serving.py#L74-L690 (OpenAIServingCompletion) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response

from mini_vllm.engine.async_llm import Stream
from mini_vllm.engine.detokenizer import TokenWindow
from mini_vllm.engine.vocabulary import Vocabulary
from mini_vllm.entrypoints.openai.beams import search_beams
from mini_vllm.entrypoints.openai.errors import APIError, json_response
from mini_vllm.entrypoints.openai.protocol import CompletionRequest, GenerationRequest
from mini_vllm.entrypoints.openai.sse import EventStream, merge, sse_event
from mini_vllm.entrypoints.openai.state import (
    ServerState,
    Turns,
    check_max_tokens,
    check_text,
    cut_prompt,
    request_id,
    usage_of,
)
from mini_vllm.inputs import PromptType
from mini_vllm.outputs import CompletionOutput, Logprob, RequestOutput
from mini_vllm.param_checks import MAX_N
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams

NO_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


@dataclass
class Answer:
    """A request that is being answered."""

    state: ServerState
    request: CompletionRequest
    id: str
    model: str
    streams: list[Stream]
    n: int
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_plain(self) -> bool:
        """Whether a choice is the new text and nothing else."""
        return not (self.request.echo or self.request.wants_logprobs)

    def asked_for(self, completion: CompletionOutput) -> CompletionOutput:
        """For ``echo`` with ``max_tokens=0``: remove the one token that the engine makes."""
        if self.request.max_tokens > 0:
            return completion
        reason = None if completion.finish_reason is None else "length"
        return CompletionOutput(completion.index, logprobs=[], finish_reason=reason)

    def usage(self, outputs: dict[int, int], cached: int) -> dict[str, Any]:
        num_prompt = sum(len(stream.live.prompt_token_ids) for stream in self.streams)
        return usage_of(self.state, num_prompt, sum(outputs.values()), cached)


async def create_completion(
    state: ServerState, request: CompletionRequest, headers: Headers
) -> Response:
    """Answer a completion request. Every error that can be found is raised before the first byte of
    an answer."""
    lora = state.check_model(request.model)
    state.check_alive()
    request.check_fields(state.engine.limits.vocab_size)
    if request.suffix:
        raise APIError("suffix is not supported; leave it out", param="suffix")
    if request.stream and request.use_beam_search:
        raise APIError(
            "stream and use_beam_search are both true; no text is certain before the search is "
            "over; leave one of the two out",
            param="stream",
        )
    _check_max_tokens(state, request)
    prompts: list[PromptType] = []
    params: list[Any] = []
    turns = Turns()
    for prompt in split_prompts(request.prompt, request.n or 1):
        await turns.pass_on()
        token_ids = await _token_ids(state, prompt, request)
        token_ids = cut_prompt(state, token_ids, request, request.max_tokens)
        prompts.append(_as_sent(prompt, token_ids, request.cache_salt))
        params.append(_params(state, request))
    answer_id = request_id("cmpl-", headers, request.request_id)
    submit = search_beams if request.use_beam_search else ServerState.submit
    streams = await submit(state, answer_id, prompts, params, lora, request.priority, headers)
    n = len(streams[0].live.outputs)
    answer = Answer(state, request, answer_id, state.name_of(lora), streams, n)
    if request.stream:
        await state.settle(streams, params)
        return EventStream(completion_stream(answer), lambda: state.close(streams))
    try:
        return await _whole(answer)
    finally:
        state.close(streams)


def split_prompts(prompt: Any, n: int = 1) -> list[PromptType]:
    """A text, ids, a list of texts or a list of lists of ids, always as a list of prompts.

    An empty text is a prompt: it has the tokens that the tokenizer adds, such as a BOS.

    Raises:
        APIError: if there is no prompt, or more than one request may have.
    """
    if prompt is None or prompt == []:
        raise APIError("prompt is empty; it must have at least 1 token", param="prompt")
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) * n > MAX_N:
        raise APIError(
            f"prompt holds {len(prompt)} prompts of {n} completions; one request may ask for "
            f"{MAX_N} completions; send several",
            param="prompt",
        )
    return list(prompt)


async def _token_ids(
    state: ServerState, prompt: PromptType, request: CompletionRequest
) -> list[int]:
    """The prompt's tokens. ``add_special_tokens=False`` is for text that has special tokens
    already."""
    tokenizer, special = state.engine.tokenizer, request.add_special_tokens
    is_cut = request.truncate_prompt_tokens is not None
    if tokenizer is None or not isinstance(prompt, str):
        return await state.engine.tokenize(prompt)
    if not is_cut:
        state.engine.input_processor.check_length(prompt, request.max_tokens)
        if special:
            return await state.engine.tokenize(prompt)
    check_text(state, prompt)
    return await asyncio.to_thread(tokenizer.encode, prompt, add_special_tokens=special)


def _as_sent(prompt: PromptType, token_ids: list[int], salt: str | None) -> PromptType:
    """The prompt for the engine, with its original text: ``echo`` returns that text, not decoded
    tokens."""
    given: dict[str, Any] = {"prompt_token_ids": token_ids}
    given |= {"prompt": prompt} if isinstance(prompt, str) else {}
    return given if salt is None else given | {"cache_salt": salt}


def _check_max_tokens(state: ServerState, request: CompletionRequest) -> None:
    least = 0 if request.echo else 1
    if request.max_tokens < least:
        raise APIError(
            f"max_tokens is {request.max_tokens}; it must be at least 1 (0 only with echo)",
            param="max_tokens",
        )
    check_max_tokens(state, "max_tokens", request.max_tokens)


def _params(state: ServerState, request: CompletionRequest) -> SamplingParams | BeamSearchParams:
    max_tokens = max(request.max_tokens, 1)  # the engine takes no requests for 0 tokens
    request.logprobs = state.engine.input_processor.num_logprobs("logprobs", request.logprobs)
    if request.use_beam_search:
        return request.beam_search_params(max_tokens)
    params = request.sampling_params(state.default_params, max_tokens, request.logprobs)
    if request.echo and request.wants_logprobs and params.prompt_logprobs is None:
        params.prompt_logprobs = request.logprobs or 0
    return params


async def _whole(answer: Answer) -> Response:
    request = answer.request
    finals = await asyncio.gather(*map(answer.state.last_output, answer.streams))
    choices, counts = [], {}
    for prompt_index, output in enumerate(finals):
        for completion in map(answer.asked_for, output.outputs):
            index = prompt_index * answer.n + completion.index
            text, logprobs = ChoiceWriter(answer).write(output, completion)
            counts[index] = len(completion.token_ids)
            choice = _choice(index, text, logprobs, completion)
            has_prompt = output.prompt_logprobs is not None  # requested, or for an echo
            choice["prompt_logprobs"] = prompt_logprobs(output) if has_prompt else None
            wants_ids = request.return_token_ids
            choice["token_ids"] = completion.token_ids if wants_ids else None
            choice["prompt_token_ids"] = output.prompt_token_ids if wants_ids else None
            choices.append(choice)
    body = {
        "id": answer.id,
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": answer.state.fingerprint,
        "usage": answer.usage(counts, sum(output.num_cached_tokens for output in finals)),
        "kv_transfer_params": finals[0].kv_transfer_params if len(finals) == 1 else None,
    }
    return json_response(body)


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, completion: CompletionOutput
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }


async def completion_stream(answer: Answer) -> AsyncIterator[bytes]:
    """The events of a streamed answer, without ``[DONE]``.

    One event for each output; the last token and the finish reason share an event. With
    ``include_usage`` one more event follows, which has no choices. The last event of a choice, or
    that of the usage, has the server's fingerprint.

    Source: vllm/entrypoints/openai/completion/serving.py#L278-L480
    (OpenAIServingCompletion.completion_stream_generator) @ v0.22.1
    """
    state, request = answer.state, answer.request
    head, tail = _templates(answer)
    # Values that are the same for every token are read once, before the loop over the tokens.
    wants_ids, is_plain = request.return_token_ids, answer.is_plain
    usage_each_time = request.continuous_usage
    includes_usage = request.includes_usage or state.enable_force_include_usage
    counts: dict[int, int] = {}
    writers: dict[int, ChoiceWriter] = {}
    told: set[int] = set()  # choices whose prompt's token ids have been sent
    cached = [0] * len(answer.streams)
    sources = [state.engine.outputs(stream) for stream in answer.streams]
    async for prompt_index, output in merge(sources):
        state.check_output(output)
        cached[prompt_index] = output.num_cached_tokens
        for completion in map(answer.asked_for, output.outputs):
            index = prompt_index * answer.n + completion.index
            text, logprobs = completion.text, None
            if not is_plain:
                writer = writers.setdefault(index, ChoiceWriter(answer))
                text, logprobs = writer.write(output, completion)
            counts[index] = counts.get(index, 0) + len(completion.token_ids)
            if not (text or completion.token_ids or completion.finish_reason):
                continue  # nothing new; a token whose text is held back is sent, so it can be timed
            more: dict[str, Any] = {}
            if completion.finish_reason and not includes_usage:
                more |= state.stamp
            if usage_each_time:
                num_prompt = len(output.prompt_token_ids)
                usage = usage_of(state, num_prompt, counts[index], output.num_cached_tokens)
                more["usage"] = usage
            end = b"]," + orjson.dumps(more)[1:] + b"\n\n" if more else tail
            choice = _choice(index, text, logprobs, completion)
            if wants_ids:
                choice["token_ids"] = completion.token_ids
                choice["prompt_token_ids"] = None if index in told else output.prompt_token_ids
                told.add(index)
            yield head + orjson.dumps(choice) + end
    if includes_usage:
        body = _frame(answer) | {"choices": [], "usage": answer.usage(counts, sum(cached))}
        yield sse_event(body | state.stamp)


def _frame(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.id,
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
    }


def _templates(answer: Answer) -> tuple[bytes, bytes]:
    """The parts of an event before and after its choice, which are the same in every event."""
    frame = orjson.dumps(_frame(answer))
    return b"data: " + frame[:-1] + b',"choices":[', b"]}\n\n"


class ChoiceWriter:
    """Turns the outputs of one completion into texts and logprobs, after those of the prompt if it
    is echoed.

    Offsets are places in the text of the choice. A token that completes no character has the place
    of its character. A token without text (a BOS) has the place of the next token.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.has_begun = False
        self.place = 0
        """Characters of the choice before the next token."""
        self.window: TokenWindow | None = None

    def write(
        self, output: RequestOutput, completion: CompletionOutput
    ) -> tuple[str, dict[str, Any] | None]:
        """Text and logprobs of a completion's new tokens; the first time with the prompt's."""
        request, tokenizer = self.answer.request, self.answer.state.engine.tokenizer
        text, prompt_logprobs, prompt_places = completion.text, [], []
        is_first, self.has_begun = not self.has_begun, True
        if request.echo and is_first:
            prompt = _prompt_text(output, tokenizer)
            text = prompt + text
            if request.wants_logprobs:
                prompt_logprobs = output.prompt_logprobs or []
                prompt_places = _places_in_prompt(tokenizer, output, request)
            self.place = len(prompt)
        if not request.wants_logprobs:
            return text, None
        if self.window is None and tokenizer is not None:
            skips = request.skip_special_tokens is not False
            self.window = TokenWindow(tokenizer, output.prompt_token_ids, skips)
        entries = [*prompt_logprobs, *(completion.logprobs or [])]
        token_ids = [*output.prompt_token_ids[: len(prompt_logprobs)], *completion.token_ids]
        places = [*prompt_places, *map(self._place_of, completion.token_ids)]
        vocabulary = self.answer.state.vocabulary
        return text, completion_logprobs(token_ids, entries, places, request, vocabulary)

    def _place_of(self, token_id: int) -> int:
        place = self.place
        if self.window is not None:
            self.place += len(self.window.take([token_id]))
        return place


def _prompt_text(output: RequestOutput, tokenizer: Any) -> str:
    """The text of the prompt; if it was sent as token ids, their decoded text."""
    if output.prompt is not None:
        return output.prompt
    return "" if tokenizer is None else tokenizer.decode(output.prompt_token_ids)


def _places_in_prompt(
    tokenizer: Any, output: RequestOutput, request: CompletionRequest
) -> list[int]:
    """Where each token of the prompt begins in the original text. A tokenizer may change the text
    (lower case) or add tokens (a BOS), and the prompt may be truncated."""
    ids = output.prompt_token_ids
    if tokenizer is None:
        return [0] * len(ids)
    if output.prompt is not None:
        special = request.add_special_tokens
        encoding = tokenizer(output.prompt, add_special_tokens=special, return_offsets_mapping=True)
        start = 0 if request.truncation_side == "right" else len(encoding["input_ids"]) - len(ids)
        return [begin for begin, _ in encoding["offset_mapping"][start : start + len(ids)]]
    window = TokenWindow(tokenizer, [], skip_special_tokens=False)
    lengths = (len(window.take([token_id])) for token_id in ids)
    return list(itertools.accumulate(lengths, initial=0))[:-1]


def completion_logprobs(
    token_ids: list[int],
    entries: list[dict[int, Logprob] | None],
    places: list[int],
    request: CompletionRequest,
    vocabulary: Vocabulary | None,
) -> dict[str, Any]:
    """OpenAI's four parallel lists.

    All tokens of ``logprob_token_ids`` are listed, whatever ``logprobs`` is.

    Args:
        places: where each token begins in the text of the choice.

    Source: vllm/entrypoints/openai/completion/serving.py#L605-L690
    (OpenAIServingCompletion._create_completion_logprobs) @ v0.22.1
    """
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    most = (request.logprobs or 0) + 1  # the token itself may not be among the best
    for token_id, candidates in zip(token_ids, entries, strict=False):
        if candidates is None:  # the first token of a prompt follows nothing
            name = "" if vocabulary is None else vocabulary.name(token_id)
            tokens.append(token_text(request, token_id, Logprob(0.0, decoded_token=name)))
            values.append(None)
            tops.append(None)
            continue
        shown = list(candidates.items())
        if request.logprob_token_ids is None:
            shown = shown[:most]
        tokens.append(token_text(request, token_id, candidates[token_id]))
        values.append(finite(candidates[token_id].logprob))
        tops.append(
            {token_text(request, one, found): finite(found.logprob) for one, found in shown}
        )
    return {
        "text_offset": places[: len(tokens)],
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": tops,
    }


def token_text(request: GenerationRequest, token_id: int, entry: Logprob) -> str:
    """The name of a token in logprobs: its text, or its id, which is unique."""
    if request.return_tokens_as_token_ids:
        return f"token_id:{token_id}"
    return entry.decoded_token or ""


def finite(logprob: float) -> float:
    return max(logprob, NO_LOGPROB)


def prompt_logprobs(output: RequestOutput) -> list[dict[str, Any] | None]:
    """Logprobs of each token of the prompt, by token id."""
    return [
        None
        if candidates is None
        else {
            str(token_id): {
                "logprob": finite(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in candidates.items()
        }
        for candidates in output.prompt_logprobs or []
    ]
