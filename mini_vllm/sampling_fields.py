"""Types of the sampling parameters, and the declaration of numeric ones.

`mini_vllm.sampling_params` exports them under vLLM's names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from numbers import Integral, Real
from typing import Any, NamedTuple, TypedDict

from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.param_checks import MAX_FLOAT32, MAX_INT64, MAX_N, check_scalar


class RequestOutputKind(IntEnum):
    """Which outputs of a request an online engine yields.

    Source: vllm/sampling_params.py#L151-L157 (RequestOutputKind) @ v0.22.1
    """

    CUMULATIVE = 0
    """Each time, the whole output so far."""
    DELTA = 1
    """Each time, only the new part."""
    FINAL_ONLY = 2
    """One output at the end."""

    @classmethod
    def _missing_(cls, value: object) -> RequestOutputKind:
        names = ", ".join(f"RequestOutputKind.{kind.name}" for kind in cls)
        raise bad_value("output_kind", value, f"it must be one of {names}")


class SamplingType(IntEnum):
    """How tokens are chosen.

    Source: vllm/sampling_params.py#L33-L36 (SamplingType) @ v0.22.1
    """

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2
    """Random, with a seed of the request's own."""


class Number(NamedTuple):
    """The declaration of a numeric parameter, for checks, the protocol, the command line and the
    documentation. Comparisons with NaN are false, so NaN is out of every range."""

    kind: type
    """Integral or Real."""
    optional: bool
    """Whether it may be None."""
    legal: Callable[[Any], bool]
    limit: str
    """``legal``, in words."""
    fix: str
    """What to do about a value out of range, such as how to switch it off."""
    about: str
    """What the parameter does."""
    shapes: bool
    """Whether it changes the sampling distribution. Such parameters are options of ``bench serve``,
    too."""

    @property
    def plain(self) -> type[int] | type[float]:
        """Its type in JSON and on a command line."""
        return int if self.kind is Integral else float


def number_field(
    default: float | None,
    kind: type,
    legal: Callable[[Any], bool],
    limit: str,
    fix: str,
    about: str,
    optional: bool = False,
    shapes: bool = False,
    kw_only: bool = False,
) -> Any:
    """A field for one number, with its declaration."""
    declared = Number(kind, optional, legal, limit, fix, about, shapes)
    return field(default=default, metadata={"number": declared}, kw_only=kw_only)


@dataclass
class RepetitionDetectionParams:
    """Ends a request whose output ends in repeated copies of one pattern of tokens.

    Attributes:
        max_pattern_size: tokens of the longest pattern to search; 0 switches it off.
        min_pattern_size: tokens of the shortest pattern; 0 means 1.
        min_count: number of consecutive copies that ends the request.

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
                raise bad_value(
                    name, value, "it must be a whole number", param="repetition_detection"
                )
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise RequestError(
                f"min_pattern_size is {self.min_pattern_size} and max_pattern_size "
                f"{self.max_pattern_size}; neither may be negative, nor the first above the "
                "second",
                param="repetition_detection",
                fix="set both to 0 to switch repetition_detection off",
            )
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise bad_value(
                "min_count",
                self.min_count,
                "a repetition has at least 2 copies",
                param="repetition_detection",
                fix="set max_pattern_size to 0 to switch repetition_detection off",
            )


class OtherParams(TypedDict, total=False):
    """The fields of :class:`SamplingParams` that :meth:`SamplingParams.from_optional` takes by name
    only, for type checkers; `tests/engine/test_sampling_params.py` holds that none is missing."""

    logprob_token_ids: list[int] | None
    flat_logprobs: bool
    routed_experts_prompt_start: int
    skip_reading_prefix_cache: bool | None
    top_n_sigma: float
    bad_words_token_ids: list[list[int]] | None
    eos_token_ids: list[int] | None


@dataclass
class BeamSearchParams:
    """Parameters of :meth:`~mini_vllm.engine.llm.LLM.beam_search`, and of a server's beam search.

    Attributes:
        beam_width: number of texts that are kept in each step, and returned.
        max_tokens: most tokens of each, after the prompt.
        ignore_eos: treat the model's end-of-sequence tokens like other tokens.
        length_penalty: a text's log probability is divided by its length to this power; values
            above 0 favour longer texts, below 0 shorter ones.
        temperature: without effect, as in vLLM: texts are ranked by the model's own probabilities.
        include_stop_str_in_output: whether a server's answer includes the end token.
            :attr:`BeamSearchSequence.tokens` always does.

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
            ("temperature", Real, lambda v: 0 <= v <= MAX_FLOAT32, "finite and at least 0",
             "beams are not drawn; leave it out"),
        ):  # fmt: skip
            value = check_scalar(name, getattr(self, name), kind, False, legal, limit, fix)
            setattr(self, name, value)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"{name} is {show(getattr(self, name))}; it must be True or False", param=name
                )


def derive_seed(engine_seed: int, request_number: int) -> int:
    """The seed of a request without one, from the engine's seed and the order of arrival.

    So a run with the same requests in the same order is reproducible, whatever the schedule.

    Args:
        engine_seed: the engine's seed.
        request_number: how many requests arrived before this one.
    """
    digest = hashlib.blake2b(f"{engine_seed}:{request_number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
