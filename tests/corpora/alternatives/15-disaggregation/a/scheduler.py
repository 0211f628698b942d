"""The same effects in another order."""


class RemoteKVScheduler:
    def _start_load(self, step, request, hits, num_local, external):
        whole = self.scheduler_config.scheduler_reserve_full_isl
        got = self.kv_cache_manager.allocate_for_load(request, external, num_local, hits, whole)
        if got is not None:
            request.transition_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
            request.num_computed_tokens = external + num_local
            self.has_started_loads = True
            self.transfers.loading |= {request.request_id}
            self.passed_over += [request]
            self._count_cached(request, num_local, external)
        return got is not None
