"""Counters of speculation, and the arithmetic of when it pays.

    a step drafts 4 tokens and 2 are accepted:   position  0 1 2 3
                                                 counted   1 1 0 0
    acceptance at position j: share of drafts of which the first j + 1 tokens were all accepted

Source: vllm/v1/spec_decode/metrics.py#L17-L45 (SpecDecodingStats) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SpecDecodingStats:
    """Totals over all verified drafts; a "draft" is one request's guesses in one step."""

    num_spec_tokens: int
    """k, the most tokens of one draft."""
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    """``[k]``."""

    @classmethod
    def new(cls, num_spec_tokens: int) -> SpecDecodingStats:
        return cls(num_spec_tokens, num_accepted_tokens_per_pos=[0] * num_spec_tokens)

    def observe_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one verified draft.

        Accepted are always the first tokens of it: so with two accepted, positions 0 and 1 count
        one more each.

        Source: vllm/v1/spec_decode/metrics.py#L39-L45 (SpecDecodingStats.observe_draft) @ v0.22.1
        """
        # TODO 08.11
        raise NotImplementedError(
            "TODO 08.11: write SpecDecodingStats.observe_draft in labs/08-spec-decode/metrics.py"
            " (phase 08, 02-mini-build.md#task-11)"
        )

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a verified draft brings on average, the target's own one included.

        Without any draft yet it is 1, what a step without speculation brings.

        Source: vllm/v1/spec_decode/metrics.py#L84-L97 (SpecDecodingLogging.log) @ v0.22.1
        """
        # TODO 08.11
        raise NotImplementedError(
            "TODO 08.11: write SpecDecodingStats.mean_acceptance_length in labs/08-spec-decode/metrics.py"
            " (phase 08, 02-mini-build.md#task-11)"
        )

    @property
    def acceptance_rates(self) -> list[float]:
        """``[k]``, by position: share of drafts that were accepted at least that far."""
        return [count / max(self.num_drafts, 1) for count in self.num_accepted_tokens_per_pos]

    def report(self) -> str:
        """A line for people: drafts, accepted drafts, and acceptance by position."""
        rates = " ".join(f"{rate:.2f}" for rate in self.acceptance_rates)
        return (
            f"drafts      {self.num_accepted_tokens} of {self.num_draft_tokens} tokens accepted, "
            f"{self.mean_acceptance_length:.2f} tokens a draft, by position {rates}"
        )


@dataclass(frozen=True)
class Counter:
    """A number that only grows. Source: vllm/v1/metrics/reader.py#L24-L28 (Counter) @ v0.22.1"""

    name: str
    value: int
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Vector:
    """Numbers that only grow, one a position.

    Source: vllm/v1/metrics/reader.py#L31-L39 (Vector) @ v0.22.1
    """

    name: str
    values: list[int]
    labels: dict[str, str] = field(default_factory=dict)


def metrics_of(stats: SpecDecodingStats) -> list[Counter | Vector]:
    """The counters under the names that vLLM gives them."""
    return [
        Counter("vllm:spec_decode_num_drafts", stats.num_drafts),
        Counter("vllm:spec_decode_num_draft_tokens", stats.num_draft_tokens),
        Counter("vllm:spec_decode_num_accepted_tokens", stats.num_accepted_tokens),
        Vector(
            "vllm:spec_decode_num_accepted_tokens_per_pos", list(stats.num_accepted_tokens_per_pos)
        ),
    ]


def expected_tokens_per_step(acceptance: float, k: int) -> float:
    """How many tokens a step brings if each of k drafts is accepted with the same probability.

    ::

        1 + a + a^2 + ... + a^k        the j-th draft counts if it and all before it are accepted

    Args:
        acceptance: a, in [0, 1]. With 1 all are accepted: k + 1.
        k: drafts a step.

    Source: Leviathan et al. 2022, arXiv 2211.17192, equation 1.
    """
    # TODO 08.11
    raise NotImplementedError(
        "TODO 08.11: write expected_tokens_per_step in labs/08-spec-decode/metrics.py"
        " (phase 08, 02-mini-build.md#task-11)"
    )


def speedup(acceptance: float, k: int, draft_cost: float, verify_cost: float) -> float:
    """Time of plain decoding over time with speculation, for the same text.

    A step drafts k tokens one after another, verifies all of them at once, and brings
    :func:`expected_tokens_per_step`. The unit of time is a plain decoding step.

    Args:
        acceptance: probability that a draft is accepted, in [0, 1].
        k: drafts a step.
        draft_cost: time to draft one token.
        verify_cost: time to verify k drafts, that is, to compute k + 1 tokens of each request.
            It is 1.0 only where reading the weights takes all the time, as for one request.

    Source: Leviathan et al. 2022, arXiv 2211.17192, theorem 3.8, which takes ``verify_cost`` as 1.
    """
    # TODO 08.11
    raise NotImplementedError(
        "TODO 08.11: write speedup in labs/08-spec-decode/metrics.py"
        " (phase 08, 02-mini-build.md#task-11)"
    )
