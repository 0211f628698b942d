"""Reasoning formats: the tags around a model's reasoning.

::

    <think>Oslo is north.</think>It is cold.
           └─ reasoning ─┘        └ content ┘

:class:`~mini_vllm.entrypoints.openai.reasoning_parser.ReasoningParser` splits the text. This module
is for the engine and its front ends. It has the tags, by the names of vLLM's parsers, and finds
where an answer begins: the prompt may already have opened the reasoning, or closed it.

Source: vllm/reasoning/basic_parsers.py#L18-L201 (BaseThinkingReasoningParser) @ v0.22.1
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm.errors import show

SWITCHES = ("enable_thinking", "thinking")
"""Arguments of chat templates that turn thinking on or off."""
BETWEEN = "..."
"""Placeholder of the reasoning in a pair of tags: ``<plan>...</plan>``."""


class Beginning(enum.Enum):
    """Where an answer begins."""

    INSIDE = "inside the reasoning"
    OUTSIDE = "outside: only a start tag opens the reasoning"
    BEHIND = "behind the reasoning: the prompt has closed it"


@dataclass(frozen=True)
class ReasoningFormat:
    """The tags of a model.

    Attributes:
        start: may be missing in an answer, because many prompts end with it.
        end: the content begins after it.
        call: begins a tool call, which also ends the reasoning if the model omits the end tag.
        is_default: whether the model thinks by default.

    Raises:
        ValueError: for empty tags, or tags that can overlap.
    """

    start: str = "<think>"
    end: str = "</think>"
    call: str | None = None
    is_default: bool = True

    def __post_init__(self) -> None:
        overlap = any(self.start.endswith(self.end[:n]) for n in range(1, len(self.end) + 1))
        if not self.start or not self.end or overlap:
            raise ValueError(
                f"the tags {show(self.start)} and {show(self.end)} must be two texts, and the "
                "first may not end as the second begins"
            )

    def is_wanted(self, template_kwargs: Mapping[str, Any]) -> bool:
        """Whether thinking is turned on by these arguments of the chat template."""
        given = [
            template_kwargs[name] for name in SWITCHES if template_kwargs.get(name) is not None
        ]
        return any(given) if given else self.is_default

    def beginning(self, turn: bytes, is_wanted: bool = True, continues: bool = True) -> Beginning:
        """Where the answer to a prompt begins: its last tag says so, or if it has none, the wish.

        Args:
            turn: the end of the prompt; see :func:`last_turn`.
            is_wanted: see :meth:`is_wanted`.
            continues: the turn may hold a part of the answer. If not, tags count at its very end
                only, where a template puts them: others belong to messages of before.

        Source: vllm/reasoning/poolside_v1_reasoning_parser.py#L51-L69
        (PoolsideV1ReasoningParser.is_reasoning_end) @ v0.22.1, which looks at the current turn;
        other parsers of vLLM's take a tag of any turn for one of this.
        """
        start, end, turn = self.start.encode(), self.end.encode(), turn.rstrip()
        places = [(turn.rfind(tag), tag) for tag in (start, end)]
        if not continues:
            places = [(len(turn), tag) for _, tag in places if turn.endswith(tag)]
        place, tag = max(places, default=(-1, b""))
        if place < 0:
            return Beginning.INSIDE if is_wanted else Beginning.OUTSIDE
        return Beginning.INSIDE if tag == start else Beginning.BEHIND


THINK = ReasoningFormat()
QWEN3 = ReasoningFormat(call="<tool_call>")
ASKED = ReasoningFormat(is_default=False)
FORMATS = {
    "deepseek_r1": THINK,
    "deepseek_v3": ASKED,
    "deepseek_v4": ASKED,
    "glm45": THINK,
    "holo2": THINK,
    "kimi_k2": ReasoningFormat(call="<|tool_calls_section_begin|>"),
    "mimo": QWEN3,
    "minimax_m2": THINK,
    "nemotron_v3": THINK,
    "olmo3": THINK,
    "poolside_v1": ASKED,
    "qwen3": QWEN3,
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "step3": THINK,
}
"""vLLM's reasoning parsers that are a plain pair of tags.

Source: vllm/reasoning/__init__.py#L22-L123 (_REASONING_PARSERS_TO_REGISTER) @ v0.22.1
"""
OTHERS = (
    "cohere_command3", "cohere_command4", "ernie45", "gemma4", "granite", "hunyuan_a13b", "hy_v3",
    "minimax_m2_append_think", "mistral", "openai_gptoss", "step3p5",
)  # fmt: skip
"""vLLM's other reasoning parsers, which are not supported."""


def reasoning_format(name: str) -> ReasoningFormat:
    """The tags of one of vLLM's parsers, or a given pair of tags: ``<plan>...</plan>``.

    Raises:
        ValueError: for an unknown name, with all known ones.
    """
    is_text = isinstance(name, str)
    if is_text and name in FORMATS:
        return FORMATS[name]
    start, dots, end = name.partition(BETWEEN) if is_text else ("", "", "")
    if dots:
        return ReasoningFormat(start, end)
    is_theirs = is_text and name in OTHERS
    why = " is vLLM's, and more than a pair of tags" if is_theirs else " is not known"
    raise ValueError(
        f"reasoning_parser {show(name)}{why}; it must be {', '.join(FORMATS)}, or a pair of tags "
        f"such as '<plan>{BETWEEN}</plan>'"
    )


def last_turn(
    token_ids: Sequence[int],
    texts: Sequence[bytes],
    special: Mapping[int, bytes],
    form: ReasoningFormat,
) -> bytes:
    """What stands in a prompt behind its last special token: the turn that an answer goes on with.

    Args:
        texts: of each token what it adds to a text; b"" for special ones.
        special: how special tokens are spelled. A tag may be one; it ends no turn.
    """
    tags = (form.start.encode(), form.end.encode())
    pieces: list[bytes] = []
    for token_id in reversed(token_ids):
        piece = texts[token_id] if token_id < len(texts) else b""
        if not piece:
            piece = special.get(token_id, b"")
            if piece not in tags:
                break
        pieces.append(piece)
    return b"".join(reversed(pieces))
