"""Static batching: the baseline that the other schedulers are compared with."""

from __future__ import annotations

from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.policies.prefill_first import MinivLLM
from mini_vllm.request import Request


class Static(MinivLLM):
    """A batch runs until its last request has ended, and only then the next one is formed.

    ::

        step      1   2   3   4   5   6   7   8
        r0        P   d   d                           P: its prompt   d: one token
        r1        P   d   d   d   d   d
        r2                            P   d   d   came in step 2; a row is free from step 4

    A batch takes members as long as there are rows, and blocks for all that each of them may ever
    write. So no request is preempted, and most of that memory is never used. Prompts are computed
    whole, over several steps if the budget is short; tokens are made when the batch is complete.
    """

    _is_open = False
    """Whether the batch still takes members: until the first step that admits none."""

    def _admit_prompts(self, step: StepPlan) -> None:
        """Admit to the batch that is being formed; over several steps if the budget is short."""
        if not self.running:
            self._is_open = True
        if self._is_open:
            super()._admit_prompts(step)
        self._is_open = bool(step.num_scheduled_tokens)

    def _head(self) -> Request | None:
        """The next waiting request, if its whole future fits beside that of the others."""
        request = super()._head()
        if request is None or not self.running:
            return request
        wanted = sum(map(self._most_blocks, [*self.running, request]))
        fits = wanted <= self.kv_cache_manager.block_pool.num_usable_blocks
        return request if fits else None

    def _most_blocks(self, request: Request) -> int:
        """Blocks that a request fills if it runs to its limit."""
        most = self.max_model_len
        if request.max_tokens is not None:
            lookahead = self.scheduler_config.num_lookahead_tokens
            most = min(most, request.num_prompt_tokens + request.max_tokens + lookahead)
        return cdiv(most, self.kv_cache_manager.block_size)
