"""Texts as tokens, cut where that is asked for.

Source: vllm/renderers/params.py#L266-L440 (TokenizeParams) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.inputs import PromptType
from mini_vllm.param_checks import check_context
from mini_vllm.pooling_params import PoolingParams

SIDES = (None, "left", "right")
AS_IT_IS: dict[str, tuple[Any, ...]] = {
    "truncation": (False, None, "do_not_truncate"),
    "padding": (False, None, "do_not_pad"),
}
"""Words of transformers that ask for what is so anyway."""


@dataclass(frozen=True)
class Tokenization:
    """How texts are cut into tokens.

    Attributes:
        truncate_prompt_tokens: most tokens of a prompt; -1: as many as the model reads; None: a
            longer prompt is refused.
        truncation_side: "right" keeps the first tokens, "left" the last; None: as the tokenizer
            says, and its special tokens stay.
        add_special_tokens: such as an end of text, which some models pool.
    """

    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    add_special_tokens: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Tokenization:
        """From vLLM's ``tokenization_kwargs``, in its words or in those of transformers.

        Raises:
            ValueError: for an option that there is not, or a length without ``truncation``.

        Source: vllm/renderers/params.py#L236-L272 (TokenizeParams.with_kwargs) @ v0.22.1
        """
        options = dict(options or {})
        if options.get("truncation") in (True, "longest_first"):
            del options["truncation"]
            options["truncate_prompt_tokens"] = options.pop("max_length", -1)
        for name, neutral in AS_IT_IS.items():
            if options.get(name, neutral[0]) in neutral:
                options.pop(name, None)
        for name in options:
            if name not in cls.__dataclass_fields__:
                raise ValueError(
                    f"tokenization_kwargs has {name}={show(options[name])}; known are "
                    f"{', '.join(cls.__dataclass_fields__)}"
                )
        return cls(**options)

    def cut_by(self, params: PoolingParams) -> Tokenization:
        """The same, with the limit that a request's parameters have, if they have one."""
        keep = params.truncate_prompt_tokens
        return self if keep is None else replace(self, truncate_prompt_tokens=keep)

    def check(self, max_model_len: int) -> None:
        """Raises ValueError for more tokens than the model reads, or a side that there is not."""
        keep, side = self.truncate_prompt_tokens, self.truncation_side
        if side not in SIDES:
            raise bad_value("truncation_side", side, "it must be 'left' or 'right'")
        if keep is not None and not (type(keep) is int and -1 <= keep <= max_model_len):
            raise RequestError(
                f"truncate_prompt_tokens value is {show(keep)}; it must be at least -1, and must "
                f"not be greater than max_model_len={max_model_len}. Please request a smaller "
                "truncation size.",
                param="truncate_prompt_tokens",
                value=keep,
            )


class PromptTokenizer:
    """Tokenizes the prompts of a model that generates, in the way that a caller asks for.

    Args:
        processor: of the engine; tokenizes what is not to be cut.
        max_model_len: tokens that the model reads and writes.
    """

    least_output = 1
    """Tokens for which there must be room behind a prompt."""
    side: str | None = "left"
    """Where a prompt is cut if its caller does not say: a model goes on at the end, so the end
    stays. None: where the tokenizer cuts."""

    def __init__(self, processor: Any, max_model_len: int) -> None:
        self.processor, self.max_model_len = processor, max_model_len
        self.tokenizer = processor.tokenizer

    def tokenize(self, prompt: PromptType, how: Tokenization) -> list[int]:
        """The prompt's token ids.

        Raises:
            ValueError: for what is no prompt, or text without a tokenizer; a
                :class:`~mini_vllm.errors.RequestError` for one that is too long.
        """
        how.check(self.max_model_len)
        keep = self._keep(how)
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        has_ids = isinstance(prompt, Mapping) and prompt.get("prompt_token_ids") is not None
        if has_ids or not isinstance(text, str) or self.tokenizer is None:
            return self._cut(self.processor.tokenize(prompt), how, keep)
        if keep is None:
            self.processor.check_length(text)
        if keep is None and how.add_special_tokens:
            return self.processor.tokenize(text)
        return self._encode([text], how, keep)

    def _keep(self, how: Tokenization) -> int | None:
        keep = how.truncate_prompt_tokens
        return self.max_model_len - self.least_output if keep == -1 else keep

    def _encode(self, texts: Sequence[str], how: Tokenization, keep: int | None) -> list[int]:
        """One text, or a pair. The tokenizer cuts by itself, and keeps its special tokens."""
        cuts = keep is not None and keep > 0 and (how.truncation_side or self.side) is None
        options = {"truncation": True, "max_length": keep} if cuts else {}
        try:
            found = self.tokenizer(*texts, add_special_tokens=how.add_special_tokens, **options)
        except Exception as error:  # a pair, of which one text alone is not long enough to be cut
            raise ValueError(f"the texts cannot be cut to {keep} tokens: {error}") from error
        token_ids = list(found["input_ids"])
        if keep and how.truncation_side is None and self.side == "left":
            token_ids = self._shorter_behind_its_begin(token_ids, keep)
        return self._cut(token_ids, how, keep)

    def _cut(self, token_ids: list[int], how: Tokenization, keep: int | None) -> list[int]:
        if keep is not None and keep < len(token_ids):
            own = getattr(self.tokenizer, "truncation_side", "right")
            side = how.truncation_side or self.side or own
            token_ids = token_ids[len(token_ids) - keep :] if side == "left" else token_ids[:keep]
        check_context(self.max_model_len, len(token_ids), least_output=self.least_output)
        return token_ids

    def _shorter_behind_its_begin(self, token_ids: list[int], keep: int) -> list[int]:
        """The last tokens of a text, and the token that begins each text, if there is one.

        So does a tokenizer that cuts at the left by itself; only one for all can be set to.
        """
        begin = getattr(self.tokenizer, "bos_token_id", None)
        if len(token_ids) <= keep or token_ids[0] != begin:
            return token_ids
        return token_ids[:1] + token_ids[len(token_ids) - keep + 1 :]
