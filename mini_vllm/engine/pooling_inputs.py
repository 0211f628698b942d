"""Texts of pooling models as tokens: cut where that is asked for, and put together in pairs.

Source: vllm/renderers/params.py#L266-L440 (TokenizeParams) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_vllm.engine.chat_template import render_chat
from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.inputs import PromptType
from mini_vllm.param_checks import check_context
from mini_vllm.pooling.config import PoolingArgs
from mini_vllm.pooling_params import PoolingParams

SIDES = (None, "left", "right")
AS_IT_IS: dict[str, tuple[Any, ...]] = {
    "truncation": (False, None, "do_not_truncate"),
    "padding": (False, None, "do_not_pad"),
}
"""Words of transformers that ask for what is so anyway."""
RESERVED = ("chat_template", "tools", "tokenize")


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


class PoolingTokenizer:
    """Tokenizes the prompts of a pooling model.

    Args:
        processor: of the engine; tokenizes what is not to be cut.
        max_model_len: tokens that the model reads.
    """

    def __init__(self, processor: Any, max_model_len: int) -> None:
        self.processor, self.max_model_len = processor, max_model_len
        self.tokenizer = processor.tokenizer

    @property
    def args(self) -> PoolingArgs:
        assert self.processor.pooling is not None, "the model generates"
        return self.processor.pooling

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

    def pair(self, texts: Sequence[str], how: Tokenization) -> list[int]:
        """The tokens of a query and a document as the model was trained to read them together."""
        how.check(self.max_model_len)
        keep = self._keep(how)
        if keep is None:
            self.processor.check_length("".join(texts))
        parts = list(texts) if self.args.use_sep_token else ["".join(texts)]
        return self._encode(parts, how, keep)

    def templated(
        self,
        query: str,
        document: str,
        template: str,
        options: Mapping[str, Any],
        how: Tokenization,
    ) -> list[int]:
        """The same by a chat template, which has the roles "query" and "document"."""
        if taken := [name for name in RESERVED if name in options]:
            raise ValueError(
                "chat_template_kwargs contains reserved keys that conflict with fixed scorer "
                f"arguments: {taken}"
            )
        roles = {"query": query, "document": document}
        messages = [{"role": role, "content": text} for role, text in roles.items()]
        text = render_chat(
            self.tokenizer, messages, template=template, add_generation_prompt=False, **options
        )
        return self.tokenize(text, how)

    def shorten(self, text: str, most: int) -> str:
        """The text of its first tokens, cut where a token ends."""
        if most < 1:
            return text
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        if len(found["input_ids"]) <= most:
            return text
        return text[: found["offset_mapping"][most - 1][1]]

    def check_most(self, name: str, most: Any) -> None:
        """Raises ValueError for a limit of a query or document that cannot be."""
        if type(most) is not int or not 0 <= most < self.max_model_len:
            raise RequestError(
                f"{name} ({show(most)}) must be a non-negative integer, less than max_model_len "
                f"({self.max_model_len}).",
                param=name,
                value=most,
            )

    def _keep(self, how: Tokenization) -> int | None:
        keep = how.truncate_prompt_tokens
        return self.max_model_len if keep == -1 else keep

    def _encode(self, texts: Sequence[str], how: Tokenization, keep: int | None) -> list[int]:
        """One text, or a pair. The tokenizer cuts by itself, and keeps its special tokens."""
        cuts = keep is not None and keep > 0 and how.truncation_side is None
        options = {"truncation": True, "max_length": keep} if cuts else {}
        try:
            found = self.tokenizer(*texts, add_special_tokens=how.add_special_tokens, **options)
        except Exception as error:  # a pair, of which one text alone is not long enough to be cut
            raise ValueError(f"the texts cannot be cut to {keep} tokens: {error}") from error
        return self._cut(list(found["input_ids"]), how, keep)

    def _cut(self, token_ids: list[int], how: Tokenization, keep: int | None) -> list[int]:
        if keep is not None and keep < len(token_ids):
            side = how.truncation_side or getattr(self.tokenizer, "truncation_side", "right")
            token_ids = token_ids[len(token_ids) - keep :] if side == "left" else token_ids[:keep]
        check_context(self.max_model_len, len(token_ids), least_output=0)
        return token_ids
