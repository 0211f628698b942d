"""What ``LLM`` does with a pooling model: embed, classify, compare.

Source: vllm/entrypoints/pooling/offline.py#L30-L446 (PoolingOfflineMixin) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.config.pooler import POOLING_TASKS
from mini_vllm.engine.exceptions import EngineGenerateError
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.offline_inputs import (
    LoRARequests,
    Progress,
    Prompts,
    as_list,
    loras_per_prompt,
    progress_bar,
)
from mini_vllm.engine.pooling_inputs import PoolingTokenizer, Tokenization
from mini_vllm.engine.scoring import ScoringOptions, prepare
from mini_vllm.errors import show
from mini_vllm.inputs import PromptType, as_tokens
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import RequestOutput
from mini_vllm.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from mini_vllm.pooling_params import PoolingParams

PoolingParamsFor = PoolingParams | Sequence[PoolingParams] | None
"""For all prompts, or one for each; the model's own defaults if left out."""
WHICH_TASK = (
    "pooling_task required for `LLM.encode`: for embeddings 'embed', or LLM.embed(...); for "
    "classes 'classify', or LLM.classify(...); for each token 'token_embed' or 'token_classify'; "
    "for similarity LLM.score(...)"
)
NOT_SUPPORTED = (
    "{api} API is not supported by this model. Try converting the model using "
    "`--convert {convert}`."
)


class OfflinePooling:
    """The part of ``LLM`` for pooling models."""

    engine: LLMEngine
    config: EngineConfig
    _ids: Iterator[int]

    def _check_awake(self) -> None:
        raise NotImplementedError

    def _run(self, outputs: Sequence[RequestOutput]) -> Iterator[int]:
        raise NotImplementedError

    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParamsFor = None,
        *,
        use_tqdm: Progress = True,
        lora_request: LoRARequests = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool the hidden states of every prompt.

        Args:
            prompts: one prompt or several.
            pooling_params: for all prompts, or one for each.
            use_tqdm: show a progress bar.
            lora_request: the adapter of all prompts, or one (or None) for each.
            pooling_task: "embed", "classify", "token_embed" or "token_classify".
            tokenization_kwargs: fields of
                :class:`~mini_vllm.engine.pooling_inputs.Tokenization`, such as
                ``{"truncate_prompt_tokens": 512}``.

        Returns:
            One output a prompt, in their order; ``outputs.data`` is a tensor ``[D]`` float32, or
            ``[tokens, D]`` of a task for tokens.

        Raises:
            ValueError: if one of the prompts cannot be served, the lists' lengths differ, or the
                model has not that task. Nothing is computed then.
            EngineGenerateError: if a prompt's output is not finite.

        Source: vllm/entrypoints/pooling/offline.py#L51-L136 (PoolingOfflineMixin.encode)
        @ v0.22.1
        """
        task = self._check_task(pooling_task)
        prompts = as_list(prompts)
        params = [_with_task(one, task) for one in _params_per_prompt(prompts, pooling_params)]
        how, tokenizer = Tokenization.of(tokenization_kwargs), self._pooling_tokenizer()
        tokenized = [
            as_tokens(prompt, tokenizer.tokenize(prompt, how.cut_by(one)))
            for prompt, one in zip(prompts, params, strict=True)
        ]
        return self._pool(tokenized, params, loras_per_prompt(prompts, lora_request), use_tqdm)

    def embed(
        self,
        prompts: Prompts,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParamsFor = None,
        lora_request: LoRARequests = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """An embedding of every prompt; arguments as of :meth:`encode`.

        Example::

            llm = LLM("storyteller", runner="pooling")
            (output,) = llm.embed("Once upon a time")
            print(len(output.outputs.embedding))
        """
        outputs = self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="embed",
            tokenization_kwargs=tokenization_kwargs,
        )
        return [EmbeddingRequestOutput.from_base(output) for output in outputs]

    def classify(
        self,
        prompts: Prompts,
        *,
        pooling_params: PoolingParamsFor = None,
        use_tqdm: Progress = True,
        lora_request: LoRARequests = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of each class for every prompt; arguments as of :meth:`encode`."""
        outputs = self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="classify",
            tokenization_kwargs=tokenization_kwargs,
        )
        return [ClassificationRequestOutput.from_base(output) for output in outputs]

    def reward(
        self,
        prompts: Prompts,
        /,
        *,
        pooling_params: PoolingParamsFor = None,
        use_tqdm: Progress = True,
        lora_request: LoRARequests = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """:meth:`encode` with ``pooling_task="token_classify"``, vLLM's older name."""
        return self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="token_classify",
            tokenization_kwargs=tokenization_kwargs,
        )

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequests = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well each text of ``data_2`` goes with its text of ``data_1``; one text of
        ``data_1`` is compared with all.

        Args:
            pooling_params: its ``extra_kwargs`` may hold ``max_tokens_per_query`` and
                ``max_tokens_per_doc``.
            chat_template: how a cross-encoder reads the pair, in Jinja, with the roles "query" and
                "document".

        Raises:
            ValueError: as of :meth:`encode`, and for a classifier with more than one class.

        Source: vllm/entrypoints/pooling/offline.py#L333-L446 (PoolingOfflineMixin.score) @ v0.22.1
        """
        self._check_runner("score")
        params = pooling_params or PoolingParams()
        if not isinstance(params, PoolingParams):
            raise ValueError(f"pooling_params is {show(params)}; it must be a PoolingParams")
        more = dict(params.extra_kwargs or {})
        how = Tokenization.of(tokenization_kwargs).cut_by(params)
        options = ScoringOptions(
            how,
            more.pop("max_tokens_per_query", 0),
            more.pop("max_tokens_per_doc", 0),
            chat_template,
            more.pop("chat_template_kwargs", {}),
        )
        scoring = prepare(self._pooling_tokenizer(), data_1, data_2, options)
        prompts: list[PromptType] = [{"prompt_token_ids": ids} for ids in scoring.prompts]
        all_params = [_with_task(params, scoring.task)] * len(prompts)
        loras = loras_per_prompt(prompts, lora_request)
        outputs = scoring.combine(self._pool(prompts, all_params, loras, use_tqdm))
        return [ScoringRequestOutput.from_base(output) for output in outputs]

    def _pool(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[PoolingParams],
        loras: Sequence[LoRARequest | None],
        use_tqdm: Progress,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Queue all prompts, or none, and run until they are pooled."""
        self._check_awake()
        ids: list[str] = []
        try:
            outputs = []
            for prompt, one, lora in zip(prompts, params, loras, strict=True):
                ids.append(str(next(self._ids)))
                outputs.append(
                    self.engine.submit(ids[-1], prompt, one, lora_request=lora, stream=False)
                )
            with progress_bar(len(outputs), use_tqdm) as progress:
                for num_finished in self._run(outputs):
                    progress.update(num_finished)
            return [_pooled(output, place) for place, output in enumerate(outputs)]
        finally:
            self.engine.abort_requests(ids)

    def _check_runner(self, method: str) -> None:
        if not self.config.model.pools:
            raise ValueError(
                f"LLM.{method}() is only supported for pooling models. Try passing `--runner "
                "pooling` to use the model as a pooling model."
            )

    def _check_task(self, task: str | None) -> str:
        """Source: vllm/entrypoints/pooling/offline.py#L138-L197
        (PoolingOfflineMixin._verify_pooling_task) @ v0.22.1"""
        self._check_runner("encode")
        if task is None:
            raise ValueError(WHICH_TASK)
        if task not in POOLING_TASKS:
            raise ValueError(f"Unsupported task: {show(task)} Supported tasks: {POOLING_TASKS}")
        if task not in self._pooling_tokenizer().args.tasks:
            convert = "embed" if task.endswith("embed") else "classify"
            api = "Embedding" if convert == "embed" else "Classification"
            raise ValueError(NOT_SUPPORTED.format(api=api, convert=convert))
        return task

    def _pooling_tokenizer(self) -> PoolingTokenizer:
        return PoolingTokenizer(self.engine.input_processor, self.config.scheduler.max_model_len)


def _params_per_prompt(
    prompts: Sequence[PromptType], params: PoolingParamsFor
) -> list[PoolingParams]:
    if params is None:
        params = PoolingParams()
    if isinstance(params, PoolingParams):
        return [params] * len(prompts)
    is_list = isinstance(params, Sequence) and not isinstance(params, str)
    if not is_list or not all(isinstance(one, PoolingParams) for one in params):
        raise ValueError(
            f"pooling_params is {show(params)}; pass a PoolingParams, or a list with one for each "
            "prompt"
        )
    if len(params) != len(prompts):
        raise ValueError(
            f"The lengths of prompts ({len(prompts)}) and params ({len(params)}) must be the same."
        )
    return list(params)


def _with_task(params: PoolingParams, task: str) -> PoolingParams:
    if params.task not in (None, task):
        raise ValueError(f"You cannot overwrite {params.task=!r} with pooling_task={task!r}!")
    params = params.clone()
    params.task = task
    return params


def _pooled(output: RequestOutput, place: int) -> PoolingRequestOutput[PoolingOutput]:
    if output.pooled is None:
        raise EngineGenerateError(f"prompts[{place}]: {output.error or 'it was aborted'}")
    return PoolingRequestOutput.of(output)
