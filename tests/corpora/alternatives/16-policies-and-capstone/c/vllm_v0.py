"""The last member gets its slots first; victims come from a heap of those that are less urgent."""


class VllmV0:
    def _swap_out(self, step, group):
        self.swapped.extend([list(group)])
        step.blocks_to_swap_out.extend(self.kv_cache_manager.swap_out(self.swapped[-1]))

    def _swap_in(self, step, group, tokens):
        manager = self.kv_cache_manager
        returned = manager.swap_in(group)
        slots = {request: self._num_slots(request) for request in group}
        copies = [manager.append(request, slots[request])[1] for request in reversed(group)]
        step.blocks_to_swap_in += returned
        step.blocks_to_copy += [pair for pairs in copies for pair in pairs]
        for request in group:
            self._charge(step, request, tokens[request])
            self._run(step, request, request.num_computed_tokens, tokens[request])

    def _schedule_priority_preemption(self, step):
        import heapq

        request = self._head()
        if request is None:
            return 0
        heap = []
        for number, group in enumerate(self.groups.split(sorted(self.running))):
            key = (-group[0].priority, -group[0].arrival_time)
            if key < (-request.priority, -request.arrival_time):
                heapq.heappush(heap, (*key, number, group))
        most = len(heap)
        while heap and not self._fits(request, step.budget):
            *_, group = heapq.heappop(heap)
            self._preempt_group(step, group)
        return most - len(heap)
