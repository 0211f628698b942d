"""Outputs of pooling models, with vLLM's names.

Source: vllm/outputs.py#L54-L333 (PoolingOutput, PoolingRequestOutput) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


class Pooled(Protocol):
    """A pooled request in the engine's front end: a :class:`~mini_vllm.outputs.RequestOutput`."""

    request_id: str
    prompt_token_ids: list[int]
    num_cached_tokens: int
    pooled: Any


@dataclass(slots=True, eq=False)
class PoolingOutput:
    """The pooled result of a prompt.

    Attributes:
        data: ``[D]`` float32: an embedding, or probabilities of classes. For a token task:
            ``[tokens, D]``.
    """

    data: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and bool((self.data == other.data).all())


@dataclass(slots=True)
class EmbeddingOutput:
    """An embedding, as a list of numbers."""

    embedding: list[float]

    @staticmethod
    def from_base(pooling_output: PoolingOutput) -> EmbeddingOutput:
        """Raises ValueError for what is no single vector."""
        return EmbeddingOutput(_vector(pooling_output, "embedding"))

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass(slots=True)
class ClassificationOutput:
    """The probability of each class; with ``use_activation=False`` its logit."""

    probs: list[float]

    @staticmethod
    def from_base(pooling_output: PoolingOutput) -> ClassificationOutput:
        """Raises ValueError for what is no single vector."""
        return ClassificationOutput(_vector(pooling_output, "probability"))

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


@dataclass(slots=True)
class ScoringOutput:
    """The similarity or relevance of two texts: larger is better."""

    score: float

    @staticmethod
    def from_base(pooling_output: PoolingOutput) -> ScoringOutput:
        """Raises ValueError unless the data is a single number."""
        data = pooling_output.data.squeeze()
        if data.ndim != 0:
            raise ValueError("pooled_data should be a scalar score")
        return ScoringOutput(data.item())


def _vector(pooling_output: PoolingOutput, noun: str) -> list[float]:
    data = pooling_output.data
    if data.ndim != 1:
        raise ValueError(f"pooled_data should be a 1-D {noun} vector")
    return data.tolist()


O = TypeVar("O")  # noqa: E741  (of its kind of output)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[O]):
    """A prompt and its pooled result.

    Attributes:
        request_id: chosen by the engine, or its caller.
        outputs: the single result; a prompt is pooled once.
        prompt_token_ids: the prompt as tokens.
        num_cached_tokens: prompt tokens whose KV was in the prefix cache.
        finished: True.
    """

    request_id: str
    outputs: O
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True

    @classmethod
    def of(cls, output: Pooled) -> PoolingRequestOutput[PoolingOutput]:
        """The output of a pooled request that has finished without an error."""
        import torch

        return PoolingRequestOutput(
            output.request_id,
            PoolingOutput(torch.from_numpy(output.pooled.copy())),
            output.prompt_token_ids,
            output.num_cached_tokens,
        )


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A prompt and its embedding."""

    @staticmethod
    def from_base(request_output: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        outputs = EmbeddingOutput.from_base(request_output.outputs)
        return EmbeddingRequestOutput(*_rest(request_output, outputs))


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A prompt and the probabilities of its classes."""

    @staticmethod
    def from_base(
        request_output: PoolingRequestOutput[PoolingOutput],
    ) -> ClassificationRequestOutput:
        outputs = ClassificationOutput.from_base(request_output.outputs)
        return ClassificationRequestOutput(*_rest(request_output, outputs))


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """A pair of texts and its score."""

    @staticmethod
    def from_base(request_output: PoolingRequestOutput[PoolingOutput]) -> ScoringRequestOutput:
        outputs = ScoringOutput.from_base(request_output.outputs)
        return ScoringRequestOutput(*_rest(request_output, outputs))


def _rest(of: PoolingRequestOutput[PoolingOutput], outputs: O) -> tuple[str, O, list[int], int]:
    """The fields of another type of output for the same request."""
    return of.request_id, outputs, of.prompt_token_ids, of.num_cached_tokens
