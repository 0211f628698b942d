"""The same steps, in the order of the chapter."""


class RemoteKVScheduler:
    def _start_load(self, step, request, hits, num_local, external):
        blocks = self.kv_cache_manager.allocate_for_load(
            request,
            external,
            num_local,
            hits,
            full_sequence_must_fit=self.scheduler_config.scheduler_reserve_full_isl,
        )
        if blocks is None:
            return False
        self._count_cached(request, external=external, num_local=num_local)
        request.num_computed_tokens = num_local + external
        request.transition_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
        self.transfers.loading.add(request.request_id)
        self.passed_over.append(request)
        self.has_started_loads = True
        return True
