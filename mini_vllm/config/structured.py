"""Settings of structured outputs and of reasoning."""

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
    """"native": ours; "xgrammar": the library; "auto": for each request one that supports it."""
    disable_any_whitespace: bool = False
    """Allow no white space in JSON; else at most a line break and an indent in each place."""
    disable_additional_properties: bool = True
    """If a schema has ``properties`` but no ``additionalProperties``, allow no other properties, as
    vLLM's default backend does. False: allow them, as the standard says."""
    reasoning_parser: str = ""
    """How the model marks its reasoning: a name of vLLM such as "qwen3", or a pair of tags such as
    "<plan>...</plan>"; "": reasoning is part of the text. Structured outputs constrain the answer
    only, not the reasoning."""
    enable_in_reasoning: bool = False
    """Let structured outputs constrain the reasoning, too."""

    def __post_init__(self) -> None:
        require_one_of("backend", self.backend, BACKENDS)
        for name in (
            "disable_any_whitespace", "disable_additional_properties", "enable_in_reasoning",
        ):  # fmt: skip
            require_flag(name, getattr(self, name))
        if self.reasoning_parser:
            reasoning_format(self.reasoning_parser)
