"""Whether a model pools, and how: by the files of its folder and the user's options.

    config.json                 architectures, num_labels, id2label, is_matryoshka, ...
    modules.json                sentence-transformers: the steps after the decoder
    1_Pooling/config.json       last token, first token, or mean
    2_Normalize                 embeddings have length 1
    3_Dense/config.json         a linear layer

This module imports no torch.

Source: vllm/config/model.py#L902-L1000 (ModelConfig._get_runner_type) @ v0.22.1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.errors import show
from mini_vllm.model.config import config_file, read_config, with_overrides
from mini_vllm.model.families import CLASSIFIES, EMBEDS
from mini_vllm.pooling.sentence_transformers import (
    Dense,
    dense_of,
    instructions_of,
    pooler_of,
    read_steps,
)

TASKS = {"embed": ("embed", "token_embed"), "classify": ("classify", "token_classify")}
"""Tasks of a model, by its conversion; the first is the default."""
ENCODERS = re.compile(
    r".*(Bert|BERT|Roberta|RoBERTa|Electra|Mpnet|MPNet|DebertaV?2?|Albert|GteNew|NomicBert|T5Encoder)"
    r"(Lexical)?(For\w+|Model|EncoderModel)?$"
)
"""Architectures of common embedding models that are encoders."""
LOOKS_AHEAD = (
    "each token looks at those behind it, too, so no part of a prompt can be computed before the "
    "rest; attention, chunks and prefix hits of this engine are a causal decoder's"
)
HEAD_METHODS = ("from_2_way_softmax", "no_post_processing")
ACTIVATIONS = {"Identity": "identity", "Sigmoid": "probabilities", "Softmax": "probabilities"}
"""Activations in a classifier's config. Probabilities are a sigmoid of one logit, or a softmax."""


@dataclass(frozen=True)
class PoolingArgs:
    """Arguments of a pooling model, beside those of its decoder
    (:class:`~mini_vllm.model.config.ModelArgs`)."""

    name: str
    """The model's name in error messages."""
    convert: str
    """ "embed" or "classify"."""
    pooler: PoolerConfig
    """With both pooling types set."""
    hidden_size: int
    labels: tuple[str, ...] = ()
    """Names of a classifier's classes."""
    activation: str = "normalize"
    """ "normalize", "probabilities", "sigmoid" (of each class alone) or "identity"."""
    classifier_from_token: tuple[str, ...] = ()
    """For a classifier without its own weights: words whose rows of the language model's head it
    uses."""
    method: str | None = None
    """ "from_2_way_softmax": row of the second word minus row of the first, whose sigmoid is the
    probability of the second among the two. "no_post_processing": the rows unchanged."""
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    use_sep_token: bool = True
    """Whether the tokenizer gets query and document as a pair, or as one text."""
    dense: tuple[Dense, ...] = ()
    instructions: Mapping[str, str] = field(default_factory=dict)
    """Instructions before a text, by its purpose, such as "query"."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return TASKS[self.convert]

    @property
    def task(self) -> str:
        """The task of requests without one."""
        return self.pooler.task or self.tasks[0]

    @property
    def embedding_size(self) -> int:
        """Dimensions of an embedding."""
        return self.dense[-1].out_features if self.dense else self.hidden_size

    def pooling_type(self, task: str) -> str:
        """ "LAST", "CLS", "MEAN", "ALL" or "STEP". "token_classify" is always for all tokens."""
        kinds = {
            "token_embed": self.pooler.tok_pooling_type,
            "token_classify": "ALL",
        }
        return kinds.get(task, self.pooler.seq_pooling_type) or "LAST"

    @staticmethod
    def gives_one(task: str) -> bool:
        """Whether the result is one vector for a prompt, and not one for each token."""
        return not task.startswith("token_")

    def needs_all_tokens(self, task: str) -> bool:
        """Whether hidden states of more than the last token are needed. Then every token must be
        computed, because the prefix cache has no hidden states."""
        return self.pooling_type(task) != "LAST"

    @property
    def score_type(self) -> str | None:
        """How two texts are compared; None if the model cannot compare texts.

        Source: vllm/tasks.py#L19-L24 (SCORE_TYPE_MAP) @ v0.22.1
        """
        types = {"embed": "bi-encoder", "token_embed": "late-interaction"}
        if self.task == "classify" and len(self.labels) == 1:
            return "cross-encoder"
        return types.get(self.task)


def settle_runner(config: EngineConfig) -> EngineConfig:
    """The configuration with values for `runner`, `convert` and `pooler_config`.

    Raises:
        ValueError: for a runner or a conversion that the model does not support, or unsupported
            steps of sentence-transformers.
    """
    model = config.model
    entries = _entries(config)
    natural = _natural_convert(entries)
    _check_decoder(entries, str(config_file(model.model)))
    steps = read_steps(Path(model.model))
    runner, convert = model.runner, model.convert
    if runner == "auto":
        asks = convert in ("embed", "classify")
        pools = asks or (convert == "auto" and steps is not None) or natural != "none"
        runner = "pooling" if pools else "generate"
    _check_runner(config, runner, convert, natural)
    if runner == "generate":
        return replace(config, model=replace(model, runner=runner, convert="none"))
    if convert == "auto":
        convert = "embed" if natural == "none" else natural
    if entries.get("is_causal") is False:
        raise ValueError(
            f"{config_file(model.model)}: is_causal is false: {LOOKS_AHEAD}; choose a model whose "
            "embeddings are those of a causal decoder"
        )
    given = config.pooler or PoolerConfig()
    own = pooler_of(steps or [], Path(model.model), given)
    pooler = replace(
        given,
        seq_pooling_type=given.seq_pooling_type or own.seq_pooling_type or "LAST",
        tok_pooling_type=given.tok_pooling_type or "ALL",
        use_activation=own.use_activation if given.use_activation is None else given.use_activation,
    )
    if pooler.task is not None and pooler.task not in TASKS[convert]:
        raise ValueError(
            f"Unsupported task: {pooler.task!r} Supported tasks: {TASKS[convert]}; set another in "
            "pooler_config, or convert"
        )
    return replace(config, model=replace(model, runner=runner, convert=convert), pooler=pooler)


def load_pooling_args(config: EngineConfig) -> PoolingArgs | None:
    """The arguments of a pooling model; None for a model that generates. The configuration must
    come from :func:`settle_runner`.

    Raises:
        ValueError: for a bad value, with its file and entry.
    """
    model = config.model
    if not model.pools:
        return None
    assert config.pooler is not None, "settle_runner comes first"
    entries, path = _entries(config), str(config_file(model.model))
    common = PoolingArgs(
        Path(model.model).name, model.convert, config.pooler, entries["hidden_size"]
    )
    if model.convert == "embed":
        dimensions = _list(entries, "matryoshka_dimensions", int, path)
        return replace(
            common,
            is_matryoshka=bool(dimensions) or entries.get("is_matryoshka") is True,
            matryoshka_dimensions=dimensions,
            dense=dense_of(Path(model.model)),
            instructions=instructions_of(Path(model.model), entries),
        )
    words, method = _head_method(entries, path)
    return replace(
        common,
        labels=_labels(entries, words, method, path),
        activation=_activation(entries, path),
        classifier_from_token=words,
        method=method,
        use_sep_token=bool(entries.get("use_sep_token", method is None)),
    )


def _entries(config: EngineConfig) -> dict[str, Any]:
    """Entries of `config.json`, overridden by those of its `text_config`."""
    model = config.model
    entries = with_overrides(read_config(model.model), model.hf_overrides or {})
    text = entries.get("text_config")
    return {**entries, **text} if isinstance(text, Mapping) else entries


def _natural_convert(entries: Mapping[str, Any]) -> str:
    """The conversion by a model's architecture: "embed", "classify", or "none" for text generation.

    Source: vllm/config/model.py#L1919-L1958 (_SUFFIX_TO_DEFAULTS) @ v0.22.1
    """
    names = entries.get("architectures") or [""]
    name = names[0] if isinstance(names, list) else ""
    for suffixes, convert in ((CLASSIFIES, "classify"), (EMBEDS, "embed")):
        if isinstance(name, str) and name.endswith(suffixes):
            return convert
    return "none"


def _check_runner(config: EngineConfig, runner: str, convert: str, natural: str) -> None:
    where = config_file(config.model.model)
    if runner == "generate":
        if natural != "none":
            raise ValueError(
                f"This model does not support `--runner generate`. {where} is that of a model "
                f"without a language model's head; use runner='pooling', or leave it out"
            )
        if convert not in ("auto", "none"):
            raise ValueError(
                f"convert is {convert!r} and runner 'generate'; it says what a model becomes for "
                "runner='pooling'; leave one of the two out"
            )
    elif convert == "none" and natural == "none":
        raise ValueError(
            "This model does not support `--runner pooling`. You can pass `--convert "
            "<embed|classify>` to adapt it into a pooling model."
        )


def _check_decoder(entries: Mapping[str, Any], path: str) -> None:
    """Raise ValueError, with the reason, for known encoders."""
    names = entries.get("architectures")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and ENCODERS.match(name):
            raise ValueError(
                f"{path}: {name} is an encoder: {LOOKS_AHEAD}; choose an embedding model with a "
                "decoder, such as Qwen3-Embedding"
            )


def _list(entries: Mapping[str, Any], key: str, kind: type, path: str) -> tuple[Any, ...]:
    values = entries.get(key) or []
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise ValueError(f"{path}: {key} is {show(values)}; it must be a list of {kind.__name__}")
    return tuple(values)


def _head_method(entries: Mapping[str, Any], path: str) -> tuple[tuple[str, ...], str | None]:
    """The words of a classifier without its own weights, and its method; else () and None.

    Source: vllm/model_executor/models/config.py#L510-L529
    (Qwen3ForSequenceClassificationConfig.verify_and_update_model_config) @ v0.22.1
    """
    words = _list(entries, "classifier_from_token", str, path)
    method = entries.get("method")
    if entries.get("is_original_qwen3_reranker") is True:
        method = "from_2_way_softmax"
    if method is None:
        return (), None
    if method not in HEAD_METHODS:
        raise ValueError(f"{path}: method is {show(method)}; choose from {', '.join(HEAD_METHODS)}")
    if not words or (method == "from_2_way_softmax" and len(words) != 2):
        raise ValueError(
            f"{path}: classifier_from_token is {list(words)}; {method} needs "
            f"{'two words' if method == 'from_2_way_softmax' else 'at least one word'}, such as "
            '["no", "yes"]; set it in hf_overrides'
        )
    return words, method


def _labels(
    entries: Mapping[str, Any], words: tuple[str, ...], method: str | None, path: str
) -> tuple[str, ...]:
    """Names of a classifier's classes; transformers' default names where the file has none."""
    if method is not None:
        return words[1:] if method == "from_2_way_softmax" else words
    named = entries.get("id2label")
    number = entries.get("num_labels", len(named) if isinstance(named, Mapping) else 2)
    if type(number) is not int or number < 1:
        raise ValueError(f"{path}: num_labels is {show(number)}; it must be at least 1")
    names = named if isinstance(named, Mapping) and len(named) == number else {}
    return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(number))


def _activation(entries: Mapping[str, Any], path: str) -> str:
    """The activation of a classifier's logits.

    Source: vllm/model_executor/layers/pooler/activations.py#L19-L60 (get_act_fn) @ v0.22.1
    """
    by_problem = {
        "regression": "identity",
        "single_label_classification": "probabilities",
        "multi_label_classification": "sigmoid",
    }
    problem = entries.get("problem_type")
    if problem in by_problem:
        return by_problem[problem]
    if problem is not None:
        raise ValueError(f"{path}: problem_type is {show(problem)}; choose from {list(by_problem)}")
    trained = entries.get("sentence_transformers")
    named = trained.get("activation_fn") if isinstance(trained, Mapping) else None
    named = named or entries.get("sbert_ce_default_activation_function")
    if named is None:
        return "probabilities"
    activation = ACTIVATIONS.get(str(named).rpartition(".")[2])
    if activation is None or not str(named).startswith("torch.nn.modules."):
        raise ValueError(
            f"{path}: the activation is {show(named)}; it must be torch.nn.modules.activation."
            f"{'|'.join(ACTIVATIONS)}"
        )
    return activation
