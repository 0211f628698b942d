"""The fields of requests to pooling models. Unknown ones are accepted and ignored.

Source: vllm/entrypoints/pooling/base/protocol.py#L19-L305 (PoolingBasicRequestMixin) @ v0.22.1
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mini_vllm.engine.pooling_inputs import Tokenization
from mini_vllm.entrypoints.openai.protocol import MOST_SALT, Lenient, Many
from mini_vllm.pooling_params import PoolingParams


class PoolingBasicRequest(Lenient):
    """Fields that all of them share."""

    model: str | None = None
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1)
    truncation_side: Literal["left", "right"] | None = None
    request_id: str | None = None
    priority: int = 0
    cache_salt: str | None = Field(default=None, max_length=MOST_SALT)
    use_activation: bool | None = None
    normalize: bool | None = None
    activation: bool | None = None
    """``normalize`` and ``activation`` are older names of ``use_activation``."""

    @property
    def activates(self) -> bool | None:
        named = (self.use_activation, self.normalize, self.activation)
        return next((value for value in named if value is not None), None)

    def tokenization(self, add_special_tokens: bool = True) -> Tokenization:
        return Tokenization(self.truncate_prompt_tokens, self.truncation_side, add_special_tokens)


class InputRequest(PoolingBasicRequest):
    """Prompts, or a conversation."""

    input: str | Many[str] | Many[int] | Many[Many[int]] | None = None
    messages: Many[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """Default: True for ``input``, False for ``messages``, whose template adds the tokens."""
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class EncodingRequest(InputRequest):
    """How numbers are encoded in the answer."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] = "float32"
    endianness: Literal["native", "big", "little"] = "native"
    dimensions: int | None = None


class EmbeddingRequest(EncodingRequest):
    """``POST /v1/embeddings``."""

    def params(self) -> PoolingParams:
        return PoolingParams(self.activates, self.dimensions, task="embed")


class ClassificationRequest(InputRequest):
    """``POST /classify``."""

    def params(self) -> PoolingParams:
        return PoolingParams(self.activates, task="classify")


class PoolingRequest(EncodingRequest):
    """``POST /pooling``."""

    task: str | None = None

    def params(self) -> PoolingParams:
        return PoolingParams(self.activates, self.dimensions, task=self.task)


class CohereEmbedRequest(Lenient):
    """``POST /v2/embed``, as in Cohere's API.

    Source: vllm/entrypoints/pooling/embed/protocol.py#L111-L121 (CohereEmbedRequest) @ v0.22.1
    """

    model: str | None = None
    input_type: str | None = None
    """The name of one of the model's instructions, which is put before each text."""
    texts: Many[str] | None = None
    images: Many[str] | None = None
    inputs: Many[dict[str, Any]] | None = None
    output_dimension: int | None = None
    embedding_types: Many[Literal["float", "binary", "ubinary", "base64"]] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: int | None = Field(default=None, ge=1)
    priority: int = 0

    def cut(self) -> dict[str, Any]:
        """The truncation, in the fields of :class:`InputRequest`."""
        if self.truncate == "NONE":
            return {}
        keep = -1 if self.max_tokens is None else self.max_tokens
        side = "left" if self.truncate == "START" else None
        return {"truncate_prompt_tokens": keep, "truncation_side": side}

    def params(self) -> PoolingParams:
        return PoolingParams(dimensions=self.output_dimension, task="embed")


class ScoringRequest(PoolingBasicRequest):
    """Pairs of texts."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    instruction: str | None = None
    """The same as the entry of this name in ``chat_template_kwargs``."""
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        own = {} if self.instruction is None else {"instruction": self.instruction}
        return own | (self.chat_template_kwargs or {})


Texts = str | Many[str | dict[str, Any]] | dict[str, Any]
"""One text or several, each a string or ``{"text": ...}``. In vLLM other objects are images; here
they are refused."""


class ScoreRequest(ScoringRequest):
    """``POST /score``: the two texts have four pairs of names."""

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None


class RerankRequest(ScoringRequest):
    """``POST /rerank``, as in the APIs of Jina and Cohere."""

    query: str | dict[str, Any]
    documents: Texts
    top_n: int = 0
    """Number of results; 0 or less: all."""
    return_documents: bool = True
    """A field of Cohere and Jina, which has no effect in vLLM."""
