"""Who guesses tokens ahead, how many, and how guesses are judged."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_one_of

METHODS = ("ngram", "draft_model", "medusa", "eagle")


@dataclass(frozen=True)
class SpeculativeConfig:
    """Speculative decoding.

    Source: vllm/config/speculative.py#L74-L262 (SpeculativeConfig) @ v0.22.1
    """

    num_speculative_tokens: int
    """Tokens guessed ahead for each request in every step."""
    method: str | None = None
    """One of `METHODS`. None: "ngram" if that is the model's name, else "draft_model"."""
    model: str | None = None
    """The model, or the heads, that guess: a folder or a bundled name."""
    prompt_lookup_max: int | None = None
    """Longest run of tokens to look for; with "ngram"."""
    prompt_lookup_min: int | None = None

    def __post_init__(self) -> None:
        require_at_least(
            "num_speculative_tokens", self.num_speculative_tokens, 1, "leave the section out"
        )
        if self.method is not None:
            require_one_of("method", self.method, METHODS)
