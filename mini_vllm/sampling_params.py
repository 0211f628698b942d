"""What a caller may ask of the sampler, with vLLM's names, defaults and meanings.

This module imports no torch: the scheduler and the command line read it too.

Source: vllm/sampling_params.py#L168-L554 (SamplingParams) @ v0.22.1.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral, Real
from typing import Any, TypedDict, Unpack

from mini_vllm.errors import show
from mini_vllm.param_checks import (
    MAX_FLOAT32,
    MAX_INT64,
    MIN_FLOAT32,
    check_list,
    check_scalar,
    check_token_ids,
    is_text,
    token_id_key,
    unknown_names,
)
from mini_vllm.structured_outputs_params import StructuredOutputsParams as StructuredOutputsParams

logger = logging.getLogger(__name__)

MAX_N = 16384
"""Most completions of one prompt."""
"""Most alternatives whose log probability can be returned per position (vLLM's default limit)."""
MIN_TEMPERATURE = 1e-2
"""Smallest temperature above greedy; less would overflow float32 when it divides the logits."""


class RequestOutputKind(IntEnum):
    """What an online engine hands over each time a request has grown.

    Source: vllm/sampling_params.py#L151-L157 (RequestOutputKind) @ v0.22.1
    """

    CUMULATIVE = 0
    """All there is so far."""
    DELTA = 1
    """Only what is new."""
    FINAL_ONLY = 2
    """Nothing before the end."""

    @classmethod
    def _missing_(cls, value: object) -> RequestOutputKind:
        names = ", ".join(f"RequestOutputKind.{kind.name}" for kind in cls)
        raise ValueError(f"output_kind is {show(value)}; it must be one of {names}")


# Every scalar parameter: name, kind, may it be None, is the value legal, the limit, the fix.
# A comparison with NaN is false, so NaN fails every range.
_SCALARS: tuple[tuple[str, type, bool, Callable[[Any], bool], str, str], ...] = (
    ("n", Integral, False, lambda v: 1 <= v <= MAX_N,
     f"between 1 and {MAX_N}", "leave it out for one completion"),
    ("presence_penalty", Real, False, lambda v: -2 <= v <= 2,
     "between -2 and 2", "0 switches it off"),
    ("frequency_penalty", Real, False, lambda v: -2 <= v <= 2,
     "between -2 and 2", "0 switches it off"),
    ("repetition_penalty", Real, False, lambda v: MIN_FLOAT32 <= v <= MAX_FLOAT32,
     f"finite and above 0, at least {MIN_FLOAT32:.2g}", "1 switches it off"),
    ("temperature", Real, False, lambda v: 0 <= v <= MAX_FLOAT32,
     "finite and at least 0", "0 means greedy"),
    ("top_p", Real, False, lambda v: 0 < v <= 1, "above 0 and at most 1", "1 switches it off"),
    ("top_k", Integral, False, lambda v: -1 <= v <= MAX_INT64,
     "at least 1", "0 or -1 switches it off"),
    ("min_p", Real, False, lambda v: 0 <= v <= 1, "between 0 and 1", "0 switches it off"),
    ("seed", Integral, True, lambda v: -(2**63) <= v < 2**64,
     "between -2**63 and 2**64 - 1", "leave it out for an unseeded request"),
    ("max_tokens", Integral, True, lambda v: 1 <= v <= MAX_INT64,
     "at least 1", "leave it out for the default of 16, or None for as many as fit"),
    ("min_tokens", Integral, False, lambda v: 0 <= v <= MAX_INT64,
     "at least 0", "0 switches it off"),
    ("logprobs", Integral, True, lambda v: -1 <= v <= MAX_INT64,
     "at least 0, or -1 for the whole vocabulary", "leave it out for none"),
    ("prompt_logprobs", Integral, True, lambda v: -1 <= v <= MAX_INT64,
     "at least 0, or -1 for the whole vocabulary", "leave it out for none"),
)  # fmt: skip
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens")

_FIXED = {
    "flat_logprobs": (False, "logprobs are dicts by token"),
    "routed_experts_prompt_start": (0, "which experts were taken is not returned"),
    "skip_clone": (False, "requests never share these parameters"),
}
"""Parameters of vLLM's that have one legal value here, and why."""


@dataclass
class RepetitionDetectionParams:
    """When an output counts as caught in a loop: it ends in copies of one pattern of tokens.

    Attributes:
        max_pattern_size: tokens of the longest pattern to look for; 0 switches it off.
        min_pattern_size: of the shortest; 0 means 1.
        min_count: so many copies, one after another, end the request.

    Raises:
        ValueError: for a size below 0 or a range that is empty, and for fewer than 2 copies.

    Source: vllm/sampling_params.py#L114-L147 (RepetitionDetectionParams) @ v0.22.1.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for name in ("max_pattern_size", "min_pattern_size", "min_count"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int):
                raise ValueError(f"{name} is {show(value)}; it must be a whole number")
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise ValueError(
                f"min_pattern_size is {self.min_pattern_size} and max_pattern_size "
                f"{self.max_pattern_size}; neither may be negative, nor the first above the "
                "second; set both to 0 to switch repetition_detection off"
            )
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise ValueError(
                f"min_count is {self.min_count}; a repetition has at least 2 copies; set "
                "max_pattern_size to 0 to switch repetition_detection off"
            )


class OptionalParams(TypedDict, total=False):
    """The fields of :class:`SamplingParams` as :meth:`SamplingParams.from_optional` takes them, for
    type checkers; `tests/engine/test_sampling_params.py` compares the two."""

    n: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    temperature: float | None
    top_p: float | None
    top_k: int
    min_p: float
    seed: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    include_stop_str_in_output: bool
    ignore_eos: bool
    max_tokens: int | None
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    detokenize: bool
    skip_special_tokens: bool
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    allowed_token_ids: list[int] | None
    extra_args: dict[str, Any] | None
    structured_outputs: StructuredOutputsParams | None
    output_kind: RequestOutputKind
    bad_words: list[str] | None
    bad_words_token_ids: list[list[int]] | None
    logprob_token_ids: list[int] | None
    skip_reading_prefix_cache: bool | None
    thinking_token_budget: int | None
    repetition_detection: RepetitionDetectionParams | None
    spaces_between_special_tokens: bool
    flat_logprobs: bool
    routed_experts_prompt_start: int
    skip_clone: bool


@dataclass
class SamplingParams:
    """How the tokens of one request are chosen, when it stops, and what is reported.

    Every field is checked when the object is made. A bad value raises a `ValueError` that names
    the field, the value, the limit and the fix; an unknown argument raises a `TypeError` that
    names the nearest field. After that `stop` and `stop_token_ids` are always lists.

    Attributes:
        n: completions per prompt; each becomes a request of its own (see `child_requests`).
        presence_penalty: subtracted once from the logit of every token already in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        repetition_penalty: divides positive and multiplies negative logits of tokens that
            occur in the prompt or the output.
        temperature: divides the logits; 0 means greedy, and then top_p, top_k and min_p are off.
        top_p: keep the smallest set of most probable tokens that reaches this mass.
        top_k: keep this many most probable tokens; 0 and -1 switch it off.
        min_p: keep tokens at least this fraction as probable as the most probable one.
        seed: makes the request reproducible, whatever else runs beside it; -1 means None.
        stop: one string or several that end the text when they appear in it.
        stop_token_ids: tokens that end the request when they are sampled.
        include_stop_str_in_output: keep the matched stop string at the end of the text.
        ignore_eos: do not stop at the model's end-of-sequence token.
        max_tokens: most output tokens; None means up to the model's length.
        min_tokens: EOS, stop tokens and stop strings cannot end the request before this many.
        logprobs: per output token, this many most likely tokens beside the sampled one; -1: all.
            The engine's ``max_logprobs`` is the limit.
        prompt_logprobs: the same for the tokens of the prompt.
        detokenize: turn the output into text.
        skip_special_tokens: leave special tokens out of the text.
        logit_bias: token id -> number added to its logit.
        allowed_token_ids: only these tokens may be sampled.
        extra_args: free for extensions. The engine reads "kv_transfer_params": what a KV connector
            is told about the request.
        structured_outputs: what form the text must have; a dict will do.
        bad_words: words that are not to appear in the output; their last token is ruled out where
            the tokens before it are there already.
        bad_words_token_ids: their tokens; the engine fills it in. Without `bad_words`: words that
            the caller has spelled.
        logprob_token_ids: report the logprobs of exactly these tokens, beside the sampled one, in
            place of the most likely ones.
        skip_reading_prefix_cache: compute the whole prompt, whatever is cached; None: only if
            `prompt_logprobs` asks for it.
        thinking_token_budget: vLLM's name; it needs a reasoning parser, which is not there.
        repetition_detection: end an output that repeats itself; a dict will do.
        spaces_between_special_tokens: vLLM's name; without effect, as in vLLM with a fast
            tokenizer: tokens carry their own spaces.
        flat_logprobs, routed_experts_prompt_start, skip_clone: vLLM's names; only their defaults
            are taken.
        output_kind: what :class:`~mini_vllm.engine.async_llm.AsyncLLM` yields; ``LLM`` ignores it.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    logprob_token_ids: list[int] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    spaces_between_special_tokens: bool = True
    flat_logprobs: bool = False
    routed_experts_prompt_start: int = 0
    skip_clone: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> SamplingParams:
        """Refuse an unknown keyword with a better message than the generated `__init__` has."""
        if message := unknown_names(cls, kwargs):
            raise TypeError(message)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._normalise()
        for name, kind, optional, legal, limit, fix in _SCALARS:
            value = check_scalar(name, getattr(self, name), kind, optional, legal, limit, fix)
            setattr(self, name, value)
        for name in _FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} is {show(value)}; it must be True or False")
        for name, (only, why) in _FIXED.items():
            if (value := getattr(self, name)) != only:
                raise ValueError(f"{name} is {show(value)}; it must be {only}: {why}")
        self._check_lists()
        self._check_late_arrivals()
        self._check_combinations()
        self._settle_temperature()

    def _normalise(self) -> None:
        """Bring the spellings that vLLM accepts to one form each."""
        if self.seed == -1:
            self.seed = None
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self.stop = [] if self.stop is None else self.stop
        self.stop_token_ids = [] if self.stop_token_ids is None else self.stop_token_ids
        # The OpenAI chat API spells "the sampled token and one more" as True.
        self.logprobs = 1 if self.logprobs is True else self.logprobs
        self.prompt_logprobs = 1 if self.prompt_logprobs is True else self.prompt_logprobs
        self.output_kind = RequestOutputKind(self.output_kind)
        if isinstance(self.logit_bias, Mapping):
            # The keys of a JSON object are strings.
            self.logit_bias = {token_id_key(key): bias for key, bias in self.logit_bias.items()}

        if isinstance(self.structured_outputs, Mapping):
            if message := unknown_names(
                StructuredOutputsParams, self.structured_outputs, "structured outputs parameter"
            ):
                raise ValueError(message)
            self.structured_outputs = StructuredOutputsParams(**self.structured_outputs)
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise ValueError(
                f"structured_outputs is {self.structured_outputs!r}; it must be "
                "StructuredOutputsParams(...), a dict or None"
            )

    def _check_lists(self) -> None:
        self.stop = check_list("stop", self.stop, str, "strings")
        self.stop_token_ids = check_token_ids("stop_token_ids", self.stop_token_ids)
        for text in self.stop:
            if not text:
                raise ValueError("stop holds an empty string, which is in every text; remove it")
            if not is_text(text):
                raise ValueError(
                    f"stop holds {show(text)}, half of a surrogate pair, which is in no text; "
                    "remove it"
                )
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = check_token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise ValueError(
                    "allowed_token_ids is empty, so no token could be sampled; "
                    "name at least one token or leave it out"
                )
        for name in ("logit_bias", "extra_args"):
            if not isinstance(value := getattr(self, name), dict | None):
                raise ValueError(f"{name} is {show(value)}; it must be a dict or None")
        if self.logit_bias is not None:
            self.logit_bias = {
                token_id: check_scalar(
                    f"logit_bias[{token_id}]", bias, Real, False,
                    lambda v: abs(v) <= MAX_FLOAT32, "finite", "-100 bans a token",
                )
                for token_id, bias in self.logit_bias.items()
            }  # fmt: skip

    def _check_late_arrivals(self) -> None:
        """What vLLM has added over the years."""
        self.bad_words = check_list("bad_words", self.bad_words or [], str, "strings") or None
        for word in self.bad_words or ():
            if not word.strip() or not is_text(word):
                raise ValueError(f"bad_words holds {show(word)}, which is no word; remove it")
        if self.bad_words_token_ids is not None:
            name = "bad_words_token_ids"
            words = check_list(name, self.bad_words_token_ids, list, "lists of token ids")
            self.bad_words_token_ids = [check_token_ids(name, word) for word in words]
            if [] in self.bad_words_token_ids:
                raise ValueError(f"{name} holds an empty list, which is no word; remove it")
        if self.logprob_token_ids is not None:
            self.logprob_token_ids = check_token_ids("logprob_token_ids", self.logprob_token_ids)
        if self.skip_reading_prefix_cache is None:  # they need the logits of every prompt token
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None
        if not isinstance(self.skip_reading_prefix_cache, bool):
            raise ValueError(
                f"skip_reading_prefix_cache is {show(self.skip_reading_prefix_cache)}; it must be "
                "True, False or None"
            )
        if self.thinking_token_budget is not None:
            raise ValueError(
                f"thinking_token_budget is {show(self.thinking_token_budget)}; it needs a "
                "reasoning parser, which is not supported; leave it out, or use max_tokens"
            )
        if isinstance(self.repetition_detection, Mapping):
            if message := unknown_names(
                RepetitionDetectionParams, self.repetition_detection, "repetition parameter"
            ):
                raise ValueError(message)
            self.repetition_detection = RepetitionDetectionParams(**self.repetition_detection)
        if not isinstance(self.repetition_detection, RepetitionDetectionParams | None):
            raise ValueError(
                f"repetition_detection is {show(self.repetition_detection)}; it must be "
                "RepetitionDetectionParams(...), a dict or None"
            )

    def _check_combinations(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens}; it must be at most max_tokens, which is "
                f"{self.max_tokens}; raise max_tokens or lower min_tokens"
            )
        if self.stop and not self.detokenize:
            raise ValueError(
                f"stop is {self.stop!r} but detokenize is False; stop strings are found in the "
                "text; set detokenize=True or use stop_token_ids"
            )
        if self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"n is {self.n} with temperature 0; greedy completions would all be the same, "
                "so n must be 1; set n=1 or a temperature above 0"
            )

    def _settle_temperature(self) -> None:
        """Switch the filters off for greedy requests; raise tiny temperatures to the minimum."""
        if self.temperature == 0:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            logger.warning(
                "temperature %s is below %s and could overflow; %s is used instead",
                self.temperature, MIN_TEMPERATURE, MIN_TEMPERATURE,
            )  # fmt: skip
            self.temperature = MIN_TEMPERATURE

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from parsed JSON. An unknown key raises a `ValueError` naming the nearest."""
        if message := unknown_names(cls, values):
            raise ValueError(message)
        return cls(**values)

    @classmethod
    def from_optional(cls, **values: Unpack[OptionalParams]) -> SamplingParams:
        """Build from what a caller may have left open: None stands for the field's default.

        The logit bias is cut to ±100 first, as OpenAI's API does it.

        Source: vllm/sampling_params.py#L324-L396 (SamplingParams.from_optional) @ v0.22.1
        """
        defaults = {"n", "presence_penalty", "frequency_penalty", "repetition_penalty"}
        defaults |= {"temperature", "top_p"}
        given: dict[str, Any] = {**values}
        given = {k: v for k, v in given.items() if v is not None or k not in defaults}
        if bias := given.get("logit_bias"):
            given["logit_bias"] = {int(t): min(100.0, max(-100.0, b)) for t, b in bias.items()}
        return cls.from_dict(given)

    def clone(self) -> SamplingParams:
        """A deep copy that shares nothing with this object."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if value is not None and not isinstance(value, (int, float, str)):
                setattr(twin, name, copy.deepcopy(value))
        return twin

    def verify(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        The one check that needs the model, so the engine makes it when a request arrives.
        """
        names = ("stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids")
        given = [(name, getattr(self, name) or ()) for name in names]
        given += [("bad_words_token_ids", word) for word in self.bad_words_token_ids or ()]
        for name, token_ids in given:
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    raise ValueError(
                        f"{name} holds token {token_id}; token ids must be at least 0 and below "
                        f"the vocabulary size {vocab_size}; remove it"
                    )

    @property
    def is_greedy(self) -> bool:
        """True when every token is the most likely one."""
        return self.temperature == 0

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """`stop_token_ids` as a set. The model's EOS tokens are not in it."""
        return frozenset(self.stop_token_ids or ())

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities of the output are to be reported."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    def update_from_tokenizer(self, tokenizer: Any) -> None:
        """Spell `bad_words` in tokens: each at the beginning of a text, and after a space.

        Source: vllm/sampling_params.py#L586-L625 (SamplingParams.update_from_tokenizer) @ v0.22.1.
        """
        if not self.bad_words:
            return
        self.bad_words_token_ids = []
        for word in self.bad_words:
            plain, spaced = (
                list(tokenizer.encode(space + word.lstrip(), add_special_tokens=False))
                for space in ("", " ")
            )
            self.bad_words_token_ids.append(plain)
            if spaced[0] != plain[0] and len(spaced) == len(plain):
                self.bad_words_token_ids.append(spaced)


@dataclass
class BeamSearchParams:
    """What :meth:`~mini_vllm.engine.llm.LLM.beam_search` looks for, and a server's beam search.

    Attributes:
        beam_width: texts that are kept in each step, and returned.
        max_tokens: most tokens of each, after the prompt.
        ignore_eos: take the model's end-of-sequence tokens for tokens like others.
        length_penalty: power of the length that a text's log probability is divided by; above 0
            longer texts win, below 0 shorter ones.
        temperature: only 0: texts are ranked by the model's own probabilities.
        include_stop_str_in_output: whether the end token is one of a served answer's tokens. It is
            one of :attr:`BeamSearchSequence.tokens` in any case.

    Raises:
        ValueError: for a value out of range.

    Source: vllm/sampling_params.py#L977-L990 (BeamSearchParams) @ v0.22.1
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name, kind, legal, limit, fix in (
            ("beam_width", Integral, lambda v: 1 <= v <= MAX_N, f"between 1 and {MAX_N}",
             "1 is greedy"),
            ("max_tokens", Integral, lambda v: 1 <= v <= MAX_INT64, "at least 1", "raise it"),
            ("length_penalty", Real, lambda v: -10 <= v <= 10, "between -10 and 10",
             "0 ranks by probability alone"),
            ("temperature", Real, lambda v: v == 0, "0", "beams are not drawn; leave it out"),
        ):  # fmt: skip
            value = check_scalar(name, getattr(self, name), kind, False, legal, limit, fix)
            setattr(self, name, value)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {show(getattr(self, name))}; it must be True or False")


def derive_seed(engine_seed: int, request_number: int) -> int:
    """Seed for a request that has none: depends on the engine's seed and the order of arrival.

    A run with the same requests in the same order is then reproducible, whatever the schedule.

    Args:
        engine_seed: the engine's seed.
        request_number: how many requests arrived before this one.
    """
    digest = hashlib.blake2b(f"{engine_seed}:{request_number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
