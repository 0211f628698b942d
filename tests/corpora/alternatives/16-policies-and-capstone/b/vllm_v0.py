"""The plan's lists are made anew; after each victim the least urgent group is looked for afresh."""


def rank(request):
    return request.priority, request.arrival_time


class VllmV0:
    def _swap_out(self, step, group):
        self.swapped.append([request for request in group])
        moved = self.kv_cache_manager.swap_out(group)
        step.blocks_to_swap_out = step.blocks_to_swap_out + moved

    def _swap_in(self, step, group, tokens):
        back = self.kv_cache_manager.swap_in(group)
        step.blocks_to_swap_in = [*step.blocks_to_swap_in, *back]
        for request in group:
            _, copies = self.kv_cache_manager.append(request, self._num_slots(request))
            step.blocks_to_copy = [*step.blocks_to_copy, *copies]
            request.transition_to(RequestStatus.RUNNING)
            self.running = [*self.running, request]
            table = self.kv_cache_manager.get_block_ids(request.request_id)
            step.add_admitted(request, tokens[request], table)
            step.budget.add_seq(request.request_id)
            step.budget.add_tokens(request.request_id, tokens[request])

    def _schedule_priority_preemption(self, step):
        request, num_groups = self._head(), 0
        while request is not None and self.running and not self._fits(request, step.budget):
            groups = self.groups.split(sorted(self.running))
            last = max(groups, key=lambda group: rank(min(group)))
            if not rank(min(last)) > rank(request):
                break
            self._preempt_group(step, last)
            num_groups += 1
        return num_groups
