"""Speculative decoding: the drafter, the number of drafts, and how they are accepted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import PurePath

from mini_vllm.config.checks import require_at_least, require_one_of

METHODS = ("ngram", "draft_model", "medusa", "eagle")
METHODS_WITH_KV = ("draft_model", "eagle")
"""Drafters with keys and values of their own, which need lookahead slots."""
DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
REJECTION_SAMPLE_METHODS = ("standard", "synthetic")
MAX_SPEC_LEN = 128
"""Most drafts a request may have in a step, as in vLLM."""
DEFAULT_LOOKUP = 5


@dataclass(frozen=True)
class SpeculativeConfig:
    """Speculative decoding, with vLLM's keys; missing values get defaults.

    Raises:
        ValueError: for a value out of range, or a key that the method does not read.

    Source: vllm/config/speculative.py#L74-L1088 (SpeculativeConfig) @ v0.22.1
    """

    num_speculative_tokens: int
    """k, the most draft tokens of a request in a step."""
    method: str | None = None
    """The drafter: "ngram" (the text itself), "draft_model", "medusa" or "eagle". None: "ngram" if
    that is the ``model``, else "draft_model"."""
    model: str | None = None
    """The drafter: a folder, or the name of a bundled one."""
    prompt_lookup_max: int | None = None
    """Longest n-gram to search for. Default: `prompt_lookup_min`, or 5 if that is not given."""
    prompt_lookup_min: int | None = None
    """Shortest n-gram to search for. Default: `prompt_lookup_max`."""
    max_model_len: int | None = None
    """Length of a text up to which the drafter proposes tokens; None: all its positions."""
    draft_sample_method: str = "greedy"
    """ "greedy": the drafter's most likely token. "probabilistic": sampled from its distribution at
    the request's temperature, which rejection sampling then takes into account."""
    rejection_sample_method: str = "standard"
    """ "standard": the model decides. "synthetic": drafts are accepted at given rates, whatever
    they are. The text is then wrong, but the speed can be measured."""
    synthetic_acceptance_rates: list[float] | None = None
    """For "synthetic": entry j is the probability that the first j + 1 drafts are accepted; entries
    must not increase."""
    synthetic_acceptance_length: float | None = None
    """For "synthetic", instead of the rates: mean tokens a step, between 1 and k + 1."""
    draft_tensor_parallel_size: int | None = None
    """Ranks of the drafter: only 1, because each rank of the model has the whole drafter."""
    tensor_parallel_size: int | None = None
    """Refused here: it belongs to the model, not to the drafter."""

    def __post_init__(self) -> None:
        self._check_num_tokens()
        self._resolve_method()
        self._resolve_lookup()
        require_one_of("draft_sample_method", self.draft_sample_method, DRAFT_SAMPLE_METHODS)
        require_one_of(
            "rejection_sample_method", self.rejection_sample_method, REJECTION_SAMPLE_METHODS
        )
        if self.draft_sample_method == "probabilistic" and self.method != "draft_model":
            raise ValueError(
                f"draft_sample_method is 'probabilistic', but method {self.method!r} chooses its "
                "drafts; only 'draft_model' can draw them; leave the key out"
            )
        if self.tensor_parallel_size is not None:
            raise ValueError(
                "speculative_config has tensor_parallel_size, which is the model's; the drafter's "
                "is draft_tensor_parallel_size; leave both out"
            )
        if self.draft_tensor_parallel_size not in (None, 1):
            raise ValueError(
                f"draft_tensor_parallel_size is {self.draft_tensor_parallel_size}; a drafter is "
                "small and not split; leave the key out"
            )
        if self.max_model_len is not None:
            require_at_least("max_model_len", self.max_model_len, 1, "or leave it out")
        self._resolve_synthetic()

    @property
    def num_lookahead_tokens(self) -> int:
        """KV slots that the drafter needs beyond the scheduled tokens.

        Source: vllm/v1/core/sched/scheduler.py#L211-L220 (Scheduler.__init__) @ v0.22.1
        """
        return self.num_speculative_tokens if self.method in METHODS_WITH_KV else 0

    @property
    def draws_drafts(self) -> bool:
        """Whether rejection sampling uses the distributions that drafts were sampled from."""
        return (
            self.draft_sample_method == "probabilistic"
            and self.rejection_sample_method == "standard"
        )

    @property
    def conditional_acceptance_rates(self) -> list[float] | None:
        """For "synthetic": probability that a draft is accepted if all drafts before it were."""
        rates = self.synthetic_acceptance_rates
        if rates is None:
            return None
        before = [1.0, *rates[:-1]]
        return [p / q if q > 0 else 0.0 for p, q in zip(rates, before, strict=True)]

    def _check_num_tokens(self) -> None:
        k = self.num_speculative_tokens
        require_at_least("num_speculative_tokens", k, 1, "or leave speculative_config out")
        if k > MAX_SPEC_LEN:
            raise ValueError(
                f"num_speculative_tokens is {k}; it must be at most {MAX_SPEC_LEN}; 4 is usual"
            )

    def _resolve_method(self) -> None:
        method = self.method
        if method is None:
            if self.model is None:
                raise ValueError(
                    "speculative_config has neither method nor model; name one of "
                    f"{', '.join(METHODS)}, or the folder of a draft model"
                )
            method = "ngram" if self.model in ("ngram", "[ngram]") else "draft_model"
        require_one_of("method", method, METHODS)
        if method == "ngram" and self.model not in (None, "ngram", "[ngram]"):
            raise ValueError(
                f"model is {self.model!r}, but method 'ngram' drafts from the text itself; leave "
                "model out, or use method 'draft_model'"
            )
        if not isinstance(self.model, str | PurePath | None):
            raise ValueError(f"model is {self.model!r}; it must be a folder or a model's name")
        if method != "ngram" and not self.model:
            raise ValueError(
                f"method {method!r} needs a model: a folder, or a bundled one such as "
                f"{_BUNDLED[method]!r}"
            )
        object.__setattr__(self, "method", method)

    def _resolve_lookup(self) -> None:
        longest, shortest = self.prompt_lookup_max, self.prompt_lookup_min
        if self.method != "ngram":
            for name in ("prompt_lookup_max", "prompt_lookup_min"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is set, but only method 'ngram' reads it; the method is "
                        f"{self.method!r}; leave it out"
                    )
            return
        longest = longest if longest is not None else shortest
        longest = DEFAULT_LOOKUP if longest is None else longest
        shortest = longest if shortest is None else shortest
        for name, value in (("prompt_lookup_max", longest), ("prompt_lookup_min", shortest)):
            require_at_least(name, value, 1, "a single token is the shortest n-gram")
        if shortest > longest:
            raise ValueError(
                f"prompt_lookup_min is {shortest} and prompt_lookup_max is {longest}; the shortest "
                "n-gram cannot be longer than the longest; swap them"
            )
        object.__setattr__(self, "prompt_lookup_max", longest)
        object.__setattr__(self, "prompt_lookup_min", shortest)

    def _resolve_synthetic(self) -> None:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if self.rejection_sample_method != "synthetic":
            for name in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is set, but rejection_sample_method is "
                        f"{self.rejection_sample_method!r}; set it to 'synthetic', or leave "
                        f"{name} out"
                    )
            return
        if (rates is None) == (length is None):
            raise ValueError(
                "rejection_sample_method 'synthetic' needs exactly one of "
                "synthetic_acceptance_rates and synthetic_acceptance_length"
            )
        k = self.num_speculative_tokens
        if length is not None:
            if not _is_number(length) or not 1 <= length <= k + 1:
                raise ValueError(
                    f"synthetic_acceptance_length is {length!r}; with num_speculative_tokens={k} "
                    f"it must be between 1 and {k + 1}"
                )
            rates = _rates_of_length(length, k)
        assert rates is not None
        _check_rates(rates, k)
        object.__setattr__(self, "synthetic_acceptance_rates", list(rates))


_BUNDLED = {
    "draft_model": "storyteller-draft",
    "medusa": "storyteller-medusa",
    "eagle": "storyteller-eagle",
}


def _rates_of_length(length: float, k: int) -> list[float]:
    """Rates by position whose sum is ``length - 1``: first ones, then the remainder, then zeros.

    Source: vllm/config/speculative.py#L211-L219 (SpeculativeConfig._acceptance_length_to_rates)
    @ v0.22.1
    """
    return [min(max(length - 1 - position, 0.0), 1.0) for position in range(k)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_rates(rates: list[float], k: int) -> None:
    name = "synthetic_acceptance_rates"
    if not isinstance(rates, list | tuple) or not all(map(_is_number, rates)):
        raise ValueError(f"{name} is {rates!r}; it must be a list of {k} numbers, one a draft")
    if len(rates) != k:
        raise ValueError(
            f"{name} has {len(rates)} numbers; with num_speculative_tokens={k} it must have {k}"
        )
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise ValueError(f"{name} is {rates}; each rate must be between 0 and 1")
    if any(later > earlier for earlier, later in itertools.pairwise(rates)):
        raise ValueError(f"{name} is {rates}; the rates must not rise: they are of whole prefixes")
