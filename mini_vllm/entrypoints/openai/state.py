"""State that all routes share: the engine, its model names, and whether it takes requests."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers

from mini_vllm.engine.async_llm import AsyncLLM, Stream
from mini_vllm.engine.exceptions import EngineDeadError
from mini_vllm.engine.vocabulary import Vocabulary
from mini_vllm.entrypoints.openai.errors import APIError, of_output
from mini_vllm.entrypoints.openai.protocol import GenerationRequest
from mini_vllm.entrypoints.openai.request_log import RequestLogger
from mini_vllm.entrypoints.openai.response_store import ResponseStore
from mini_vllm.errors import RequestFailure, show
from mini_vllm.inputs import PromptType, num_ids
from mini_vllm.lora.request import LoRARequest
from mini_vllm.observability.metrics import PrometheusRecorder
from mini_vllm.outputs import RequestOutput
from mini_vllm.param_checks import check_context
from mini_vllm.pooling_params import PoolingParams
from mini_vllm.reasoning import ReasoningFormat, reasoning_format
from mini_vllm.sampling_params import SamplingParams

BREATH = 0.005
"""Seconds of work on the prompts of one request before other tasks of the event loop run."""
MOST_TEXT = 2**20
"""Most characters of a text whose length the model does not limit: one to be counted or
truncated."""
MOST_ID = 2**10
"""Most characters of a request's id, which is in every event of a stream."""


class Turns:
    """Shares the event loop: call ``await turns.pass_on()`` between parts of long work."""

    def __init__(self) -> None:
        self.since = time.monotonic()

    async def pass_on(self) -> None:
        """Let other tasks run, if this one has run for :data:`BREATH` seconds."""
        if time.monotonic() - self.since > BREATH:
            await asyncio.sleep(0)
            self.since = time.monotonic()


@dataclass
class ServerState:
    """One server.

    Attributes:
        served_model_names: answers use the first.
        default_params: sampling parameters that the model's authors recommend.
        draining: a shutdown has begun, and new requests are refused.
        num_in_flight: requests whose answers are not complete.
    """

    engine: AsyncLLM
    metrics: PrometheusRecorder
    served_model_names: list[str]
    default_params: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    default_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    response_role: str = "assistant"
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    exclude_tools_when_tool_choice_none: bool = False
    enable_request_id_headers: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    enable_tokenizer_info_endpoint: bool = False
    fingerprint: str | None = None
    """`system_fingerprint` of answers."""
    request_logger: RequestLogger | None = None
    """Logs each request, if given."""
    loras: dict[str, LoRARequest] = field(default_factory=dict)
    """Adapters by the model name that selects them."""
    responses: ResponseStore = field(default_factory=ResponseStore)
    """Responses of /v1/responses, for later requests that continue them."""
    draining: bool = False
    num_in_flight: int = 0
    readers: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks that still read the body of a request. A shutdown refuses these requests."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The texts of tokens; None if the server works on token ids only."""
        return self.engine.output_processor.vocabulary

    @cached_property
    def reasoning(self) -> ReasoningFormat | None:
        """How the model marks its reasoning; None if reasoning is not separated from the text."""
        name = self.engine.config.structured.reasoning_parser
        return reasoning_format(name) if name else None

    @property
    def stamp(self) -> dict[str, Any]:
        """The fingerprint as a field of a stream's last event, if there is one."""
        return {"system_fingerprint": self.fingerprint} if self.fingerprint is not None else {}

    @property
    def model_name(self) -> str:
        return self.served_model_names[0]

    @property
    def can_choose_tools(self) -> bool:
        """Whether tool calls with ``tool_choice="auto"`` are parsed."""
        return self.enable_auto_tool_choice and self.tool_call_parser is not None

    def check_model(self, name: str | None) -> LoRARequest | None:
        """The adapter that a model name selects; None for the model itself or if no name is given.

        Raises:
            APIError: 404 that lists the known names.
        """
        if not name or name in self.served_model_names:
            return None
        if name in self.loras:
            return self.loras[name]
        served = ", ".join(repr(n) for n in (*self.served_model_names, *self.loras))
        raise APIError(
            f"the model {show(name)} does not exist; this server has {served}",
            HTTPStatus.NOT_FOUND,
            "model",
        )

    def template_kwargs(self, request: Any) -> dict[str, Any]:
        """Variables of the chat template: the server's own, what ``reasoning_effort`` of the
        request says, and ``chat_template_kwargs`` of the request. Of two, the later one counts."""
        effort = getattr(request, "reasoning_effort", None)
        wish = {} if effort is None else {"enable_thinking": effort != "none"}
        own = getattr(request, "chat_template_kwargs", None) or {}
        return self.default_chat_template_kwargs | wish | own

    def name_of(self, lora: LoRARequest | None) -> str:
        """The name in answers: the model's first name, whichever the request had, or the
        adapter's."""
        return self.model_name if lora is None else lora.lora_name

    def check_alive(self) -> None:
        """Raises EngineDeadError, or APIError (503) during a shutdown."""
        if self.draining:
            raise shutting_down()
        if self.engine.errored:
            raise self.engine.dead_error

    async def submit(
        self,
        request_id: str,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | PoolingParams],
        lora: LoRARequest | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> list[Stream]:
        """Hand prompts to the engine, all or none.

        Raises:
            ValueError, QueueFullError, EngineDeadError: the engine then has none of the prompts.
        """
        if priority and self.engine.config.scheduler.policy != "priority":
            raise APIError(
                f"priority is {priority}; this server takes requests in their order; start it with "
                "--policy priority, or leave it out",
                param="priority",
            )
        rank = rank_wanted(headers or {})
        total = sum(one.n for one in params)
        tokens = sum(one.n * num_ids(p) for p, one in zip(prompts, params, strict=True))
        self.engine.admission.check(total, tokens)
        first = params[0] if params else None
        if isinstance(first, SamplingParams) and first.structured_outputs is not None:
            # Parsing a large constraint must not block the event loop; the result is cached.
            try:
                await asyncio.to_thread(self.engine.input_processor.check_constraint, first)
            except ValueError as error:
                raise APIError(str(error), param="structured_outputs") from error
        streams: list[Stream] = []
        turns = Turns()
        try:
            for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
                await turns.pass_on()
                name = request_id if len(prompts) == 1 else f"{request_id}-{index}"
                if self.request_logger is not None:
                    self.request_logger.log_inputs(name, prompt, one, lora)
                streams.append(
                    await self.engine.add_request(
                        name,
                        prompt,
                        one,
                        lora_request=lora,
                        priority=priority,
                        data_parallel_rank=rank,
                    )
                )
        except BaseException:
            self.close(streams)
            raise
        return streams

    async def settle(self, streams: Sequence[Stream], params: Sequence[SamplingParams]) -> None:
        """Wait, before a stream begins, for errors that only the engine can find.

        A constraint that no text satisfies is found when it is compiled, and KV of another prompt
        when it is loaded. The wait does not delay the first output.

        Raises:
            APIError, EngineDeadError: the engine then has no part of the request any more.
        """
        try:
            for stream, one in zip(streams, params, strict=True):
                if one.structured_outputs is None and not one.extra_args:
                    continue
                await stream.collector.ready.wait()
                first = stream.collector.output  # it stays for the stream to read
                if isinstance(first, Exception):
                    raise first
                assert first is not None
                self.check_output(first)
        except BaseException:
            self.close(streams)
            raise

    def close(self, streams: Sequence[Stream]) -> None:
        """End a request, whether its outputs were read to the end or not."""
        for stream in streams:
            self.engine.close_stream(stream)

    async def last_output(self, stream: Stream) -> RequestOutput:
        """Read a stream to its end. Raises the error that :meth:`check_output` raises."""
        outputs = [output async for output in self.engine.outputs(stream)]
        self.check_output(outputs[-1])
        return outputs[-1]

    def check_output(self, output: RequestOutput) -> None:
        """Raises the error for the client, if an output has failed."""
        reasons = [one.finish_reason for one in output.outputs if one.finish_reason is not None]
        if "error" in reasons:
            if self.engine.errored:
                raise EngineDeadError(self.engine.client.dead or "")
            raise of_output(output.failure or RequestFailure("the engine failed"))
        if "abort" in reasons and self.draining:
            raise shutting_down()


def shutting_down() -> APIError:
    return APIError(
        "the server is shutting down; send the request to another one, or again in a while",
        HTTPStatus.SERVICE_UNAVAILABLE,
    )


def request_id(prefix: str, headers: Headers, given: str | None) -> str:
    """The id of an answer, after ``prefix``. Clients may choose it; it need not be unique.

    Raises:
        APIError: for an id that is too long, because it is in every event of a stream.
    """
    wanted = given or headers.get("x-request-id") or uuid.uuid4().hex
    if len(wanted) > MOST_ID:
        name = "request_id" if given else "X-Request-Id"
        raise APIError(
            f"{name} has {len(wanted):,} characters; at most {MOST_ID:,} are allowed; shorten it",
            param="request_id",
        )
    return prefix + wanted


def rank_wanted(headers: Mapping[str, str]) -> int | None:
    """The data-parallel engine that a client selects by a header.

    Source: vllm/entrypoints/openai/engine/serving.py#L405-L420
    (OpenAIServing._get_data_parallel_rank) @ v0.22.1
    """
    given = headers.get("x-data-parallel-rank")
    if given is None:
        return None
    if not given.strip().isdecimal():
        raise APIError(
            f"X-data-parallel-rank is {show(given)}; it must be the number of an engine, such as 0",
            param="data_parallel_rank",
        )
    return int(given)


def check_text(state: ServerState, text: str) -> None:
    """Refuse a text that is too long to be tokenized only to be counted or truncated.

    Tokenization takes about a second per million characters in one of few threads, and it cannot
    be cancelled, even when the client is gone. A text that fits the model is never too long.
    """
    if len(text) <= MOST_TEXT:
        return
    most = max(MOST_TEXT, state.engine.input_processor.longest_text())
    if len(text) > most:
        raise APIError(
            f"prompt has {len(text):,} characters; at most {most:,} are tokenized at once; send "
            "the part that is to be kept, or count it in pieces",
            param="prompt",
        )


def check_max_tokens(state: ServerState, name: str, wanted: int | None) -> None:
    """Refuse more output tokens than ``max_model_len``, whatever the prompt.

    Args:
        name: of the request's field.
        wanted: its value; None if it is not given.

    Source: vllm/renderers/params.py#L195-L235 (TokenizeParams.__post_init__) @ v0.22.1
    """
    most = state.engine.limits.max_model_len
    if wanted is not None and wanted > most:
        raise APIError(
            f"{name}={wanted} cannot be greater than max_model_len={most}. Please request fewer "
            "output tokens.",
            param=name,
        )


def cut_prompt(
    state: ServerState, token_ids: list[int], request: GenerationRequest, num_output_tokens: int
) -> list[int]:
    """Truncate a prompt to ``truncate_prompt_tokens``: keep its end, or its beginning if
    ``truncation_side`` is "right". -1 keeps as many tokens as fit.

    Args:
        num_output_tokens: output tokens of the request; 0: as many as fit.

    Raises:
        ValueError: if the prompt and the output tokens do not fit ``max_model_len``.

    Source: vllm/renderers/params.py#L396-L413 (TokenizeParams._token_truncation) @ v0.22.1
    """
    limits, keep = state.engine.limits, request.truncate_prompt_tokens
    if keep is not None:
        room = limits.max_model_len - num_output_tokens
        if keep > room:
            raise APIError(
                f"truncate_prompt_tokens={keep} cannot be greater than max_model_len - max_tokens "
                f"= {room}. Please request a smaller truncation size.",
                param="truncate_prompt_tokens",
            )
        if keep < 0:
            keep = limits.max_model_len - max(num_output_tokens, 1)
        is_right = request.truncation_side == "right"
        token_ids = token_ids[:keep] if is_right else token_ids[max(len(token_ids) - keep, 0) :]
    check_context(limits.max_model_len, len(token_ids), num_output_tokens)
    return token_ids


def room_for_output(state: ServerState, num_prompt_tokens: int) -> int:
    """``max_tokens`` of a request without it: the value that the model's authors recommend, if
    any, and at most what fits ``max_model_len``.

    Source: vllm/entrypoints/utils.py#L175-L212 (get_max_tokens) @ v0.22.1
    """
    room = state.engine.limits.max_model_len - num_prompt_tokens
    return min(room, state.default_params.get("max_tokens", room))


def usage_of(
    state: ServerState, num_prompt: int, num_completion: int, num_cached: int
) -> dict[str, Any]:
    shows_details = state.enable_prompt_tokens_details
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_completion,
        "completion_tokens": num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached} if shows_details else None,
    }
