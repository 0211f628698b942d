"""The running pass walks over a copy; who has left since is stepped over."""


class Scheduler:
    def _clamp_new_tokens(self, num_new_tokens, num_computed_tokens, token_budget):
        threshold = self.long_prefill_cap or num_new_tokens
        last_position = self.max_model_len - 2
        for limit in (threshold, token_budget, last_position - num_computed_tokens + 1):
            if num_new_tokens > limit:
                num_new_tokens = limit
        return max(0, num_new_tokens)

    def _pick_victim(self):
        if self.scheduler_config.policy == "fcfs":
            return self.running[-1]
        key = lambda request: (request.priority, request.arrival_time)  # noqa: E731
        return sorted(self.running, key=key, reverse=True)[0]

    def _preempt(self, request):
        position = self.running.index(request)
        del self.running[position]
        request.num_preemptions += 1
        request.num_computed_tokens, request.spec_token_ids = 0, []
        self.kv_cache_manager.free(request)
        request.transition_to(RequestStatus.PREEMPTED)
        self.waiting.prepend_request(request)

    def _schedule_running(self, step):
        for request in tuple(self.running):
            if step.token_budget <= 0:
                break
            if request not in self.running:
                continue
            computed = request.num_computed_tokens
            wanted = request.num_tokens_with_spec - computed
            if self.async_scheduling:
                wanted = wanted if wanted > 0 else self._late_tokens(request)
            wanted = self._clamp_new_tokens(wanted, computed, step.token_budget)
            for extension in self.extensions:
                wanted = extension.limit_tokens(request, computed, wanted)
            if wanted == 0:
                continue
            lookahead = self.scheduler_config.num_lookahead_tokens
            blocks = self.kv_cache_manager.allocate_slots(
                request, wanted, num_lookahead_tokens=lookahead
            )
            while blocks is None and not self._cap_if_too_large(request, lookahead):
                victim = self._pick_victim()
                self._refund(step, victim)
                step.preempted.append(victim)
                self._preempt(victim)
                if victim is request:
                    return
                blocks = self.kv_cache_manager.allocate_slots(
                    request, wanted, num_lookahead_tokens=lookahead
                )
            if blocks is not None:
                step.add_running(request, wanted, blocks)

    def _advance_computed_tokens(self, output):
        for name, request in self.requests.items():
            request.num_computed_tokens += output.num_scheduled_tokens.get(name, 0)
        self.finished_req_ids = type(self.finished_req_ids)()

    def _try_admit(self, step, request):
        hits, found = self.kv_cache_manager.get_computed_blocks(request)
        rest = request.num_tokens - found
        cap = self.long_prefill_cap
        chunk = rest if cap == 0 or rest < cap else cap
        whole = self.scheduler_config.enable_chunked_prefill is False
        if whole and chunk > step.token_budget:
            return False
        chunk = chunk if chunk < step.token_budget else step.token_budget
        for extension in self.extensions:
            chunk = extension.limit_tokens(request, found, chunk)
        if chunk < 1:
            return False
        given = self.kv_cache_manager.allocate_slots(
            request=request,
            num_new_tokens=chunk,
            num_new_computed_tokens=found,
            new_computed_blocks=hits,
            full_sequence_must_fit=self.scheduler_config.scheduler_reserve_full_isl,
            **self._at_admission(),
        )
        if given is None:
            return False
        self.kv_cache_manager.prefix_cache_stats.record(request.num_tokens, found)
        first_time = request.num_preemptions == 0
        request.num_cached_tokens = found if first_time else request.num_cached_tokens
        request.num_computed_tokens = found
        self.running += [request]
        request.transition_to(RequestStatus.RUNNING)
        ids = self.kv_cache_manager.get_block_ids(request.request_id)
        step.add_admitted(request, chunk, ids)
        return True

    def _next_queue(self):
        if not len(self.skipped_waiting):
            return self.waiting if len(self.waiting) else None
        if not len(self.waiting) or self.scheduler_config.policy == "fcfs":
            return self.skipped_waiting
        mine, other = self.waiting.peek_request(), self.skipped_waiting.peek_request()
        return self.waiting if mine < other else self.skipped_waiting

    def _schedule_waiting(self, step):
        passed_over = []
        while step.token_budget > 0 and len(self.running) != self.scheduler_config.max_num_seqs:
            queue = self._next_queue()
            if queue is None:
                break
            request = queue.peek_request()
            if not self._may_admit(request):
                passed_over.append(queue.pop_request())
                continue
            admitted = self._try_admit(step, request)
            if admitted:
                queue.remove_requests([request])
            if not admitted and not self._cap_if_too_large(request):
                break
        passed_over.reverse()
        self.skipped_waiting.prepend_requests(passed_over)

    def check_stop(self, request):
        count = len(request.output_token_ids)
        token = request.output_token_ids[count - 1]
        if not count < request.sampling_params.min_tokens:
            if token == request.eos_token_id:
                return RequestStatus.FINISHED_STOPPED
            if token in request.stop_token_ids:
                request.stop_reason = token
                return RequestStatus.FINISHED_STOPPED
        limit = request.sampling_params.max_tokens
        limit = float("inf") if limit is None else limit
        capped = count == limit or request.num_tokens >= self.max_model_len
        return RequestStatus.FINISHED_LENGTH_CAPPED if capped else None

    def _append_until_stop(self, request, token_ids):
        pending = list(token_ids)
        token_ids.clear()
        for token_id in pending:
            token_ids.append(token_id)
            request.append_output_token_ids(token_id)
            if (status := self.check_stop(request)) is not None:
                return status
        return None

    def update_from_output(self, output, sampled_token_ids):
        def take(request, tokens):
            drafts = output.scheduled_spec_decode_tokens.get(request.request_id) or []
            if drafts and request.num_computed_tokens:
                request.num_computed_tokens += len(tokens) - 1 - len(drafts)
            status = self._append_until_stop(request, tokens)
            if self.async_scheduling and request.status is RequestStatus.RUNNING:
                self._publish(request)
            return status

        verdicts = {}
        for name in output.num_scheduled_tokens:
            if name in self.requests and sampled_token_ids.get(name):
                request = self.requests[name]
                verdicts[name] = (request, take(request, sampled_token_ids[name]))
        outputs = []
        for name, (request, status) in verdicts.items():
            tokens = sampled_token_ids[name]
            if status is None:
                outputs.append(EngineCoreOutput(name, tokens))
            else:
                outputs.append(EngineCoreOutput.last(request, tokens, status))
        self._finish({request: status for request, status in verdicts.values() if status})
        outputs.extend(EngineCoreOutput.last(r, [], r.status) for r in self.capped)
        self.capped = []
        return outputs
