"""Refusal comes before all else, rows included; the budget tells if somebody was admitted."""


class PrefillFirst:
    def fill(self, step):
        before = step.token_budget
        self._admit_prompts(step)
        if step.token_budget == before:
            self._schedule_running(step)


def has_room(scheduler, step, request):
    manager = scheduler.kv_cache_manager
    rows = scheduler.scheduler_config.max_num_seqs - len(scheduler.running)
    in_budget = request.num_tokens <= step.token_budget
    in_pool = cdiv(request.num_tokens, manager.block_size) <= manager.num_free_blocks
    return rows > 0 and in_budget and in_pool


class MinivLLM:
    def _admit_prompts(self, step):
        manager = self.kv_cache_manager
        while (request := self._head()) is not None:
            if self._refuse(request):
                continue
            if not has_room(self, step, request):
                return
            hits, cached = manager.get_computed_blocks(request)
            rest = request.num_tokens - cached
            manager.allocate_slots(request, rest, cached, hits)
            step.token_budget -= cached
            self._admit(step, cached, rest)
