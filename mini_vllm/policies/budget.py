"""What a step of vLLM V0 may spend: tokens to compute, and sequences side by side."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SchedulingBudget:
    """Keeps the account of one step, request by request, so that an entry can be taken back.

    Tokens that the prefix cache supplies are counted, but they cost nothing.
    """

    token_budget: int
    max_num_seqs: int
    num_batched_tokens: int = 0
    """Tokens that this step computes."""
    num_cached_tokens: int = 0
    """Tokens that the prefix cache saved this step."""
    _tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    _seqs: set[str] = field(default_factory=set)

    @property
    def num_curr_seqs(self) -> int:
        """Sequences that hold a row of the batch."""
        return len(self._seqs)

    def remaining_token_budget(self) -> int:
        return self.token_budget - self.num_batched_tokens

    def can_schedule(self, num_new_tokens: int, num_new_seqs: int) -> bool:
        """Whether so many more tokens and sequences are within the limits."""
        return (
            num_new_tokens <= self.remaining_token_budget()
            and self.num_curr_seqs + num_new_seqs <= self.max_num_seqs
        )

    def add_tokens(self, request_id: str, num_tokens: int, num_cached_tokens: int = 0) -> None:
        """Charge ``num_tokens``, and note what the cache supplied besides."""
        self._tokens[request_id] = (num_tokens, num_cached_tokens)
        self.num_batched_tokens += num_tokens
        self.num_cached_tokens += num_cached_tokens

    def add_seq(self, request_id: str) -> None:
        """Give a request a row; adding it twice is the same as once."""
        self._seqs.add(request_id)

    def remove(self, request_id: str) -> None:
        """Take back all that was charged for a request."""
        num_tokens, num_cached_tokens = self._tokens.pop(request_id, (0, 0))
        self.num_batched_tokens -= num_tokens
        self.num_cached_tokens -= num_cached_tokens
        self._seqs.discard(request_id)
