"""Splits a model's text into reasoning and content, while the text still grows.

::

    so far     "<think>Oslo is north.</thi"     reasoning "Oslo is north.", held "</thi"
               "<think>Oslo is north.</thinking" ... it was no tag: reasoning goes on

The same parser reads whole answers, as a stream of one piece. So the result does not depend on how
a stream is split. Tags are searched in the text, whatever tokens they consist of.

Source: vllm/reasoning/basic_parsers.py#L92-L178
(BaseThinkingReasoningParser.extract_reasoning_streaming) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.engine.vocabulary import MOST_PARTS, Vocabulary
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.required_tools import AnswerParser, join_news
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.entrypoints.openai.tool_parser import ToolCall, partial_tag_overlap
from mini_vllm.reasoning import Beginning, ReasoningFormat, last_turn


class ReasoningParser:
    """Reads one answer.

    Args:
        form: the model's tags.
        beginning: where the answer begins.

    Attributes:
        is_answering: the reasoning has ended, or there is none: all further text is content.
        _may_start: whether a start tag may still come.
        _held: text that is not sent yet.
    """

    def __init__(self, form: ReasoningFormat, beginning: Beginning = Beginning.INSIDE) -> None:
        self.form, self.beginning = form, beginning
        self.is_answering = beginning is Beginning.BEHIND
        self._may_start = not self.is_answering
        self._held = ""

    def extract_streaming(self, delta: str) -> dict[str, str]:
        """The news that ``delta`` brings: "reasoning", "content", both in this order, or {}.

        No text of the news is empty.

        1. While ``is_answering``, ``delta`` is content, whatever tags it holds.
        2. Otherwise it is put behind what is held. While a start tag may come, `_pass_start` looks
           for it; as long as it cannot tell, there is no news.
        3. If that has found an answer without a thought, all that was held is content.
        4. Otherwise `_read_thought` tells what is certain.
        """
        # TODO 14.14
        raise NotImplementedError(
            "TODO 14.14: write ReasoningParser.extract_streaming in labs/14-serving/reasoning_parser.py"
            " (phase 14, 02-mini-build.md#task-14)"
        )

    def finish(self) -> dict[str, str]:
        """What was held back, now that nothing more will come; {} if that is nothing.

        It is content if the answer has begun, or if it began OUTSIDE and no start tag has come.
        Otherwise it is reasoning, the beginning of a tag included.
        """
        # TODO 14.14
        raise NotImplementedError(
            "TODO 14.14: write ReasoningParser.finish in labs/14-serving/reasoning_parser.py"
            " (phase 14, 02-mini-build.md#task-14)"
        )

    def extract_reasoning(self, text: str) -> tuple[str | None, str | None]:
        """Reasoning and content of a whole text; None for one that is not there."""
        news = join_news(self.extract_streaming(text), self.finish())
        return news.get("reasoning"), news.get("content")

    def _pass_start(self) -> bool:
        """Whether it is known how the held text begins; a start tag is passed over.

        It is not known while the held text, without the white space before it, is nothing or the
        beginning of the start tag. When it is known:

        - the start tag, and white space before it, leave the held text;
        - without a start tag all of the text stays, and ``is_answering`` if it began OUTSIDE;
        - no start tag is looked for any more.
        """
        # TODO 14.14
        raise NotImplementedError(
            "TODO 14.14: write ReasoningParser._pass_start in labs/14-serving/reasoning_parser.py"
            " (phase 14, 02-mini-build.md#task-14)"
        )

    def _read_thought(self) -> dict[str, str]:
        """The news of the held text, which is inside the reasoning.

        The first of ``form.end`` and ``form.call``, if there is one, ends the reasoning. All behind
        it is content, and nothing is held. The end tag belongs to neither text; a call's tag is
        the first of the content, for another parser reads the call.

        Without a tag the text is reasoning, but for the end that may begin a tag: it is held, as
        much as :func:`partial_tag_overlap` says of the tag of which it may be more.
        """
        # TODO 14.14
        raise NotImplementedError(
            "TODO 14.14: write ReasoningParser._read_thought in labs/14-serving/reasoning_parser.py"
            " (phase 14, 02-mini-build.md#task-14)"
        )


class ReasoningAnswerParser:
    """Splits off the reasoning, and passes the content after it to another parser, for tool calls.

    Args:
        includes: False leaves the reasoning out.
    """

    def __init__(
        self, reasoning: ReasoningParser, answer: AnswerParser, includes: bool = True
    ) -> None:
        self.reasoning, self.answer, self.includes = reasoning, answer, includes

    @property
    def calls(self) -> list[ToolCall]:
        return self.answer.calls

    @property
    def are_whole(self) -> bool:
        return self.answer.are_whole

    def extract_streaming(self, delta: str) -> dict[str, Any]:
        return self._read(self.reasoning.extract_streaming(delta))

    def finish(self) -> dict[str, Any]:
        return join_news(self._read(self.reasoning.finish()), self.answer.finish())

    def _read(self, cut: dict[str, str]) -> dict[str, Any]:
        reasoning, content = cut.get("reasoning"), cut.get("content")
        news: dict[str, Any] = {"reasoning": reasoning} if reasoning and self.includes else {}
        return news | (self.answer.extract_streaming(content) if content else {})


def beginning_of(
    state: ServerState, request: ChatCompletionRequest, token_ids: Sequence[int]
) -> Beginning | None:
    """Where the answer begins after a prompt of these tokens. None without a reasoning format or
    without a vocabulary.

    An answer that continues a message begins outside, unless that message has a tag.
    """
    form, vocabulary = state.reasoning, state.vocabulary
    if form is None or vocabulary is None:
        return None
    turn = last_turn(token_ids, vocabulary.texts, vocabulary.special, form)
    is_new = request.add_generation_prompt
    is_wanted = is_new and form.is_wanted(state.template_kwargs(request))
    return form.beginning(turn, is_wanted, continues=not is_new)


def count_reasoning_tokens(
    parser: ReasoningParser, token_ids: Sequence[int], vocabulary: Vocabulary
) -> int:
    """How many tokens of an answer begin inside its reasoning; those of tags do not.

    Args:
        parser: a new parser of the answer.

    Source: vllm/reasoning/basic_parsers.py#L183-L201
    (BaseThinkingReasoningParser.count_reasoning_tokens) @ v0.22.1, which does not count reasoning
    whose start tag is in the prompt.
    """
    form = parser.form
    tags = (form.start.encode(), form.end.encode())
    names = [
        vocabulary.name(token_id, token_ids[max(index - MOST_PARTS, 0) : index])
        if vocabulary.is_text(token_id) or vocabulary.bytes_of(token_id) in tags
        else ""
        for index, token_id in enumerate(token_ids)
    ]
    text = "".join(names)
    reasoning, _ = parser.extract_reasoning(text)
    if not reasoning:
        return 0
    first = len(text) - len(text.lstrip())
    first = first + len(form.start) if text.startswith(form.start, first) else 0
    count = place = 0
    for name in names:
        count += first <= place < first + len(reasoning)
        place += len(name)
    return count
