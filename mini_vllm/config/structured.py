"""Which library turns a schema into a grammar, and how loosely."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import require_flag, require_one_of
from mini_vllm.reasoning import reasoning_format

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
    reasoning_parser: str = ""
    """How the model writes what it thinks before it answers: a name of vLLM's such as "qwen3", or
    a pair of tags such as "<plan>...</plan>"; "": it is part of the text. The answer has the form
    of structured outputs, the reasoning is free."""
    enable_in_reasoning: bool = False
    """Let the reasoning have the form of structured outputs, too."""

    def __post_init__(self) -> None:
        require_one_of("backend", self.backend, BACKENDS)
        for name in (
            "disable_any_whitespace", "disable_additional_properties", "enable_in_reasoning",
        ):  # fmt: skip
            require_flag(name, getattr(self, name))
        if self.reasoning_parser:
            reasoning_format(self.reasoning_parser)
