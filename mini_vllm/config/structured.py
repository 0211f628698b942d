"""Which library turns a schema into a grammar, and how loosely."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import require_flag, require_one_of

BACKENDS = ("auto", "native", "xgrammar")


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """Structured output.

    Source: vllm/config/structured_outputs.py#L18-L74 (StructuredOutputsConfig) @ v0.22.1
    """

    backend: str = "auto"
    """"native": ours; "xgrammar": the library; "auto": for each request the one that can."""
    disable_any_whitespace: bool = False
    """Allow no white space in JSON; else at most a line break and an indent in each place."""
    disable_additional_properties: bool = True
    """Read a schema's object with ``properties``, and no word about others, as having no others.
    So does vLLM's default backend; False is what the standard says."""

    def __post_init__(self) -> None:
        require_one_of("backend", self.backend, BACKENDS)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            require_flag(name, getattr(self, name))
