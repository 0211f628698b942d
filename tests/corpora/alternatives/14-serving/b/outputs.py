"""Completions go through a table by index."""


class CompletionOutput:
    def extend(self, later):
        logprobs = [*(self.logprobs or ()), *(later.logprobs or ())]
        self.logprobs = logprobs if later.logprobs else self.logprobs
        self.text, self.token_ids = self.text + later.text, [*self.token_ids, *later.token_ids]
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.cumulative_logprob = later.cumulative_logprob


class RequestOutput:
    def add(self, next_output, aggregate):
        table = {completion.index: completion for completion in self.outputs}
        for completion in next_output.outputs:
            if aggregate and completion.index in table:
                table[completion.index].extend(completion)
            else:
                table[completion.index] = completion
        self.outputs[:] = table.values()
        self.finished = self.finished or next_output.finished
        self.error = self.error if self.error else next_output.error
        both = self.num_cached_tokens, next_output.num_cached_tokens
        self.num_cached_tokens = max(both)
        self.prompt_logprobs = self.prompt_logprobs or next_output.prompt_logprobs
        self.kv_transfer_params = self.kv_transfer_params or next_output.kv_transfer_params
