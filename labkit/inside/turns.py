"""A chat template out of plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

STRIPS: dict[str, Callable[[str], str]] = {"": str, "both": str.strip, "left": str.lstrip}


class Template:
    """Writes turns between tags, in which a name stands behind the role.

    Args:
        strips: where contents lose their spaces: nowhere, "both" or "left".
        cuts: how many characters of each content are left out.
        bare: whether there are no tags, only contents.
    """

    def __init__(self, strips: str = "", cuts: int = 0, bare: bool = False) -> None:
        self.strips, self.cuts, self.bare, self.num_calls = strips, cuts, bare, 0

    def __call__(self, messages: Sequence[Mapping[str, Any]], opens_a_turn: bool) -> str:
        self.num_calls += 1
        text = ""
        for message in messages:
            content = STRIPS[self.strips](str(message.get("content"))[self.cuts :])
            if self.bare:
                text += content
                continue
            text += f"<{message['role']}{message.get('name', '')}>{content}<end>\n"
        return text + "<assistant>" * opens_a_turn
