"""Texts of pooling models as tokens: shortened, and put together in pairs.

Source: vllm/renderers/params.py#L266-L440 (TokenizeParams) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.engine.chat_template import render_chat
from mini_vllm.engine.tokenization import PromptTokenizer
from mini_vllm.engine.tokenization import Tokenization as Tokenization
from mini_vllm.errors import RequestError, show
from mini_vllm.pooling.config import PoolingArgs

RESERVED = ("chat_template", "tools", "tokenize")


class PoolingTokenizer(PromptTokenizer):
    """Tokenizes the prompts of a pooling model, which writes nothing."""

    least_output = 0
    side = None

    @property
    def args(self) -> PoolingArgs:
        assert self.processor.pooling is not None, "the model generates"
        return self.processor.pooling

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
