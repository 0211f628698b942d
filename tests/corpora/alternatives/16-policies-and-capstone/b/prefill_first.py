"""A loop over free rows, each for the next in line; what is left is known before it is spent."""


class PrefillFirst:
    def fill(self, step):
        self._admit_prompts(step)
        admitted = [*step.new, *step.resumed, *step.running]
        if len(admitted) == 0:
            self._schedule_running(step)


class MinivLLM:
    def _admit_prompts(self, step):
        manager = self.kv_cache_manager

        def next_in_line():
            while (request := self._head()) is not None:
                wanted = -(-request.num_tokens // manager.block_size)
                if step.token_budget >= request.num_tokens and manager.num_free_blocks >= wanted:
                    return request
                if not self._refuse(request):
                    break
            return None

        for _ in range(self.scheduler_config.max_num_seqs - len(self.running)):
            request = next_in_line()
            if request is None:
                break
            left = step.token_budget - request.num_tokens
            hits, cached = manager.get_computed_blocks(request)
            manager.allocate_slots(
                request=request,
                num_new_tokens=request.num_tokens - cached,
                num_new_computed_tokens=cached,
                new_computed_blocks=hits,
            )
            self._admit(step, cached, request.num_tokens - cached)
            step.token_budget = left
