"""Prompts before tokens: the schedulers of MinivLLM and nano-vLLM.

A step either computes prompts or makes one token for each running request, never both::

    step      1   2   3   4   5   6   7
    r0        P   d   d   .   d   d   d        P: its whole prompt   d: one token
    r1        P   d   d   .   d   d            . : it stands still while another's prompt runs
    r2                    P   d   d   d

So a prompt that arrives makes all others wait for it. That is good for throughput, and it is
the stall that chunked prefill removes.

Both engines serve in order of arrival and know no priorities: the "priority" policy of the
configuration is ignored. See ``upstream_notes/POLICIES.md`` for what the originals do otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.policies.base import Policy
from mini_vllm.policies.late_hashing import LateHashing
from mini_vllm.request import Request


class PrefillFirst(Policy):
    """Two queues; prompts first, tokens only in a step that admits none."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        hash_root: bytes | None = None,
    ) -> None:
        scheduler_config = replace(scheduler_config, policy="fcfs")
        super().__init__(scheduler_config, cache_config, extensions, hash_root)

    def fill(self, step: StepPlan) -> None:
        """Admit prompts; if there are none to admit, give every running request its next token.

        The second half is the core's own pass over ``running``. When a request cannot have the
        block for its next token, the tail of ``running`` is preempted: the youngest, for
        admission appends. It goes back to the front of ``waiting`` and is computed again.
        """
        # TODO 16.1
        raise NotImplementedError(
            "TODO 16.1: write PrefillFirst.fill in labs/16-policies-and-capstone/prefill_first.py"
            " (phase 16, 02-mini-build.md#task-1)"
        )

    def _admit_prompts(self, step: StepPlan) -> None:
        """Move requests to ``running``, with tokens and blocks for their prompts."""
        raise NotImplementedError


class MinivLLM(PrefillFirst):
    """MinivLLM's scheduler: whole prompts, and the budget counts all of their tokens."""

    def _admit_prompts(self, step: StepPlan) -> None:
        """Admit waiting requests in order of arrival; the first that does not fit ends the pass.

        A request fits if

        - fewer than ``max_num_seqs`` are running;
        - all of its tokens are within what is left of the budget, those in the cache included;
        - as many blocks are free as all of its tokens fill, those it could share included.

        A request that can never fit ends here and now (:meth:`Policy._refuse`).
        """
        # TODO 16.1
        raise NotImplementedError(
            "TODO 16.1: write MinivLLM._admit_prompts in labs/16-policies-and-capstone/prefill_first.py"
            " (phase 16, 02-mini-build.md#task-1)"
        )


class NanoVLLM(PrefillFirst):
    """nano-vLLM's scheduler: the budget counts tokens that are not in the cache, and the first
    prompt of a step may be cut to it.

    A prompt that is cut has the blocks for all of its tokens from the first chunk on. Its next
    chunk comes first in the next step, so no token is made until it is done.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        hash_root: bytes | None = None,
    ) -> None:
        super().__init__(scheduler_config, cache_config, extensions, hash_root)
        self.kv_cache_manager: LateHashing = LateHashing(
            self.kv_cache_manager.block_pool.num_gpu_blocks,
            cache_config.block_size,
            self.max_model_len,
            cache_config.enable_prefix_caching,
            hash_root,
        )
        self._unfinished: Request | None = None
        """The running request of whose prompt only a part is scheduled so far."""

    def prompt_limit(self) -> int:
        """A prompt may be longer than the budget, unless chunked prefill is off."""
        chunked = self.scheduler_config.enable_chunked_prefill
        return self.max_model_len if chunked else super().prompt_limit()

    def _admit_prompts(self, step: StepPlan) -> None:
        """Go on with the prompt that was cut, then admit in order of arrival.

        A request fits if fewer than ``max_num_seqs`` are running, if its tokens that are not in
        the cache are within what is left of the budget, and if its blocks are free. Only if it is
        the first of the step it may be cut to the budget (``enable_chunked_prefill``).
        """
        if self._unfinished in self.running:
            self._continue_prompt(step, self._unfinished)
        manager = self.kv_cache_manager
        while step.token_budget > 0 and len(self.running) < self.scheduler_config.max_num_seqs:
            if (request := self._head()) is None:
                break
            hits, num_hit_tokens = manager.get_computed_blocks(request)
            num_missing = request.num_tokens - num_hit_tokens
            chunk = min(num_missing, step.token_budget)
            may_cut = not step.num_scheduled_tokens and request.num_tokens <= self.prompt_limit()
            blocks = None
            if chunk == num_missing or may_cut:
                blocks = manager.allocate_slots(
                    request, chunk, num_hit_tokens, hits, num_lookahead_tokens=num_missing - chunk
                )
            if blocks is not None:
                self._admit(step, num_hit_tokens, chunk)
                self._unfinished = request if chunk < num_missing else None
            elif not self._refuse(request):
                break

    def _continue_prompt(self, step: StepPlan, request: Request) -> None:
        """Schedule the next chunk of a prompt that was cut; it has its blocks."""
        num_missing = request.num_tokens - request.num_computed_tokens
        chunk = min(num_missing, step.token_budget)
        blocks = self.kv_cache_manager.allocate_slots(request, chunk)
        assert blocks is not None and not blocks.blocks, f"{request} lacks blocks"
        step.add_running(request, chunk, blocks)
        if chunk == num_missing:
            self._unfinished = None

    def update_from_output(
        self, output: SchedulerOutput, sampled_token_ids: Mapping[str, list[int]]
    ) -> list[EngineCoreOutput]:
        """As :meth:`Scheduler.update_from_output`; what was computed becomes findable first."""
        for request_id in output.num_scheduled_tokens:
            if (request := self.requests.get(request_id)) is not None:
                self.kv_cache_manager.publish(request)
        return super().update_from_output(output, sampled_token_ids)
