"""By hand, field by field; completions by their index in a table."""


class CompletionOutput:
    def extend(self, later):
        self.text = self.text + later.text
        self.token_ids = list(self.token_ids) + list(later.token_ids)
        if later.logprobs is not None:
            before = [] if self.logprobs is None else self.logprobs
            self.logprobs = list(before) + list(later.logprobs)
        if later.cumulative_logprob is not None:
            self.cumulative_logprob = later.cumulative_logprob
        if later.finish_reason is not None:
            self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason


class RequestOutput:
    def add(self, next_output, aggregate):
        if next_output.finished:
            self.finished = True
        if self.error is None:
            self.error = next_output.error
        if self.kv_transfer_params is None:
            self.kv_transfer_params = next_output.kv_transfer_params
        if self.prompt_logprobs is None:
            self.prompt_logprobs = next_output.prompt_logprobs
        if next_output.num_cached_tokens > self.num_cached_tokens:
            self.num_cached_tokens = next_output.num_cached_tokens
        by_index = {completion.index: completion for completion in self.outputs}
        for later in next_output.outputs:
            mine = by_index.get(later.index)
            if mine is not None and aggregate:
                mine.extend(later)
            else:
                by_index[later.index] = later
        self.outputs = list(by_index.values())
