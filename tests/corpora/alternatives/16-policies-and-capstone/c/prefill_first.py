"""A generator brings the requests that fit, one by one, and the method admits what it brings."""


class PrefillFirst:
    def fill(self, step):
        self._admit_prompts(step)
        if any(count > 0 for count in step.num_scheduled_tokens.values()):
            return
        self._schedule_running(step)


def those_that_fit(scheduler, step):
    manager, most = scheduler.kv_cache_manager, scheduler.scheduler_config.max_num_seqs
    while most > len(scheduler.running) and (request := scheduler._head()):
        free_slots = manager.num_free_blocks * manager.block_size
        if request.num_tokens <= min(free_slots, step.token_budget):
            yield request
        elif not scheduler._refuse(request):
            return


class MinivLLM:
    def _admit_prompts(self, step):
        for request in those_that_fit(self, step):
            hits, cached = self.kv_cache_manager.get_computed_blocks(request)
            missing = request.num_tokens - len(hits.blocks) * self.kv_cache_manager.block_size
            self.kv_cache_manager.allocate_slots(request, missing, cached, hits)
            self._admit(step, cached, missing)
            step.token_budget -= request.num_tokens - missing
