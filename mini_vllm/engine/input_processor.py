"""From what a caller passes in to an :class:`~mini_vllm.core.engine_request.EngineCoreRequest`.

Source: vllm/v1/engine/input_processor.py#L300-L430 (InputProcessor) @ v0.22.1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from mini_vllm.config import EngineConfig, StructuredOutputsConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.engine.parallel_sampling import child_requests
from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.inputs import PromptType, as_tokens
from mini_vllm.kv_transfer.params import check_params
from mini_vllm.lora.request import LoRARequest, per_completion
from mini_vllm.mm_features import MultiModalFeatureSpec
from mini_vllm.model.config import ModelArgs
from mini_vllm.multimodal.processing import MultiModalProcessor
from mini_vllm.param_checks import MAX_INT64, context_overflow, is_text
from mini_vllm.pooling.config import PoolingArgs, load_pooling_args
from mini_vllm.pooling_params import PoolingParams
from mini_vllm.sampling_fields import derive_seed
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.structured_output.choose import check_constraint

NOTHING_SAMPLED = SamplingParams(max_tokens=1, temperature=0.0, seed=0, detokenize=False)
"""Of requests that are pooled: one token would be the last, and the request ends before it."""


NOT_READ = {
    "prompt_embeds": "models read tokens; pass 'prompt' or 'prompt_token_ids'",
    "token_type_ids": "no model here has segments; leave it out",
    "encoder_prompt": "no model here has an encoder of texts; pass 'prompt'",
}
"""Entries of vLLM's prompts that would change an answer and are not supported: what to do."""


class InputProcessor:
    """Tokenizes prompts and settles what their sampling parameters leave open.

    Args:
        tokenizer: of the ``transformers`` kind; None if only token ids will be passed.
        model: which tokens there are, and which of them end an output.
        max_model_len: what ``max_tokens=None`` fills up to.
        seed: root of the seeds of requests that bring none.
        structured: which constraints on the output can be served.
        images: processes them; None: the model takes text only.
        max_logprobs: how many a request may ask for; -1: for all.
    """

    pooling: PoolingArgs | None = None
    """What a model that pools can be asked for; None: it writes."""

    def __init__(
        self,
        tokenizer: Any,
        model: ModelArgs,
        max_model_len: int,
        seed: int = 0,
        structured: StructuredOutputsConfig | None = None,
        images: MultiModalProcessor | None = None,
        max_logprobs: int = 20,
    ) -> None:
        self.tokenizer = tokenizer
        self.model = model
        self.max_model_len = max_model_len
        self.seed = seed
        self.structured = structured or StructuredOutputsConfig()
        self.images, self.max_logprobs = images, max_logprobs
        self.has_drafts = False
        """Whether the engine drafts tokens."""
        self._validators: list[Callable[[SamplingParams], None]] = []
        self.num_requests = 0
        """Requests so far: the seed of a request that brings none depends on it."""

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        tokenizer: Any,
        model: ModelArgs,
        images: MultiModalProcessor | None,
    ) -> InputProcessor:
        """For an engine with this configuration, in which the engine has settled its limits."""
        made = cls(
            tokenizer,
            model,
            config.scheduler.max_model_len,
            config.model.seed,
            config.structured,
            images,
            config.model.max_logprobs,
        )
        made.has_drafts = config.speculative is not None
        made.pooling = load_pooling_args(config)
        made.use_processors(config.model.logits_processors)
        return made

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the model can be asked for, in vLLM's words."""
        return ("generate",) if self.pooling is None else self.pooling.tasks

    def reset_mm_cache(self) -> None:
        """Forget the patches of recent images; they are made anew when an image comes again."""
        if self.images is not None:
            self.images.forget_patches()

    def use_processors(self, given: Sequence[str | type] | None) -> None:
        """Have logits processors of a user's own look at every request's parameters first."""
        if given:
            from mini_vllm.sample.custom import load_classes  # takes torch to import

            checks = (getattr(cls, "validate_params", None) for cls in load_classes(given))
            self._validators = [check for check in checks if check is not None]

    def with_tokenization(
        self, prompt: PromptType, options: Mapping[str, Any] | None
    ) -> PromptType:
        """The prompt as token ids, if ``options`` say how it is to be tokenized.

        Args:
            options: vLLM's ``tokenization_kwargs``: fields of
                :class:`~mini_vllm.engine.tokenization.Tokenization`, or transformers' words for
                them, such as ``{"truncation": True, "max_length": 512}``.

        Raises:
            ValueError: for an option that there is not, a limit that the model does not have, and
                what :meth:`tokenize` refuses.
        """
        if not options:
            return prompt
        from mini_vllm.engine.tokenization import PromptTokenizer, Tokenization  # few ask for it

        tokenizer = PromptTokenizer(self, self.max_model_len)
        return as_tokens(prompt, tokenizer.tokenize(prompt, Tokenization.of(options)))

    def preprocess(self, prompt: PromptType) -> tuple[list[int], list[MultiModalFeatureSpec]]:
        """The prompt's token ids, with all placeholders of its images, and the images.

        Raises:
            ValueError: for what :meth:`tokenize` refuses, an image that cannot be used, or one for
                a model that takes text only.
        """
        token_ids = self.tokenize(prompt)
        about = prompt if isinstance(prompt, Mapping) else {}
        data, options = (about.get(key) for key in ("multi_modal_data", "mm_processor_kwargs"))
        if self.images is not None:
            return self.images.process(token_ids, {} if data is None else data, options)
        for name, value in (("multi_modal_data", data), ("mm_processor_kwargs", options)):
            if value is not None and value != {}:
                raise RequestError(
                    f"the prompt brings {name}; the model takes text only, it has no image "
                    "encoder; leave it out or choose another model",
                    param=name,
                )
        return token_ids, []

    def tokenize(self, prompt: PromptType) -> list[int]:
        """The prompt's token ids.

        Raises:
            ValueError: if it is text and there is no tokenizer, or if it holds neither.
        """
        given: Any = prompt
        if isinstance(prompt, Mapping):
            for name, why in NOT_READ.items():
                if prompt.get(name) is not None:
                    raise bad_value(f"the prompt's {name}", prompt[name], why, param=name)
            if "prompt" not in prompt and "prompt_token_ids" not in prompt:
                raise ValueError(
                    f"the prompt is a mapping with {show(sorted(map(str, prompt)))}; it must be "
                    "text, a list of token ids, or a mapping with 'prompt' or 'prompt_token_ids'"
                )
            token_ids = prompt.get("prompt_token_ids")
            if isinstance(token_ids, str):
                raise ValueError(
                    f"prompt_token_ids is {show(token_ids)}; it must be a list of token ids; text "
                    "is called 'prompt'"
                )
            given = prompt.get("prompt") if token_ids is None else token_ids
        if isinstance(given, str):
            if self.tokenizer is None:
                raise ValueError("the prompt is text but no tokenizer is loaded; pass token ids")
            if not is_text(given):
                raise ValueError(
                    f"the prompt {show(given)} has half of a surrogate pair, which is no "
                    "character; was it cut inside an emoji?"
                )
            self.check_length(given)
            return self.tokenizer.encode(given)
        is_list = isinstance(given, Sequence) and not isinstance(given, bytes | bytearray)
        if not is_list or not all(type(token) is int for token in given):
            raise ValueError(
                f"the prompt is {show(given)}; it must be text, a list of token ids, or a mapping "
                "with 'prompt' or 'prompt_token_ids'"
            )
        return list(given)

    def check_length(self, text: str, num_output_tokens: int = 0) -> None:
        """Refuse a text that cannot fit however it is cut into tokens: to cut it may take minutes.

        Args:
            num_output_tokens: how many must fit behind it.

        Raises:
            RequestError: with its length and the limit.

        Source: vllm/renderers/params.py#L324-L349 (TokenizeParams._text_len_check) @ v0.22.1
        """
        room = self.max_model_len - num_output_tokens
        if len(text) <= room:
            return  # as almost all are
        most = self.longest_text(num_output_tokens)
        if len(text) > most:
            raise context_overflow(
                self.max_model_len,
                num_output_tokens,
                f"{len(text)} characters (more than {most} characters, which is the upper bound "
                f"for {room} input tokens)",
                param="input_text",
                value=len(text),
            )

    def longest_text(self, num_output_tokens: int = 0) -> int:
        """Characters that fit the model's length if each token were the longest there is."""
        return (self.max_model_len - num_output_tokens) * self._longest_token

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest word of the vocabulary; those of bytes have one a byte."""
        return max(map(len, self.tokenizer.get_vocab()))

    def check(self, request_id: Any, params: Any, priority: Any, cache_salt: Any) -> None:
        """Refuse what is not of the kind that it must be.

        Raises:
            ValueError: that names the argument, its value and what it must be.
        """
        if not (isinstance(request_id, str) and is_text(request_id)):
            raise bad_value("request_id", request_id, "it must be a string of text")
        self._check_kind(params)
        is_integer = isinstance(priority, int) and not isinstance(priority, bool)
        if not (is_integer and abs(priority) <= MAX_INT64):
            raise bad_value("priority", priority, "it must be an integer that fits int64")
        is_salt = isinstance(cache_salt, str) and cache_salt and is_text(cache_salt)
        if cache_salt is not None and not is_salt:
            raise bad_value("cache_salt", cache_salt, "it must be a string of text, or left out")

    def _check_kind(self, params: Any) -> None:
        """Source: vllm/v1/engine/input_processor.py#L82-L130 (InputProcessor._validate_params)
        @ v0.22.1"""
        if isinstance(params, PoolingParams):
            if self.pooling is None:
                raise ValueError(
                    "This model does not support pooling; start it with runner='pooling', and "
                    "convert='embed' or 'classify'"
                )
            return
        if not isinstance(params, SamplingParams):
            kind = "SamplingParams" if self.pooling is None else "PoolingParams"
            raise bad_value("sampling_params", params, f"it must be a {kind}")
        if self.pooling is not None:
            raise ValueError(
                "This model does not support generation; pass PoolingParams, or start it with "
                "runner='generate'"
            )

    def process(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams | PoolingParams,
        priority: int = 0,
        arrival_time: float | None = None,
        cache_salt: str | None = None,
        lora_request: LoRARequest | None = None,
        mm_features: list[MultiModalFeatureSpec] | None = None,
        data_parallel_rank: int | None = None,
    ) -> EngineCoreRequest:
        """Build the request for a tokenized prompt.

        ``max_tokens=None`` becomes the room that the model's length leaves. Further EOS tokens
        of the model become stop tokens. A request without a seed gets one derived from the
        engine's, so that a whole run repeats.

        Raises:
            ValueError: for token ids outside the vocabulary in ``stop_token_ids``,
                ``logit_bias`` or ``allowed_token_ids``, for more logprobs than ``max_logprobs``,
                for stop strings without a tokenizer, and for a constraint on the output that
                cannot be read or enforced; for pooling parameters that the model has not.
        """
        pooling_params = None
        if isinstance(params, PoolingParams):
            assert self.pooling is not None, "check comes first"
            pooling_params = params.clone()
            pooling_params.verify(self.pooling)
            params = NOTHING_SAMPLED
        params = params.clone()
        params.check_changes()
        self._check_bad_words(params)
        params.verify(self.model.vocab_size)
        for name in ("logprobs", "prompt_logprobs"):
            setattr(params, name, self.num_logprobs(name, getattr(params, name)))
        self.check_constraint(params)
        for validate in self._validators:
            validate(params)
        check_params((params.extra_args or {}).get("kv_transfer_params"))
        if params.max_tokens is None:
            params.max_tokens = max(self.max_model_len - len(token_ids), 1)
        if params.seed is None:
            params.seed = derive_seed(self.seed, self.num_requests)
        self.num_requests += 1
        if params.min_tokens:
            params.eos_token_ids = list(self.model.eos_token_ids)
        if not params.ignore_eos:
            params.stop_token_ids = [*(params.stop_token_ids or ()), *self.model.eos_token_ids[1:]]
        return EngineCoreRequest(
            request_id,
            token_ids,
            params,
            eos_token_id=self.model.eos_token_id,
            arrival_time=time.monotonic() if arrival_time is None else arrival_time,
            priority=priority,
            cache_salt=cache_salt,
            lora_request=lora_request,
            mm_features=mm_features or None,
            data_parallel_rank=data_parallel_rank,
            pooling_params=pooling_params,
        )

    def process_completions(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams | PoolingParams,
        *,
        priority: int,
        arrival_time: float,
        cache_salt: str | None,
        lora_request: LoRARequest | None,
        mm_features: list[MultiModalFeatureSpec],
        data_parallel_rank: int | None = None,
    ) -> list[EngineCoreRequest]:
        """The requests of a prompt's completions, one each; only the first has
        ``kv_transfer_params``, see :func:`~mini_vllm.engine.parallel_sampling.child_requests`."""
        children = child_requests(request_id, params)
        return [
            self.process(
                child_id,
                token_ids,
                child_params,
                priority,
                arrival_time,
                cache_salt,
                lora,
                mm_features,
                data_parallel_rank,
            )
            for (child_id, child_params), lora in zip(
                children, per_completion(lora_request), strict=False
            )
        ]

    def num_logprobs(self, name: str, wanted: int | None) -> int | None:
        """How many logprobs a request with ``name`` set to ``wanted`` gets; -1 asks for all.

        Raises:
            ValueError: if that is more than ``max_logprobs``.

        Source: vllm/sampling_params.py#L679-L723 (SamplingParams._validate_logprobs) @ v0.22.1
        """
        if wanted is None:
            return None
        vocab_size = self.model.vocab_size
        most = vocab_size if self.max_logprobs == -1 else self.max_logprobs
        number = vocab_size if wanted == -1 else wanted
        if not 0 <= number <= most:
            raise bad_value(
                name,
                wanted,
                f"it must be between 0 and {most}, the engine's max_logprobs; ask for fewer, or "
                f"start it with more (-1: all {vocab_size} of the vocabulary)",
            )
        return number

    def _check_bad_words(self, params: SamplingParams) -> None:
        if not params.bad_words and not params.bad_words_token_ids:
            return
        if self.has_drafts:
            raise RequestError(
                "bad_words does not go with speculative_config: a draft would have to be checked "
                "word by word; leave one of them out",
                param="bad_words",
            )
        if not params.bad_words:
            return
        if self.tokenizer is None:
            raise RequestError(
                "bad_words are turned into tokens, and no tokenizer is loaded; leave out "
                "skip_tokenizer_init",
                param="bad_words",
            )
        params.update_from_tokenizer(self.tokenizer)

    def _check_budget(self, budget: int) -> None:
        """Source: vllm/v1/engine/input_processor.py#L81-L109
        (InputProcessor._validate_params) @ v0.22.1"""
        structured, fix = self.structured, None
        if self.tokenizer is None:
            fix = "no tokenizer is loaded, which spells the end tag; leave out skip_tokenizer_init"
        elif not structured.reasoning_parser:
            fix = "the engine does not know the model's tags; start it with reasoning_parser"
        elif structured.enable_in_reasoning:
            fix = "structured outputs rule the reasoning, too; start without enable_in_reasoning"
        if fix is not None:
            raise bad_value("thinking_token_budget", budget, fix)

    def check_constraint(self, params: SamplingParams) -> None:
        """Refuse a constraint that cannot be read or enforced, and a budget without reasoning."""
        if params.thinking_token_budget is not None:
            self._check_budget(params.thinking_token_budget)
        if params.structured_outputs is None:
            return
        if self.tokenizer is None:
            raise RequestError(
                "structured_outputs needs the text of each token, and no tokenizer is loaded; "
                "leave out skip_tokenizer_init",
                param="structured_outputs",
            )
        check_constraint(self.structured, params.structured_outputs)
