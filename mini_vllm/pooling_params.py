"""Parameters of a request to a pooling model, with vLLM's names, defaults and meanings.

This module imports no torch, because the scheduler and the command line import it, too.

Source: vllm/pooling_params.py#L37-L230 (PoolingParams) @ v0.22.1
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from mini_vllm.config.pooler import POOLING_TASKS, PoolerConfig
from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.sampling_params import RequestOutputKind

OF_STEP = ("step_tag_id", "returned_token_ids")


class PoolingModel(Protocol):
    """The model that parameters are checked for: a
    :class:`~mini_vllm.pooling.config.PoolingArgs`."""

    @property
    def name(self) -> str: ...
    @property
    def pooler(self) -> PoolerConfig: ...
    @property
    def tasks(self) -> tuple[str, ...]: ...
    @property
    def task(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def embedding_size(self) -> int: ...
    @property
    def is_matryoshka(self) -> bool: ...
    @property
    def matryoshka_dimensions(self) -> tuple[int, ...]: ...
    @property
    def dense(self) -> tuple[Any, ...]: ...
    def pooling_type(self, task: str) -> str: ...
    def needs_all_tokens(self, task: str) -> bool: ...


@dataclass
class PoolingParams:
    """How one prompt is pooled.

    Attributes:
        use_activation: normalise an embedding to length 1, or turn logits into probabilities;
            None: as the model's configuration says.
        dimensions: dimensions of an embedding, for a Matryoshka model.
        step_tag_id, returned_token_ids: for "STEP" pooling: the token whose vectors are returned,
            and the entries of a vector.
        task: "embed", "classify", "token_embed" or "token_classify"; None: the model's default.
        requires_token_ids: a parameter of vLLM, without effect here.
        skip_reading_prefix_cache: compute every token of the prompt; None: only if the task needs
            the hidden states of all tokens.
        late_interaction_params: a parameter of vLLM; only None: late interaction is computed where
            the answer is made.
        extra_kwargs: ``max_tokens_per_query`` and ``max_tokens_per_doc`` of
            :meth:`~mini_vllm.engine.llm.LLM.score`.
        output_kind: only FINAL_ONLY, because there is one output.
        truncate_prompt_tokens: most tokens of the prompt; -1: as many as fit. (In newer versions of
            vLLM it is in ``tokenization_kwargs``.)
        normalize: vLLM's older name of ``use_activation``, for embeddings.

    Raises:
        ValueError: for an invalid value.
    """

    n: ClassVar[int] = 1
    """A prompt is pooled once."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Any = None
    extra_kwargs: dict[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY
    truncate_prompt_tokens: int | None = None
    normalize: bool | None = None

    def __post_init__(self) -> None:
        if self.output_kind != RequestOutputKind.FINAL_ONLY:
            raise ValueError(
                "For pooling output_kind has to be FINAL_ONLY, "
                f"got {RequestOutputKind(self.output_kind)!r}"
            )
        if self.normalize is not None:
            if self.use_activation not in (None, self.normalize):
                raise ValueError(
                    f"normalize is {show(self.normalize)} and use_activation is "
                    f"{show(self.use_activation)}, which say the same; leave normalize out"
                )
            self.use_activation, self.normalize = self.normalize, None
        if self.task is not None and self.task not in POOLING_TASKS:
            raise ValueError(f"Unknown pooling task: {show(self.task)}; {_one_of(POOLING_TASKS)}")
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if not isinstance(value := getattr(self, name), bool | None):
                raise bad_value(name, value, "it must be True, False or None")
        for name, least in (("dimensions", 1), ("step_tag_id", 0), ("truncate_prompt_tokens", -1)):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and least <= value < 2**63):
                raise bad_value(name, value, f"it must be a whole number of at least {least}")
        if self.late_interaction_params is not None:
            raise bad_value(
                "late_interaction_params",
                self.late_interaction_params,
                "late interaction is computed where the answer is made; leave it out",
            )
        if not isinstance(self.extra_kwargs, Mapping | None):
            raise ValueError(f"extra_kwargs is {show(self.extra_kwargs)}; it must be a dict")

    def clone(self) -> PoolingParams:
        """A deep copy."""
        return copy.deepcopy(self)

    def verify(self, model: PoolingModel) -> None:
        """Fill in defaults, and refuse what the model does not support.

        Raises:
            ValueError: for a task that the model does not have, a parameter that the task does not
                have, or dimensions that the model was not trained for.

        Source: vllm/pooling_params.py#L78-L208 (PoolingParams.verify) @ v0.22.1
        """
        self.__post_init__()  # its fields may have been set since it was made
        self.task = self.task or model.task
        if self.task not in model.tasks:
            raise ValueError(f"Unsupported task: {self.task!r} Supported tasks: {model.tasks}")
        config, embeds = model.pooler, self.task in ("embed", "token_embed")
        if self.use_activation is None:
            self.use_activation = config.use_activation is not False
        if embeds:
            self.dimensions = config.dimensions if self.dimensions is None else self.dimensions
            self._check_dimensions(model)
        elif self.dimensions is not None:
            raise RequestError(
                f"Task {self.task!r} only supports ['use_activation'] parameters, does not support "
                "['dimensions'] parameters",
                param="dimensions",
                value=self.dimensions,
            )
        self._settle_steps(model)
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = model.needs_all_tokens(self.task)
        elif model.needs_all_tokens(self.task) and not self.skip_reading_prefix_cache:
            raise RequestError(
                f"skip_reading_prefix_cache is False; {self.task!r} with "
                f"{model.pooling_type(self.task)} pooling needs the hidden states of all tokens, "
                "and the prefix cache keeps keys and values only; leave it out",
                param="skip_reading_prefix_cache",
            )

    def _check_dimensions(self, model: PoolingModel) -> None:
        wanted = self.dimensions
        if wanted is None:
            return
        if not model.is_matryoshka:
            message = (
                f'Model "{model.name}" does not support matryoshka representation, '
                "changing output dimensions will lead to poor results."
            )
        elif model.matryoshka_dimensions and wanted not in model.matryoshka_dimensions:
            message = (
                f"Model {model.name!r} only supports {list(model.matryoshka_dimensions)} "
                "matryoshka dimensions, use other output dimensions will lead to poor results."
            )
        elif wanted > model.embedding_size:
            message = (
                f"dimensions is {wanted}; the embeddings of {model.name!r} have "
                f"{model.embedding_size} numbers; ask for fewer, or leave it out for all"
            )
        else:
            return
        raise RequestError(message, param="dimensions", value=wanted)

    def _settle_steps(self, model: PoolingModel) -> None:
        if model.pooling_type(self.task or "") == "STEP":
            for name in OF_STEP:
                if getattr(self, name) is None:
                    setattr(self, name, getattr(model.pooler, name))
            given = self.returned_token_ids
            size = 0 if model.dense else model.hidden_size  # a projector needs all of them
            if given is not None and not all(type(i) is int and 0 <= i < size for i in given):
                raise ValueError(
                    f"returned_token_ids is {show(given)}; it must be a list of entries of a "
                    f"hidden state, of which {size} may be chosen, from 0 on"
                )
        elif names := [name for name in OF_STEP if getattr(self, name) is not None]:
            raise ValueError(
                f"{names[0]} is {show(getattr(self, names[0]))}; only pooling_type 'STEP' reads "
                "it; leave it out, or set pooler_config={'pooling_type': 'STEP'}"
            )


def _one_of(names: tuple[str, ...]) -> str:
    return f"it must be one of {', '.join(names)}"
