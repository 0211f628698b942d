"""Names for what is asked, then all effects."""


class RemoteKVScheduler:
    def _start_load(self, step, request, hits, num_local, external):
        manager, config = self.kv_cache_manager, self.scheduler_config
        has_room = manager.allocate_for_load(
            request, external, num_local, hits, config.scheduler_reserve_full_isl
        )
        if has_room is None:
            return False
        for action, value in ((self.transfers.loading.add, request.request_id),
                              (self.passed_over.append, request)):  # fmt: skip
            action(value)
        request.num_computed_tokens = sum((num_local, external))
        request.transition_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
        self._count_cached(request, num_local, external)
        self.has_started_loads = True
        return True
