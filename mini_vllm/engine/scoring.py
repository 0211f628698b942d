"""How well two texts go together: three ways, by what the model was trained for.

    bi-encoder         embed(query), embed(document)       cosine of the two vectors
    late-interaction   token_embed of both                 each query token's best match, summed
    cross-encoder      classify(query + document)          what the classifier says of the pair

Source: vllm/entrypoints/pooling/scoring/io_processor.py#L127-L560 (ScoringIOProcessor) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.engine.pooling_inputs import PoolingTokenizer, Tokenization
from mini_vllm.errors import show
from mini_vllm.pooling.config import PoolingArgs
from mini_vllm.pooling_outputs import PoolingOutput, PoolingRequestOutput

PoolingResult = PoolingRequestOutput[PoolingOutput]


@dataclass(frozen=True)
class ScoringOptions:
    """What a caller says of the texts."""

    how: Tokenization = field(default_factory=Tokenization)
    max_tokens_per_query: int = 0
    """Longer queries are cut to their first tokens; 0: not."""
    max_tokens_per_doc: int = 0
    chat_template: str | None = None
    """Of a cross-encoder: how the pair is written, with the roles "query" and "document"."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scoring:
    """Prompts to pool, and how their results become scores."""

    kind: str
    prompts: list[list[int]]
    num_queries: int
    padding: list[int]
    """Stands between the tokens of a query and its document in what is reported."""

    @property
    def task(self) -> str:
        kinds = {"bi-encoder": "embed", "late-interaction": "token_embed"}
        return kinds.get(self.kind, "classify")

    def combine(self, outputs: Sequence[PoolingResult]) -> list[PoolingResult]:
        """One output a pair, whose data is a single number."""
        if self.kind == "cross-encoder":
            return list(outputs)
        queries, documents = outputs[: self.num_queries], outputs[self.num_queries :]
        if len(queries) == 1:
            queries = list(queries) * len(documents)
        return [self._pair(q, d) for q, d in zip(queries, documents, strict=True)]

    def _pair(self, query: PoolingResult, document: PoolingResult) -> PoolingResult:
        import torch.nn.functional as F

        a, b = query.outputs.data, document.outputs.data
        if self.kind == "bi-encoder":
            score = F.cosine_similarity(a, b, dim=0)
        else:
            score = (a @ b.T).amax(dim=-1).sum()
        return PoolingRequestOutput(
            f"{query.request_id}_{document.request_id}",
            PoolingOutput(score),
            query.prompt_token_ids + self.padding + document.prompt_token_ids,
            query.num_cached_tokens + document.num_cached_tokens,
        )


def prepare(
    tokenizer: PoolingTokenizer, data_1: Any, data_2: Any, options: ScoringOptions
) -> Scoring:
    """The prompts that compare texts: 1 with 1, 1 with N, or N with N.

    Args:
        data_1: a query, or a list of queries.
        data_2: a document, or a list of documents.

    Raises:
        ValueError: for lengths that do not fit, what is no text, a text that is too long, or a
            model that cannot compare.
    """
    kind = check_score_type(tokenizer.args)
    queries, documents = _texts(data_1, data_2)
    for name in ("max_tokens_per_query", "max_tokens_per_doc"):
        tokenizer.check_most(name, getattr(options, name))
    queries = [tokenizer.shorten(text, options.max_tokens_per_query) for text in queries]
    documents = [tokenizer.shorten(text, options.max_tokens_per_doc) for text in documents]
    padding = getattr(tokenizer.tokenizer, "pad_token_id", None)
    padding = [] if padding is None else [padding]
    how = options.how
    if kind != "cross-encoder":
        prompts = [tokenizer.tokenize(text, how) for text in (*queries, *documents)]
        return Scoring(kind, prompts, len(queries), padding)
    if len(queries) == 1:
        queries = queries * len(documents)
    prompts = []
    for query, document in zip(queries, documents, strict=True):
        if options.chat_template is None:
            prompts.append(tokenizer.pair((query, document), how))
        else:
            template, more = options.chat_template, options.chat_template_kwargs
            prompts.append(tokenizer.templated(query, document, template, more, how))
    return Scoring(kind, prompts, len(queries), padding)


def check_score_type(args: PoolingArgs) -> str:
    """How this model compares texts. Raises ValueError if it cannot."""
    kind = args.score_type
    if kind is not None:
        return kind
    if args.task == "classify":
        raise ValueError(
            f"Scoring API is only enabled for num_labels == 1. This model has {len(args.labels)}; "
            "use classify"
        )
    raise ValueError(f"This model does not support the Scoring API: its task is {args.task!r}")


def _texts(data_1: Any, data_2: Any) -> tuple[list[str], list[str]]:
    """Source: vllm/entrypoints/pooling/scoring/utils.py#L109-L124 (validate_score_input)
    @ v0.22.1"""
    pair = [list(one) if isinstance(one, list | tuple) else [one] for one in (data_1, data_2)]
    for texts in pair:
        for text in texts:
            if not isinstance(text, str):
                raise ValueError(f"the texts hold {show(text)}; this model compares texts only")
    queries, documents = pair
    if len(queries) > 1 and len(queries) != len(documents):
        raise ValueError(
            f"Input lengths must be either 1:1, 1:N or N:N; they are {len(queries)}:"
            f"{len(documents)}"
        )
    if not queries:
        raise ValueError("At least one text element must be given")
    if not documents:
        raise ValueError("At least one text_pair element must be given")
    return queries, documents
