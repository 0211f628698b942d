"""Which library turns a schema into a grammar, and how loosely."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import require_one_of

BACKENDS = ("auto", "native", "xgrammar")


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """Structured output.

    Source: vllm/config/structured_outputs.py#L18-L74 (StructuredOutputsConfig) @ v0.22.1
    """

    backend: str = "auto"
    """"native": ours; "xgrammar": the library; "auto": for each request the one that can."""
    disable_any_whitespace: bool = False
    """Allow no white space in JSON beyond what a compact dump has."""

    def __post_init__(self) -> None:
        require_one_of("backend", self.backend, BACKENDS)
