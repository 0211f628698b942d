"""Groups are walked from their end; slots for all members first, then all of them run."""


class VllmV0:
    def _swap_out(self, step, group):
        for pair in self.kv_cache_manager.swap_out(group):
            step.blocks_to_swap_out.append(pair)
        self.swapped += [[*group]]

    def _swap_in(self, step, group, tokens):
        manager = self.kv_cache_manager
        step.blocks_to_swap_in.extend(manager.swap_in(group))
        for request in group:
            step.blocks_to_copy.extend(manager.append(request, self._num_slots(request))[1])
        for request in group:
            self._run(step, request, request.num_computed_tokens, tokens[request])
            self._charge(step, request, tokens[request])

    def _schedule_priority_preemption(self, step):
        newcomer, count = self._head(), 0
        if newcomer is not None:
            for group in reversed(self.groups.split(sorted(self.running))):
                urgency = (group[0].priority, group[0].arrival_time)
                equal_or_more = urgency <= (newcomer.priority, newcomer.arrival_time)
                if equal_or_more or self._fits(newcomer, step.budget):
                    return count
                self._preempt_group(step, group)
                count += 1
        return count
