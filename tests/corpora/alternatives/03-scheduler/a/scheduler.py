"""Helpers with one job each; the running pass is a loop over a cursor in a small object."""


def after_extensions(scheduler, request, num_computed, num_new):
    for extension in scheduler.extensions:
        num_new = extension.limit_tokens(request, num_computed, num_new)
    return num_new


class Scheduler:
    def _clamp_new_tokens(self, num_new_tokens, num_computed_tokens, token_budget):
        limits = [num_new_tokens, token_budget, self.max_model_len - num_computed_tokens - 1]
        if self.long_prefill_cap > 0:
            limits.append(self.long_prefill_cap)
        smallest = min(limits)
        return smallest if smallest > 0 else 0

    def _pick_victim(self):
        if self.scheduler_config.policy != "priority":
            return self.running[len(self.running) - 1]
        worst = self.running[0]
        for request in self.running[1:]:
            if (request.priority, request.arrival_time) > (worst.priority, worst.arrival_time):
                worst = request
        return worst

    def _preempt(self, request):
        request.transition_to(RequestStatus.PREEMPTED)
        request.spec_token_ids = []
        request.num_computed_tokens = 0
        request.num_preemptions = request.num_preemptions + 1
        self.kv_cache_manager.free(request)
        self.waiting.prepend_request(request)
        self.running = [other for other in self.running if other is not request]

    def _schedule_running(self, step):
        lookahead = self.scheduler_config.num_lookahead_tokens

        def make_room(request, tokens):
            while True:
                blocks = self.kv_cache_manager.allocate_slots(
                    request, tokens, num_lookahead_tokens=lookahead
                )
                if blocks is not None:
                    return blocks
                if self._cap_if_too_large(request, lookahead):
                    return "ended"
                victim = self._pick_victim()
                self._refund(step, victim)
                self._preempt(victim)
                step.preempted.append(victim)
                if victim is request:
                    return None

        visited = set()
        while step.token_budget > 0:
            request = next((r for r in self.running if r.request_id not in visited), None)
            if request is None:
                return
            visited.add(request.request_id)
            done = request.num_computed_tokens
            lacking = request.num_tokens_with_spec - done
            if self.async_scheduling and lacking < 1:
                lacking = self._late_tokens(request)
            tokens = self._clamp_new_tokens(lacking, done, step.token_budget)
            tokens = after_extensions(self, request, done, tokens)
            if tokens:
                blocks = make_room(request, tokens)
                if blocks is None:
                    return
                if blocks != "ended":
                    step.add_running(request, tokens, blocks)

    def _advance_computed_tokens(self, output):
        for name in output.num_scheduled_tokens:
            request = self.requests[name]
            request.num_computed_tokens = (
                request.num_computed_tokens + output.num_scheduled_tokens[name]
            )
        self.finished_req_ids = set()

    def _try_admit(self, step, request):
        config, manager = self.scheduler_config, self.kv_cache_manager
        hits, cached = manager.get_computed_blocks(request)
        tokens = request.num_tokens - cached
        if self.long_prefill_cap > 0:
            tokens = min(tokens, self.long_prefill_cap)
        if tokens > step.token_budget:
            if not config.enable_chunked_prefill:
                return False
            tokens = step.token_budget
        tokens = after_extensions(self, request, cached, tokens)
        whole, asked = config.scheduler_reserve_full_isl, self._at_admission()
        lookahead, reserved = asked.get("num_lookahead_tokens", 0), asked.get("reserved_blocks", 0)
        blocks = tokens and manager.allocate_slots(
            request, tokens, cached, hits, lookahead, whole, reserved
        )
        if blocks is None or not tokens:
            return False
        manager.prefix_cache_stats.record(request.num_tokens, cached)
        if not request.num_preemptions:
            request.num_cached_tokens = cached
        request.num_computed_tokens = cached
        request.transition_to(RequestStatus.RUNNING)
        self.running.append(request)
        step.add_admitted(request, tokens, manager.get_block_ids(request.request_id))
        return True

    def _next_queue(self):
        queues = [queue for queue in (self.skipped_waiting, self.waiting) if len(queue)]
        if self.scheduler_config.policy == "priority":
            queues.sort(key=lambda queue: queue.peek_request())
        return queues[0] if queues else None

    def _schedule_waiting(self, step):
        held_back = []
        while step.token_budget > 0 and len(self.running) < self.scheduler_config.max_num_seqs:
            queue = self._next_queue()
            if queue is None:
                break
            request = queue.peek_request()
            if self._may_admit(request):
                if self._try_admit(step, request):
                    queue.pop_request()
                elif not self._cap_if_too_large(request):
                    break
            else:
                held_back.append(queue.pop_request())
        for request in reversed(held_back):
            self.skipped_waiting.prepend_request(request)

    def check_stop(self, request):
        params, count = request.sampling_params, len(request.output_token_ids)
        newest = request.output_token_ids[-1]
        long_enough = count >= params.min_tokens
        if long_enough and request.eos_token_id is not None and newest == request.eos_token_id:
            return RequestStatus.FINISHED_STOPPED
        if long_enough and newest in request.stop_token_ids:
            request.stop_reason = newest
            return RequestStatus.FINISHED_STOPPED
        full = self.max_model_len - len(request.all_token_ids) <= 0
        enough = params.max_tokens is not None and params.max_tokens - count <= 0
        return RequestStatus.FINISHED_LENGTH_CAPPED if full or enough else None

    def _append_until_stop(self, request, token_ids):
        status, taken = None, 0
        while status is None and taken < len(token_ids):
            request.append_output_token_ids(token_ids[taken])
            taken += 1
            status = self.check_stop(request)
        token_ids[taken:] = []
        return status

    def update_from_output(self, output, sampled_token_ids):
        reports, ended = [], {}
        for name in output.num_scheduled_tokens:
            tokens = sampled_token_ids.get(name) or []
            request = self.requests.get(name)
            if not tokens or request is None:
                continue
            guessed = len(output.scheduled_spec_decode_tokens.get(name, ()))
            if guessed and request.num_computed_tokens > 0:
                accepted = len(tokens) - 1
                request.num_computed_tokens -= guessed - accepted
            status = self._append_until_stop(request, tokens)
            if self.async_scheduling and request in self.running:
                self._publish(request)
            if status is not None:
                ended[request] = status
                reports.append(EngineCoreOutput.last(request, tokens, status))
                continue
            reports.append(EngineCoreOutput(name, tokens))
        self._finish(ended)
        capped, self.capped = self.capped, []
        return reports + [EngineCoreOutput.last(r, [], r.status) for r in capped]
