"""Recursion where others loop: one request after the other, one attempt after the other."""


class Scheduler:
    def _clamp_new_tokens(self, num_new_tokens, num_computed_tokens, token_budget):
        positions = range(num_computed_tokens, self.max_model_len - 1)
        allowed = min(len(positions), token_budget) if token_budget > 0 else 0
        threshold = self.long_prefill_cap
        if threshold and allowed > threshold:
            allowed = threshold
        return allowed if num_new_tokens > allowed else max(num_new_tokens, 0)

    def _pick_victim(self):
        from functools import reduce

        if self.scheduler_config.policy == "priority":
            rank = lambda r: (r.priority, r.arrival_time)  # noqa: E731
            return reduce(lambda a, b: b if rank(b) > rank(a) else a, self.running)
        *_, last = self.running
        return last

    def _preempt(self, request):
        self.running.pop(next(i for i, other in enumerate(self.running) if other is request))
        self.kv_cache_manager.free(request)
        for name, value in (("num_computed_tokens", 0), ("spec_token_ids", [])):
            setattr(request, name, value)
        request.num_preemptions += 1
        request.transition_to(RequestStatus.PREEMPTED)
        self.waiting.prepend_requests([request])

    def _schedule_running(self, step):
        lookahead = self.scheduler_config.num_lookahead_tokens

        def blocks_for(request, number):
            blocks = self.kv_cache_manager.allocate_slots(
                request, number, num_lookahead_tokens=lookahead
            )
            if blocks is not None or self._cap_if_too_large(request, lookahead):
                return blocks
            victim = self._pick_victim()
            self._refund(step, victim)
            self._preempt(victim)
            step.preempted.append(victim)
            return None if victim is request else blocks_for(request, number)

        def serve(requests):
            if not requests or step.token_budget <= 0:
                return
            request, *others = requests
            computed = request.num_computed_tokens
            lacks = request.num_tokens_with_spec - computed
            late = self.async_scheduling and lacks <= 0
            number = self._clamp_new_tokens(
                self._late_tokens(request) if late else lacks, computed, step.token_budget
            )
            for extension in self.extensions:
                number = extension.limit_tokens(request, computed, number)
            if number:
                blocks = blocks_for(request, number)
                if blocks is not None:
                    step.add_running(request, number, blocks)
                if request in step.preempted:
                    return
            serve([other for other in others if other in self.running])

        serve(list(self.running))

    def _advance_computed_tokens(self, output):
        self.finished_req_ids = set()
        scheduled = dict(output.num_scheduled_tokens)
        while scheduled:
            name, number = scheduled.popitem()
            self.requests[name].num_computed_tokens += number

    def _try_admit(self, step, request):
        hits, cached = self.kv_cache_manager.get_computed_blocks(request)
        missing = request.num_tokens - cached
        caps = [missing]
        if threshold := self.long_prefill_cap:
            caps.append(threshold)
        if min(caps) > step.token_budget and not self.scheduler_config.enable_chunked_prefill:
            return False
        number = min(*caps, step.token_budget)
        for extension in self.extensions:
            number = extension.limit_tokens(request, cached, number)
        arguments = {"num_new_computed_tokens": cached, "new_computed_blocks": hits}
        if self.scheduler_config.scheduler_reserve_full_isl:
            arguments["full_sequence_must_fit"] = True
        arguments |= self._at_admission()
        admitted = number > 0 and (
            self.kv_cache_manager.allocate_slots(request, number, **arguments) is not None
        )
        if admitted:
            request.transition_to(RequestStatus.RUNNING)
            if request.num_preemptions < 1:
                request.num_cached_tokens = cached
            request.num_computed_tokens = cached
            self.kv_cache_manager.prefix_cache_stats.record(request.num_tokens, cached)
            self.running.insert(len(self.running), request)
            table = self.kv_cache_manager.get_block_ids(request.request_id)
            step.add_admitted(request, number, table)
        return admitted

    def _next_queue(self):
        match bool(self.skipped_waiting), bool(self.waiting):
            case False, False:
                return None
            case True, False:
                return self.skipped_waiting
            case False, True:
                return self.waiting
        if self.scheduler_config.policy == "fcfs":
            return self.skipped_waiting
        heads = (self.skipped_waiting.peek_request(), self.waiting.peek_request())
        return (self.skipped_waiting, self.waiting)[heads[1] < heads[0]]

    def _schedule_waiting(self, step):
        def full():
            rows = self.scheduler_config.max_num_seqs - len(self.running)
            return rows == 0 or step.token_budget <= 0

        def admit(held_back):
            queue = None if full() else self._next_queue()
            if queue is None:
                return held_back
            request = queue.peek_request()
            if not self._may_admit(request):
                return admit([queue.pop_request(), *held_back])
            if self._try_admit(step, request):
                queue.pop_request()
                return admit(held_back)
            return admit(held_back) if self._cap_if_too_large(request) else held_back

        for request in admit([]):
            self.skipped_waiting.prepend_request(request)

    def check_stop(self, request):
        params, output = request.sampling_params, request.output_token_ids
        *_, newest = output
        stops = {}
        if len(output) >= params.min_tokens:
            stops = {token: token for token in request.stop_token_ids}
            if request.eos_token_id is not None:
                stops[request.eos_token_id] = None
        if newest in stops:
            if stops[newest] is not None:
                request.stop_reason = stops[newest]
            return RequestStatus.FINISHED_STOPPED
        most = [self.max_model_len - len(request.prompt_token_ids)]
        if params.max_tokens is not None:
            most.append(params.max_tokens)
        return RequestStatus.FINISHED_LENGTH_CAPPED if len(output) >= min(most) else None

    def _append_until_stop(self, request, token_ids):
        for kept, token_id in enumerate(tuple(token_ids), start=1):
            request.append_output_token_ids([token_id])
            status = self.check_stop(request)
            if status is not None:
                while len(token_ids) > kept:
                    token_ids.pop()
                return status

    def update_from_output(self, output, sampled_token_ids):
        outputs, stopped = [], {}

        def take(name):
            request, tokens = self.requests[name], sampled_token_ids[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            rejected = len(drafts) - (len(tokens) - 1)
            if drafts and request.num_computed_tokens != 0:
                request.num_computed_tokens -= rejected
            status = self._append_until_stop(request, tokens)
            if self.async_scheduling and self.kv_cache_manager.req_to_blocks.get(name):
                self._publish(request)
            if status is not None:
                stopped[request] = status
                return EngineCoreOutput.last(request, tokens, status)
            return EngineCoreOutput(name, tokens)

        alive = [name for name in output.num_scheduled_tokens if name in self.requests]
        outputs += [take(name) for name in alive if sampled_token_ids.get(name)]
        self._finish(stopped)
        while self.capped:
            request = self.capped.pop(0)
            outputs.append(EngineCoreOutput.last(request, [], request.status))
        return outputs
