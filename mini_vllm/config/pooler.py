"""How a pooling model reduces the hidden states of a prompt to its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of
from mini_vllm.errors import show

SEQ_POOLING_TYPES = ("LAST", "CLS", "MEAN")
"""One vector for a prompt: that of its last token, of its first, or the mean of all."""
TOK_POOLING_TYPES = ("ALL", "STEP")
"""One vector for each token, or only for tokens with the id `step_tag_id`."""
POOLING_TASKS = ("embed", "classify", "token_embed", "token_classify")
RUNNERS = ("auto", "generate", "pooling")
CONVERTS = ("auto", "none", "embed", "classify")


@dataclass(frozen=True)
class PoolerConfig:
    """Pooling, with vLLM's keys; missing values are read from the model's folder.

    Raises:
        ValueError: for a value out of range, or two names of the same setting.

    Source: vllm/config/pooler.py#L20-L171 (PoolerConfig) @ v0.22.1
    """

    task: str | None = None
    """Default task of requests: "embed", "classify", "token_embed" or "token_classify"; None: the
    first that the model supports."""
    pooling_type: str | None = None
    """Sets one of the next two: "LAST", "CLS", "MEAN", "ALL" or "STEP"."""
    seq_pooling_type: str | None = None
    """How a prompt becomes one vector: "LAST", "CLS" or "MEAN"; None: as the folder says, or
    "LAST"."""
    tok_pooling_type: str | None = None
    """Which tokens have a vector in the result: "ALL", or "STEP"; None: "ALL"."""
    use_activation: bool | None = None
    """Whether embeddings are normalised to length 1, and logits become probabilities; None: as the
    folder says, or True."""
    dimensions: int | None = None
    """Dimensions of an embedding; None: all. Only for Matryoshka models."""
    logit_mean: float | None = None
    """Subtracted from logits before the activation."""
    logit_sigma: float | None = None
    """After `logit_mean` is subtracted, logits are divided by this."""
    logit_bias: float | None = None
    """vLLM's older name of `logit_mean`."""
    logit_scale: float | None = None
    """In older versions of vLLM: 1 / `logit_sigma`."""
    normalize: bool | None = None
    """vLLM's older name of `use_activation`, for embeddings."""
    step_tag_id: int | None = None
    """For "STEP": id of the tokens whose vectors are returned; None: all tokens."""
    returned_token_ids: Sequence[int] | None = None
    """For "STEP": the entries of a vector that are returned; None: all."""

    def __post_init__(self) -> None:
        if self.task is not None:
            require_one_of("task", self.task, POOLING_TASKS)
        self._resolve("logit_mean", "logit_bias", self.logit_bias)
        if self.logit_scale is not None:
            _check_not_zero("logit_scale", self.logit_scale)
            self._resolve("logit_sigma", "logit_scale", 1.0 / self.logit_scale)
        self._resolve("use_activation", "normalize", self.normalize)
        if self.logit_sigma is not None:
            _check_not_zero("logit_sigma", self.logit_sigma)
        if self.pooling_type is not None:
            require_one_of("pooling_type", self.pooling_type, SEQ_POOLING_TYPES + TOK_POOLING_TYPES)
            kind = "seq" if self.pooling_type in SEQ_POOLING_TYPES else "tok"
            self._resolve(f"{kind}_pooling_type", "pooling_type", self.pooling_type)
        if self.seq_pooling_type is not None:
            require_one_of("seq_pooling_type", self.seq_pooling_type, SEQ_POOLING_TYPES)
        if self.tok_pooling_type is not None:
            require_one_of("tok_pooling_type", self.tok_pooling_type, TOK_POOLING_TYPES)
        if self.use_activation is not None:
            require_flag("use_activation", self.use_activation)
        if self.dimensions is not None:
            require_at_least("dimensions", self.dimensions, 1, "leave it out for all")

    def _resolve(self, name: str, other: str, value: object) -> None:
        """Set `name` to `value` if the key is given by its other name, and set `other` to None."""
        if getattr(self, other) is None:
            return
        if getattr(self, name) is not None:
            raise ValueError(
                f"pooler_config has {other}={show(getattr(self, other))} and "
                f"{name}={show(getattr(self, name))}, which say the same; leave {other} out"
            )
        object.__setattr__(self, name, value)
        object.__setattr__(self, other, None)


def _check_not_zero(name: str, value: float) -> None:
    if value == 0:
        raise ValueError(f"{name} is 0; logits are divided by it; leave it out for 1")
