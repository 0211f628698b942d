"""The fields of requests. Unknown ones are accepted and ignored, as OpenAI and vLLM do.

Source: vllm/entrypoints/openai/completion/protocol.py#L42-L463 (CompletionRequest) @ v0.22.1
Source: vllm/entrypoints/openai/chat_completion/protocol.py#L183-L903 (ChatCompletionRequest)
@ v0.22.1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, create_model, model_validator

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.errors import show
from mini_vllm.sampling_params import NUMBERS, BeamSearchParams, RequestOutputKind, SamplingParams

MOST_STRINGS = {"stop": 16, "bad_words": 1024}
MOST_CHARACTERS = 2**16
"""Longest lists of strings in a request, and most characters of all strings of a list. Tokenizing
them blocks other requests."""
TOKEN_LISTS = ("stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids")
"""Lists of tokens: at most as long as the vocabulary, which is each token once."""
MOST_COPIED = 2**18
"""Most list entries of all completions of a request together: each completion has a copy."""
MOST_EXTRA = 2**16
"""Most values inside ``vllm_xargs`` or ``kv_transfer_params``."""
CHARACTERS_A_VALUE = 64
MOST_SALT = 2**10
"""Most characters of ``cache_salt``, which each completion copies, too."""
MOST_COMPLETIONS = 2**11
"""Most completions of one prompt. All are submitted at once, which blocks other requests for
0.08 ms each."""
OTHER_NAME = ("max_tokens", "logprobs")
"""Numbers whose names or meanings differ between completions and chats."""
SAME_NUMBERS = {name: each.plain for name, each in NUMBERS.items() if name not in OTHER_NAME}
SAME_NAME = (
    *SAME_NUMBERS, "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
    "skip_special_tokens", "logit_bias", "allowed_token_ids",
    "bad_words", "logprob_token_ids", "skip_reading_prefix_cache", "thinking_token_budget",
    "repetition_detection", "spaces_between_special_tokens",
)  # fmt: skip
"""Fields with the same names as in :class:`~mini_vllm.sampling_params.SamplingParams`."""


NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""Values that have no effect."""
REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "prompt_embeds": ("send text or token ids", NOTHING),
    "functions": ("send tools", NOTHING),
    "function_call": ("send tools and tool_choice", (*NOTHING, "auto", "none")),
    "media_io_kwargs": ("resize with mm_processor_kwargs, or before you send", NOTHING),
    "logits_processors": ("start the server with --logits-processors", NOTHING),
    "audio": ("answers are text; leave it out", NOTHING),
    "modalities": ("answers are text; leave it out", (*NOTHING, ["text"])),
    "web_search_options": ("search first, and put the results into a message", (None, False)),
    "moderation": ("check the input and the answer with a model of your own", NOTHING),
    "context_management": ("send fewer items", NOTHING),
    "personality": ("describe the style in instructions", NOTHING),
}
"""Fields of vLLM and OpenAI that would change the answer and are not supported: what to do instead,
and values that have no effect."""
FORMER_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object")
"""Constraints that vLLM before 0.12 accepted as `guided_json` and so on. Clients that support old
servers send them beside the newer fields, which count. Alone they are refused, because the answer
would not be constrained."""
NOT_FOR_BEAMS = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "stop", "stop_token_ids",
    "min_tokens", "prompt_logprobs", "logit_bias", "allowed_token_ids", "bad_words",
    "logprob_token_ids", "structured_outputs", "response_format", "kv_transfer_params",
    "vllm_xargs",
)  # fmt: skip
"""Fields that would change an answer, but that beam search ignores."""
Includable = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs",
    "message.input_image.image_url", "computer_call_output.output.image_url",
]  # fmt: skip
"""Values of `include` in a request to /v1/responses. Only the logprobs have an effect here."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of ``reasoning_effort``, which the chat template reads."""
INT64 = 2**63
T = TypeVar("T")


class _FirstMistake(FailFast):
    """A hashable ``FailFast``: types in unions with ``|`` must be hashable, and pydantic's is
    not."""

    __hash__ = object.__hash__


Many = Annotated[list[T], _FirstMistake()]
"""A list whose validation stops at the first error: millions of error messages take minutes."""


def count_values(value: Any, most: int) -> int:
    """Values inside lists and objects, at any depth; counting ends soon after ``most``.

    A text counts once more for each ``CHARACTERS_A_VALUE``, because its characters are copied.
    """
    count, rest = 0, [value]
    while rest and count <= most:
        inside = rest.pop()
        if isinstance(inside, str):
            count += len(inside) // CHARACTERS_A_VALUE
        elif isinstance(inside, (list, dict)):
            count += len(inside)
            if count <= most:
                rest += inside
                rest += inside.values() if isinstance(inside, dict) else ()
    return count


class Lenient(BaseModel):
    """A request body. A null field counts as missing: clients in typed languages, and gateways,
    send all the fields that they know."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {key: v for key, v in body.items() if v is not None or key not in optional}


def refuse_fields(request: Lenient, refused: Mapping[str, tuple[str, tuple[Any, ...]]]) -> None:
    """Raises APIError for the first field that is not supported and has an effect."""
    for name, (instead, neutral) in refused.items():
        if (request.model_extra or {}).get(name) not in neutral:
            raise APIError(f"{name} is not supported; {instead}", param=name)


def check_effort(name: str, effort: str, param: str | None = None) -> None:
    """Raises APIError for an effort that no template would know, in the field of that name."""
    if effort not in EFFORTS:
        raise APIError(
            f"{name} is {show(effort)}; it must be one of {', '.join(EFFORTS)}", param=param or name
        )


class StreamOptions(Lenient):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


_fields: Any = {name: (kind | None, None) for name, kind in SAME_NUMBERS.items()}
_Numbers: Any = create_model("_Numbers", __base__=Lenient, **_fields)


class GenerationRequest(_Numbers):
    """Fields that completions and chats share."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    seed: int | None = Field(default=None, ge=-INT64, le=INT64 - 1)
    stop: str | Many[str] | None = None
    stop_token_ids: Many[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: Many[int] | None = None
    bad_words: Many[str] | None = None
    logprob_token_ids: Many[int] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    priority: int = 0
    request_id: str | None = None
    cache_salt: str | None = Field(default=None, max_length=MOST_SALT)
    kv_transfer_params: dict[str, Any] | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=INT64 - 1)
    truncation_side: Literal["left", "right"] | None = None
    vllm_xargs: dict[str, Any] | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0

    def beam_search_params(self, max_tokens: int) -> BeamSearchParams:
        """Parameters of a beam search for the ``n`` most probable texts.

        ``temperature`` and other parameters of sampling are ignored, because nothing is sampled.

        Raises:
            ValueError: for a value out of range, or a field of ``NOT_FOR_BEAMS``.

        Source: vllm/entrypoints/openai/completion/protocol.py#L219-L238
        (CompletionRequest.to_beam_search_params) @ v0.22.1
        """
        neutral: tuple[Any, ...] = (None, False, 0, "", [], {}, {"type": "text"})
        for name in NOT_FOR_BEAMS:
            value = getattr(self, name)
            if value not in neutral and (name, value) != ("repetition_penalty", 1):
                raise APIError(
                    f"{name} is {show(value)} and use_beam_search is true; beams are ranked by the "
                    "model's own probabilities, and end where the model ends them; leave one of "
                    "the two out",
                    param=name,
                )
        return BeamSearchParams(
            beam_width=1 if self.n is None else self.n,
            max_tokens=max_tokens,
            ignore_eos=bool(self.ignore_eos),
            length_penalty=self.length_penalty,
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
        )

    def sampling_params(
        self, defaults: Mapping[str, Any], max_tokens: int, num_logprobs: int | None
    ) -> SamplingParams:
        """Parameters for the engine: those of the request, else the defaults.

        Args:
            defaults: recommended by the model's authors, by field.
            max_tokens: its final value, because only the caller knows the prompt's length.

        Raises:
            ValueError: for a value out of range; :class:`SamplingParams` names it.
        """
        known = {field.name for field in dataclasses.fields(SamplingParams)}
        given = {name: getattr(self, name) for name in SAME_NAME}
        given = {name: value for name, value in given.items() if value is not None}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise APIError(f"{unknown[0]} is not supported; leave it out", param=unknown[0])
        extra = dict(self.vllm_xargs or {})
        if self.kv_transfer_params is not None:
            extra["kv_transfer_params"] = self.kv_transfer_params
        if extra:
            given["extra_args"] = extra
        given |= self._structured_outputs()
        kinds = RequestOutputKind
        return SamplingParams(
            **{
                **defaults,
                **given,
                "max_tokens": max_tokens,
                "logprobs": num_logprobs,
                "output_kind": kinds.DELTA if self.stream else kinds.FINAL_ONLY,
            }
        )

    def _structured_outputs(self) -> dict[str, Any]:
        """`response_format`, or vLLM's own `structured_outputs`, as the engine takes it."""
        wanted = dict(self.structured_outputs or {})
        form = self.response_format
        if form is not None:
            kind = form.get("type")
            if kind == "json_object":
                # Clients such as instructor and llama.cpp's put a schema beside the type.
                schema = form.get("schema")
                wanted |= {"json_object": True} if schema is None else {"json": schema}
            elif kind == "json_schema":
                given = form.get("json_schema")
                schema = given.get("schema") if isinstance(given, dict) else None
                if schema is None:
                    raise APIError(
                        "response_format has type json_schema but no json_schema.schema; add it",
                        param="response_format",
                    )
                wanted["json"] = schema
            elif kind == "structural_tag":
                wanted["structural_tag"] = form
            elif kind != "text":
                raise APIError(
                    f"response_format.type is {show(kind)}; it must be 'text', 'json_object', "
                    "'json_schema' or 'structural_tag'",
                    param="response_format",
                )
        # An empty structured_outputs is passed on and refused: it would constrain nothing.
        is_given = wanted or self.structured_outputs is not None
        return {"structured_outputs": wanted} if is_given else {}

    @property
    def has_form(self) -> bool:
        """Whether the request constrains the form of the text."""
        form = self.response_format
        return self.structured_outputs is not None or (
            form is not None and form.get("type") != "text"
        )

    def check_fields(self, vocab_size: int) -> None:
        """Raises APIError for fields that exclude each other, are not supported, or are too
        long."""
        self._check_sizes(vocab_size)
        self.logprob_token_ids = self.logprob_token_ids or None  # as the engine takes it
        refuse_fields(self, REFUSED)
        best_of, n = (self.model_extra or {}).get("best_of"), self.n or 1
        if best_of not in (None, n):
            raise APIError(
                f"best_of is {show(best_of)}; this server draws n={n} completions; send n="
                f"{show(best_of)} with logprobs and choose, or leave best_of out",
                param="best_of",
            )
        for name in () if self.has_form else FORMER_CONSTRAINTS:
            if (self.model_extra or {}).get(f"guided_{name}") not in (None, False):
                raise APIError(
                    f"guided_{name} is not supported; send structured_outputs={{{name!r}: ...}}",
                    param=f"guided_{name}",
                )
        if self.stream and self.prompt_logprobs:  # vLLM accepts 0, and streams none either
            raise APIError(
                f"prompt_logprobs is {self.prompt_logprobs} and stream is true; chunks of a stream "
                "cannot hold them; leave one of the two out",
                param="prompt_logprobs",
            )
        options = self.stream_options
        if options is not None and options.model_fields_set and not self.stream:
            raise APIError(
                "stream_options is given but stream is false; set stream to true or leave it out",
                param="stream_options",
            )

    def _check_sizes(self, vocab_size: int) -> None:
        """Refuse fields that would take long to process, because other requests would wait."""
        num = self.n or 1
        if num > MOST_COMPLETIONS:
            raise APIError(
                f"n is {num:,}; at most {MOST_COMPLETIONS:,} completions of a prompt are begun at "
                "once, because other requests wait meanwhile; send the prompt several times",
                param="n",
            )
        copied = 0
        for name, most in MOST_STRINGS.items():
            value = getattr(self, name) or []
            if isinstance(value, list) and len(value) > most:
                raise APIError(
                    f"{name} has {len(value)} strings; at most {most} are allowed; use fewer",
                    param=name,
                )
            length = len(value) if isinstance(value, str) else sum(map(len, value))
            if length > MOST_CHARACTERS:
                raise APIError(
                    f"{name} has {length:,} characters; at most {MOST_CHARACTERS:,} are allowed; "
                    "shorten it",
                    param=name,
                )
            copied += length // CHARACTERS_A_VALUE
        for name in TOKEN_LISTS:
            length = len(getattr(self, name) or ())
            if length > vocab_size:
                raise APIError(
                    f"{name} has {length:,} entries; the vocabulary has {vocab_size:,} tokens; "
                    "name each once",
                    param=name,
                )
            copied += length
        for name in ("vllm_xargs", "kv_transfer_params"):
            length = count_values(getattr(self, name), MOST_EXTRA)
            if length > MOST_EXTRA:
                raise APIError(
                    f"{name} has more than {MOST_EXTRA:,} values (of texts, "
                    f"{CHARACTERS_A_VALUE} characters are one); send fewer",
                    param=name,
                )
            copied += length if name == "vllm_xargs" else 0  # the other is not copied
        if num > 1 and num * copied > MOST_COPIED:
            raise APIError(
                f"n is {num} and strings, lists of tokens and vllm_xargs have {copied:,} entries "
                f"({CHARACTERS_A_VALUE} characters are one); each completion has its copy, and "
                f"{MOST_COPIED:,} entries are the most; lower n, or shorten them",
                param="n",
            )

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer has logprobs; ``logprob_token_ids`` requests them, too.

        In completions, ``logprobs`` is a number, and 0 also requests them. In chats it is a bool.
        """
        logprobs = getattr(self, "logprobs", None)
        is_asked = logprobs is not None and logprobs is not False
        return is_asked or self.logprob_token_ids is not None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.includes_usage and bool(self.stream_options.continuous_usage_stats)  # type: ignore[union-attr]


class CompletionRequest(GenerationRequest):
    prompt: str | Many[int] | Many[str] | Many[Many[int]] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int = 16
    suffix: str | None = None
    add_special_tokens: bool = True


class ChatCompletionRequest(GenerationRequest):
    messages: Many[dict[str, Any]]
    logprobs: bool | None = False
    top_logprobs: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    echo: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: Many[dict[str, str]] | None = None
    return_prompt_text: bool | None = False
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None

    @property
    def has_form(self) -> bool:
        """A required tool call constrains the form, too."""
        is_call = bool(self.tools) and self.tool_choice not in (None, "none", "auto")
        return is_call or super().has_form


class InputTokensRequest(GenerationRequest):
    """A request to count the input tokens of a response. Fields that do not change the prompt are
    accepted and ignored."""

    input: str | Many[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    include: Many[Includable] | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    metadata: dict[str, Any] | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    conversation: str | dict[str, Any] | None = None
    background: bool | None = False
    prompt: dict[str, Any] | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    max_tool_calls: int | None = None

    @property
    def has_form(self) -> bool:
        is_call = bool(self.tools) and self.tool_choice not in (None, "none", "auto")
        return is_call or self.form() not in (None, {"type": "text"}) or super().has_form

    def form(self) -> dict[str, Any] | None:
        """The format of the text as a chat's ``response_format``, whose schema is one level
        deeper."""
        form = (self.text or {}).get("format")
        if form is None:
            return None
        kind = form.get("type") if isinstance(form, dict) else form
        if kind not in ("text", "json_object", "json_schema"):
            raise APIError(
                f"text.format.type is {show(kind)}; it must be 'text', 'json_object' or "
                "'json_schema'",
                param="text",
            )
        if kind != "json_schema":
            return dict(form)
        if form.get("schema") is None:
            raise APIError("text.format has type json_schema but no schema; add it", param="text")
        return {"type": "json_schema", "json_schema": form}


class ResponsesRequest(InputTokensRequest):
    """OpenAI's newer interface: text, and calls of the client's functions."""

    input: str | Many[dict[str, Any]]


class TokenizeRequest(Lenient):
    model: str | None = None
    prompt: str | None = None
    messages: Many[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: Many[dict[str, Any]] | None = None


class DetokenizeRequest(Lenient):
    model: str | None = None
    tokens: Many[int]


class LoadLoRARequest(Lenient):
    lora_name: str = Field(min_length=1, max_length=256)
    """Also the model's name in every event of a stream, hence the limit."""
    lora_path: str = Field(min_length=1, max_length=4096)
    load_inplace: bool = False


class UnloadLoRARequest(Lenient):
    lora_name: str
    lora_int_id: int | None = None
