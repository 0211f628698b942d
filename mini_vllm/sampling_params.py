"""Sampling parameters of a request, with vLLM's names, defaults and meanings.

This module imports no torch, because the scheduler and the command line import it, too.

Source: vllm/sampling_params.py#L168-L554 (SamplingParams) @ v0.22.1.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Unpack

from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.param_checks import (
    MAX_FLOAT32,
    MAX_INT64,
    MAX_N,
    MIN_FLOAT32,
    check_list,
    check_scalar,
    check_token_ids,
    is_text,
    spellings,
    token_id_key,
    unknown_names,
)
from mini_vllm.sampling_fields import BeamSearchParams as BeamSearchParams
from mini_vllm.sampling_fields import Number as Number
from mini_vllm.sampling_fields import OtherParams, number_field
from mini_vllm.sampling_fields import RepetitionDetectionParams as RepetitionDetectionParams
from mini_vllm.sampling_fields import RequestOutputKind as RequestOutputKind
from mini_vllm.sampling_fields import SamplingType as SamplingType
from mini_vllm.structured_outputs_params import StructuredOutputsParams as StructuredOutputsParams

logger = logging.getLogger(__name__)

MIN_TEMPERATURE = 1e-2
"""Smallest temperature above greedy; less would overflow float32 when it divides the logits."""


_FLAGS = (
    "include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens", "skip_clone",
    "flat_logprobs", "spaces_between_special_tokens",
)  # fmt: skip

_FIXED = {
    "routed_experts_prompt_start": (0, "which experts were taken is not returned"),
}
"""Parameters of vLLM with only one legal value here, and why."""


class _Checked:
    """Stores the checked values in a slot, so that ``vars`` and ``copy`` do not include them."""

    __slots__ = ("_checked",)


@dataclass
class SamplingParams(_Checked):
    """How the tokens of one request are chosen, when it stops, and what is reported.

    Every field is checked when the object is made. A bad value raises a `ValueError` that names
    the field, the value, the limit and the fix; an unknown argument raises a `TypeError` that
    names the nearest field. After that `stop`, `stop_token_ids` and `bad_words` are always lists.

    Numeric parameters are described at their fields. The others:

    Attributes:
        stop: one string or several that end the text when they appear in it.
        stop_token_ids: tokens that end the request when they are sampled.
        include_stop_str_in_output: keep the matched stop string at the end of the text.
        ignore_eos: do not stop at the model's end-of-sequence token.
        detokenize: turn the output into text.
        skip_special_tokens: leave special tokens out of the text.
        logit_bias: token id -> number added to its logit.
        allowed_token_ids: only these tokens may be sampled.
        extra_args: for extensions. The engine reads "kv_transfer_params", the parameters for a KV
            connector.
        structured_outputs: the form that the text must have; may be a dict.
        bad_words: words that must not be in the output. The last token of a word is masked after
            the word's other tokens.
        bad_words_token_ids: tokens of `bad_words`, filled in by the engine. Without `bad_words`:
            words as token ids.
        eos_token_ids: the model's; filled in by the engine if `min_tokens` must mask them, even
            with `ignore_eos`.
        logprob_token_ids: report the logprobs of exactly these tokens and of the sampled one,
            instead of the most likely ones.
        skip_reading_prefix_cache: compute the whole prompt, even if it is cached; None: only if
            `prompt_logprobs` needs it.
        thinking_token_budget: most tokens of the reasoning, for an engine with a reasoning parser:
            when they are spent, the end tag is all that may follow. -1: no limit, as None.
        repetition_detection: end an output that repeats itself; may be a dict.
        spaces_between_special_tokens: a parameter of vLLM without effect, as in vLLM with a fast
            tokenizer.
        skip_clone: :meth:`clone` copies this object alone, and not its lists and dicts.
        flat_logprobs: return logprobs as :class:`~mini_vllm.logprobs.FlatLogprobs`: a few flat
            lists instead of a dict a token, read like a list of dicts.
        routed_experts_prompt_start: a parameter of vLLM; only 0 is supported.
        output_kind: what :class:`~mini_vllm.engine.async_llm.AsyncLLM` yields; ``LLM`` ignores it.
    """

    # fmt: off
    n: int = number_field(
        1, Integral, lambda v: 1 <= v <= MAX_N, f"between 1 and {MAX_N}",
        "leave it out for one completion",
        "completions per prompt; each becomes a request of its own (see `child_requests`)",
    )
    presence_penalty: float = number_field(
        0.0, Real, lambda v: -2 <= v <= 2, "between -2 and 2", "0 switches it off",
        "subtracted once from the logit of every token already in the output", shapes=True,
    )
    frequency_penalty: float = number_field(
        0.0, Real, lambda v: -2 <= v <= 2, "between -2 and 2", "0 switches it off",
        "subtracted once per occurrence in the output", shapes=True,
    )
    repetition_penalty: float = number_field(
        1.0, Real, lambda v: MIN_FLOAT32 <= v <= MAX_FLOAT32,
        f"finite and above 0, at least {MIN_FLOAT32:.2g}", "1 switches it off",
        "divides positive and multiplies negative logits of tokens that occur in the prompt or "
        "the output", shapes=True,
    )
    temperature: float = number_field(
        1.0, Real, lambda v: 0 <= v <= MAX_FLOAT32, "finite and at least 0", "0 means greedy",
        "divides the logits; 0 means greedy, and then top_p, top_k and min_p are off", shapes=True,
    )
    top_p: float = number_field(
        1.0, Real, lambda v: 0 < v <= 1, "above 0 and at most 1", "1 switches it off",
        "keep the smallest set of most probable tokens that reaches this mass", shapes=True,
    )
    top_k: int = number_field(
        0, Integral, lambda v: -1 <= v <= MAX_INT64, "at least 1", "0 or -1 switches it off",
        "keep this many most probable tokens", shapes=True,
    )
    min_p: float = number_field(
        0.0, Real, lambda v: 0 <= v <= 1, "between 0 and 1", "0 switches it off",
        "keep tokens at least this fraction as probable as the most probable one", shapes=True,
    )
    seed: int | None = number_field(
        None, Integral, lambda v: -(2**63) <= v < 2**64, "between -2**63 and 2**64 - 1",
        "leave it out for an unseeded request",
        "makes the request reproducible, whatever else runs beside it; -1 means None",
        optional=True,
    )
    # fmt: on
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    # fmt: off
    max_tokens: int | None = number_field(
        16, Integral, lambda v: 1 <= v <= MAX_INT64, "at least 1",
        "leave it out for the default of 16, or None for as many as fit",
        "most output tokens; None means up to the model's length", optional=True,
    )
    min_tokens: int = number_field(
        0, Integral, lambda v: 0 <= v <= MAX_INT64, "at least 0", "0 switches it off",
        "EOS, stop tokens and stop strings cannot end the request before this many",
    )
    logprobs: int | None = number_field(
        None, Integral, lambda v: -1 <= v <= MAX_INT64,
        "at least 0, or -1 for the whole vocabulary", "leave it out for none",
        "per output token, this many most likely tokens beside the sampled one; the engine's "
        "max_logprobs is the limit", optional=True,
    )
    prompt_logprobs: int | None = number_field(
        None, Integral, lambda v: -1 <= v <= MAX_INT64,
        "at least 0, or -1 for the whole vocabulary", "leave it out for none",
        "the same as logprobs for the tokens of the prompt", optional=True,
    )
    # fmt: on
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_clone: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    routed_experts_prompt_start: int = 0
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None

    # What follows is not vLLM's, whose parameters may be given by position.
    # fmt: off
    top_n_sigma: float = number_field(
        0.0, Real, lambda v: 0 <= v <= MAX_FLOAT32, "finite and at least 0", "0 switches it off",
        "keep tokens whose logit is at most this many standard deviations below the largest",
        shapes=True, kw_only=True,
    )
    # fmt: on
    bad_words_token_ids: list[list[int]] | None = field(default=None, kw_only=True)
    eos_token_ids: list[int] | None = field(default=None, kw_only=True)

    def __new__(cls, *args: Any, **kwargs: Any) -> SamplingParams:
        """Refuse an unknown keyword with a better message than that of the generated `__init__`."""
        if message := unknown_names(cls, kwargs):
            raise TypeError(message)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._normalise()
        for name, (kind, optional, legal, limit, fix, *_) in NUMBERS.items():
            value = check_scalar(name, getattr(self, name), kind, optional, legal, limit, fix)
            setattr(self, name, value)
        for name in _FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise bad_value(name, value, "it must be True or False")
        for name, (only, why) in _FIXED.items():
            if not isinstance(value := getattr(self, name), int) or value != only:
                raise bad_value(name, value, f"it must be {only}: {why}")
        self._check_lists()
        self._check_late_arrivals()
        self._check_combinations()
        self._settle_temperature()
        self._checked: dict[str, Any] | None = {
            name: value.copy() if isinstance(value, (list, dict)) else value
            for name, value in vars(self).items()
        }

    def _normalise(self) -> None:
        """Convert the values that vLLM accepts to one form each."""
        if isinstance(self.seed, Integral) and self.seed == -1:
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
                raise RequestError(message, param="structured_outputs")
            self.structured_outputs = StructuredOutputsParams(**self.structured_outputs)
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise bad_value(
                "structured_outputs",
                self.structured_outputs,
                "it must be StructuredOutputsParams(...), a dict or None",
            )

    def _check_lists(self) -> None:
        self.stop = check_list("stop", self.stop, str, "strings")
        self.stop_token_ids = check_token_ids("stop_token_ids", self.stop_token_ids)
        for text in self.stop:
            if not text:
                raise RequestError(
                    "stop holds an empty string, which is in every text; remove it", param="stop"
                )
            if not is_text(text):
                raise RequestError(
                    f"stop holds {show(text)}, half of a surrogate pair, which is in no text; "
                    "remove it",
                    param="stop",
                )
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = check_token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise RequestError(
                    "allowed_token_ids is empty, so no token could be sampled; "
                    "name at least one token or leave it out",
                    param="allowed_token_ids",
                )
        for name in ("logit_bias", "extra_args"):
            if not isinstance(value := getattr(self, name), dict | None):
                raise bad_value(name, value, "it must be a dict or None")
        if self.logit_bias is not None:
            self.logit_bias = {
                token_id: check_scalar(
                    f"logit_bias[{token_id}]", bias, Real, False,
                    lambda v: abs(v) <= MAX_FLOAT32, "finite", "-100 bans a token",
                )
                for token_id, bias in self.logit_bias.items()
            }  # fmt: skip

    def _check_late_arrivals(self) -> None:
        """Check the parameters that newer versions of vLLM have added."""
        self.bad_words = [] if self.bad_words is None else self.bad_words
        self.bad_words = check_list("bad_words", self.bad_words, str, "strings")
        for word in self.bad_words:
            if not word.strip() or not is_text(word):
                raise RequestError(
                    f"bad_words holds {show(word)}, which is no word; remove it", param="bad_words"
                )
        if self.bad_words_token_ids is not None:
            name = "bad_words_token_ids"
            words = check_list(name, self.bad_words_token_ids, list, "lists of token ids")
            self.bad_words_token_ids = [check_token_ids(name, word) for word in words]
            if [] in self.bad_words_token_ids:
                raise RequestError(
                    f"{name} holds an empty list, which is no word; remove it", param=name
                )
        if self.eos_token_ids is not None:
            self.eos_token_ids = check_token_ids("eos_token_ids", self.eos_token_ids)
        if self.logprob_token_ids is not None:
            named = check_token_ids("logprob_token_ids", self.logprob_token_ids)
            self.logprob_token_ids = named or None
        if self.skip_reading_prefix_cache is None:  # they need the logits of every prompt token
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None
        if not isinstance(self.skip_reading_prefix_cache, bool):
            raise bad_value(
                "skip_reading_prefix_cache",
                self.skip_reading_prefix_cache,
                "it must be True, False or None",
            )
        if (budget := self.thinking_token_budget) is not None:
            if not isinstance(budget, int) or isinstance(budget, bool) or budget < -1:
                raise bad_value("thinking_token_budget", budget, "it must be at least 0, or -1")
            self.thinking_token_budget = None if budget == -1 else budget
        if isinstance(self.repetition_detection, Mapping):
            if message := unknown_names(
                RepetitionDetectionParams, self.repetition_detection, "repetition parameter"
            ):
                raise RequestError(message, param="repetition_detection")
            self.repetition_detection = RepetitionDetectionParams(**self.repetition_detection)
        if not isinstance(self.repetition_detection, RepetitionDetectionParams | None):
            raise bad_value(
                "repetition_detection",
                self.repetition_detection,
                "it must be RepetitionDetectionParams(...), a dict or None",
            )

    def _check_combinations(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise bad_value(
                "min_tokens",
                self.min_tokens,
                f"it must be at most max_tokens, which is {self.max_tokens}; raise max_tokens or "
                "lower min_tokens",
            )
        if self.stop and not self.detokenize:
            raise RequestError(
                f"stop is {self.stop!r} but detokenize is False; stop strings are found in the "
                "text; set detokenize=True or use stop_token_ids",
                param="stop",
                value=self.stop,
            )
        if self.temperature == 0 and self.n > 1:
            raise RequestError(
                f"n is {self.n} with temperature 0; greedy completions would all be the same, "
                "so n must be 1; set n=1 or a temperature above 0",
                param="n",
                value=self.n,
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
        """Build from parsed JSON. Raises `ValueError` for an unknown key, with the most similar."""
        if message := unknown_names(cls, values):
            raise RequestError(message)
        return cls(**values)

    @staticmethod
    def from_optional(
        n: int | None = 1,
        presence_penalty: float | None = 0.0,
        frequency_penalty: float | None = 0.0,
        repetition_penalty: float | None = 1.0,
        temperature: float | None = 1.0,
        top_p: float | None = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        bad_words: list[str] | None = None,
        thinking_token_budget: int | None = None,
        include_stop_str_in_output: bool = False,
        ignore_eos: bool = False,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        detokenize: bool = True,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        structured_outputs: StructuredOutputsParams | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        allowed_token_ids: list[int] | None = None,
        extra_args: dict[str, Any] | None = None,
        skip_clone: bool = False,
        repetition_detection: RepetitionDetectionParams | None = None,
        **others: Unpack[OtherParams],
    ) -> SamplingParams:
        """Build from arguments that may be None, which means the field's default.

        The logit bias is clamped to ±100 first, as in OpenAI's API.

        Source: vllm/sampling_params.py#L324-L396 (SamplingParams.from_optional) @ v0.22.1
        """
        given = locals()
        given |= given.pop("others")
        if logit_bias:
            given["logit_bias"] = {
                int(token): min(100.0, max(-100.0, bias)) for token, bias in logit_bias.items()
            }
        penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
        for name in ("n", *penalties, "temperature", "top_p"):
            if given[name] is None:
                del given[name]
        return SamplingParams.from_dict(given)

    def clone(self) -> SamplingParams:
        """A deep copy that shares nothing with this object; with ``skip_clone`` a shallow one.

        Source: vllm/sampling_params.py#L658-L663 (SamplingParams.clone) @ v0.22.1
        """
        twin = copy.copy(self)
        if self.skip_clone:
            return twin
        for name, value in vars(self).items():
            if value is not None and not isinstance(value, (int, float, str)):
                setattr(twin, name, copy.deepcopy(value))
        return twin

    def check_changes(self) -> None:
        """Check the fields again, if one was set after the first check. For the engine's own copy.

        After that only the engine changes fields, without checks.
        """
        if self._checked is not None and self._checked != vars(self):
            self.__post_init__()
        self._checked = None

    def verify(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        This check needs the model, so the engine makes it when a request arrives.
        """
        names = ("stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids")
        given = [(name, getattr(self, name) or ()) for name in names]
        given += [("bad_words_token_ids", word) for word in self.bad_words_token_ids or ()]
        for name, token_ids in given:
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    raise RequestError(
                        f"{name} holds token {token_id}; token ids must be at least 0 and below "
                        f"the vocabulary size {vocab_size}; remove it",
                        param=name,
                    )

    @property
    def is_greedy(self) -> bool:
        """True when every token is the most likely one."""
        return self.temperature == 0

    @property
    def sampling_type(self) -> SamplingType:
        """Source: vllm/sampling_params.py#L627-L633 (SamplingParams.sampling_type) @ v0.22.1"""
        if self.is_greedy:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def num_logprobs(self) -> int | None:
        """Logprobs per output token beside the sampled one's; None: none at all.

        Source: vllm/sampling_params.py#L648-L656 (SamplingParams.num_logprobs) @ v0.22.1
        """
        if self.logprobs is not None:
            return self.logprobs
        return len(self.logprob_token_ids) if self.logprob_token_ids else None

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends the output, of ``eos_token_ids``; None with ``ignore_eos``."""
        return None if self.ignore_eos or not self.eos_token_ids else self.eos_token_ids[0]

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """`stop_token_ids` as a set, and the model's EOS tokens if the engine has filled them in.

        Source: vllm/sampling_params.py#L639-L641 (SamplingParams.all_stop_token_ids) @ v0.22.1
        """
        return frozenset((*(self.stop_token_ids or ()), *(self.eos_token_ids or ())))

    @property
    def wants_logprobs(self) -> bool:
        """Whether the output must have log probabilities."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    def update_from_generation_config(
        self, generation_config: Mapping[str, Any], eos_token_id: int | None = None
    ) -> None:
        """Have a model's end tokens end the output, unless ``ignore_eos``.

        The engine does so by itself; this is for scripts that run without one.

        Args:
            generation_config: its ``eos_token_id`` is a token, or a list of them.
            eos_token_id: the tokenizer's, which ends an output without being a stop token.

        Source: vllm/sampling_params.py#L556-L584 (SamplingParams.update_from_generation_config)
        @ v0.22.1
        """
        named = generation_config.get("eos_token_id")
        others = {named} if isinstance(named, int) else set(named or ())
        others.discard(eos_token_id)
        first = [] if eos_token_id is None else [eos_token_id]
        self.eos_token_ids = [*first, *sorted(others)] or None
        if others and not self.ignore_eos:
            self.stop_token_ids = sorted({*(self.stop_token_ids or ()), *others})

    def update_from_tokenizer(self, tokenizer: Any) -> None:
        """Tokenize `bad_words`: each at the beginning of a text, and after a space.

        Source: vllm/sampling_params.py#L586-L625 (SamplingParams.update_from_tokenizer) @ v0.22.1.
        Difference: there a word after a space is left out if it has another number of tokens.
        """
        if not self.bad_words:
            return
        self.bad_words_token_ids = spellings(self.bad_words, tokenizer)


NUMBERS: dict[str, Number] = {
    each.name: each.metadata["number"] for each in fields(SamplingParams) if each.metadata
}
"""The numeric parameters, by name."""
