"""The engine's inner loop: schedule, run the model, update. One step at a time.

Source: vllm/v1/engine/core.py#L428-L457 (EngineCore.step) @ v0.22.1
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from mini_vllm.attention import get_backend
from mini_vllm.config import EngineConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput
from mini_vllm.model.build import compile_model, load_model
from mini_vllm.request import Request, RequestStatus
from mini_vllm.worker.cuda_graphs import CudaRecorder
from mini_vllm.worker.kv_cache import KVCache, choose_num_blocks
from mini_vllm.worker.model_runner import ModelRunner, ModelRunnerOutput

logger = logging.getLogger(__name__)

SMALL_HIDDEN_SIZE = 512
"""Models narrower than this run on one CPU thread unless told otherwise."""

StepObserver = Callable[["EngineCore", SchedulerOutput, list[EngineCoreOutput], float], None]
"""Called after every step with the engine, its plan, its outputs and its duration in seconds."""


class EngineCore:
    """A model, a KV cache, a scheduler, and the loop that drives them.

    It works on token ids; text is the business of
    :class:`~mini_vllm.engine.llm_engine.LLMEngine`.

    Args:
        config: model, cache and scheduler. ``max_model_len`` must not exceed what the model's
            positions allow.
        extensions: see :class:`~mini_vllm.core.extension.SchedulerExtension`.

    Raises:
        ValueError: for settings that contradict each other, the model or the memory.
    """

    def __init__(
        self,
        config: EngineConfig,
        extensions: Sequence[SchedulerExtension] = (),
        scheduler_cls: type[Scheduler] = Scheduler,
    ) -> None:
        wanted, limits = config.model, config.scheduler
        self.device = device = _pick_device(wanted.device)
        backend = get_backend(device, wanted.attention_backend)
        self.model = model = load_model(
            wanted.model, wanted.dtype, device, backend, wanted.load_format, wanted.seed
        )
        _set_num_threads(wanted.num_threads, device, model.config.hidden_size)
        _check_model_len(limits.max_model_len, model.config.max_position_embeddings)
        num_blocks = choose_num_blocks(config, model.kv_cache_spec(), device)
        cache = replace(config.cache, num_gpu_blocks=num_blocks)
        self.config = replace(config, cache=cache)
        self.scheduler = scheduler_cls(limits, cache, extensions)
        kv_cache = KVCache(
            model.kv_cache_spec(), num_blocks, cache.block_size, device, cache.num_cpu_blocks
        )
        self.model_runner = ModelRunner(
            model, kv_cache, limits.max_num_seqs, limits.max_model_len, cache.block_size, device
        )
        self.observers: list[StepObserver] = []
        if wanted.compile_model:
            compile_model(model, backend)
        if device.type == "cuda":
            record = None if wanted.enforce_eager else CudaRecorder()
            self.model_runner.warm_up(limits.max_num_batched_tokens, record)

    def add_request(self, request: Request) -> None:
        """Queue a request, unless the model or the cache can never serve it.

        Raises:
            ValueError: for an empty prompt, a token outside the vocabulary, a prompt that leaves
                no room for a token of output, or an id that is in use.
        """
        prompt = request.prompt_token_ids
        vocab_size = self.model.config.vocab_size
        max_model_len = self.config.scheduler.max_model_len
        capacity = self.scheduler.kv_cache_manager.capacity_in_tokens
        if not prompt:
            raise ValueError("the prompt is empty; it must have at least 1 token")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            bad = next(token for token in prompt if not 0 <= token < vocab_size)
            raise ValueError(
                f"the prompt has token id {bad}; the vocabulary ends at {vocab_size - 1}; was it "
                "made with another tokenizer?"
            )
        if len(prompt) >= max_model_len:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; with max_model_len={max_model_len} at most "
                f"{max_model_len - 1} leave room for output; shorten it or raise max_model_len"
            )
        if len(prompt) > capacity:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; the KV cache holds {capacity} "
                f"({self.scheduler.kv_cache_manager.block_pool.num_usable_blocks} blocks of "
                f"{self.config.cache.block_size}); shorten it or raise num_gpu_blocks"
            )
        self.scheduler.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """End requests early; returns the ids of those that were unfinished."""
        return self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def has_requests(self) -> bool:
        return self.scheduler.has_requests()

    def step(self) -> list[EngineCoreOutput]:
        """Schedule, run, update, once.

        If the forward pass fails, the requests of this step end with an error, and what they
        had published leaves the prefix cache; the engine itself goes on.

        Raises:
            NoProgressError: see :meth:`~mini_vllm.core.scheduler.Scheduler.schedule`.
        """
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        try:
            result = self.model_runner.execute_model(plan)
        except Exception as error:
            logger.exception("the forward pass failed; its requests end with an error")
            reason = f"the forward pass failed: {error}"
            outputs = self.scheduler.fail_requests(
                plan, dict.fromkeys(plan.num_scheduled_tokens, reason)
            )
        except BaseException:  # Ctrl-C between writing and computing: nobody may find the blocks
            self.scheduler.fail_requests(plan, dict.fromkeys(plan.num_scheduled_tokens, ""))
            raise
        else:
            outputs = self._update(plan, result)
        for observer in self.observers:
            observer(self, plan, outputs, time.perf_counter() - start)
        return outputs

    def _update(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        failed = self.scheduler.fail_requests(plan, result.failed) if result.failed else []
        outputs = self.scheduler.update_from_output(plan, result.sampled_token_ids)
        if result.logprobs:
            for output in outputs:
                output.logprobs = result.logprobs.get(output.request_id)
        prompts = [  # first, for the same step may end the request
            EngineCoreOutput(request_id, [], prompt_logprobs=entries)
            for request_id, entries in result.prompt_logprobs.items()
        ]
        return prompts + failed + outputs


def _pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device is {name!r} but torch sees no CUDA device; use device='cpu', or install a "
            "CUDA build of torch"
        )
    return torch.device(name)


def _set_num_threads(wanted: int | None, device: torch.device, hidden_size: int) -> None:
    """Threads that wait for each other after every small product cost more than they compute,
    and many times more when another program uses one of the cores."""
    if wanted is None and hidden_size < SMALL_HIDDEN_SIZE:
        wanted = 1
    if wanted is not None and device.type == "cpu":
        torch.set_num_threads(wanted)


def _check_model_len(max_model_len: int, max_positions: int) -> None:
    if max_model_len > max_positions:
        raise ValueError(
            f"max_model_len is {max_model_len}; the model has {max_positions} positions; lower it "
            "or leave it out"
        )
