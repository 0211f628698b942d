"""Field by field, with plain loops."""


class CompletionOutput:
    def extend(self, later):
        self.text = "".join([self.text, later.text])
        self.token_ids.extend(later.token_ids)
        if later.logprobs is not None and len(later.logprobs) > 0:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs = self.logprobs + list(later.logprobs)
        for name in ("cumulative_logprob", "finish_reason", "stop_reason"):
            setattr(self, name, getattr(later, name))


class RequestOutput:
    def add(self, next_output, aggregate):
        for completion in next_output.outputs:
            for place, mine in enumerate(self.outputs):
                if mine.index != completion.index:
                    continue
                if aggregate:
                    mine.extend(completion)
                else:
                    self.outputs[place] = completion
                break
            else:
                self.outputs.append(completion)
        if next_output.finished:
            self.finished = True
        if next_output.num_cached_tokens > self.num_cached_tokens:
            self.num_cached_tokens = next_output.num_cached_tokens
        for name in ("error", "kv_transfer_params", "prompt_logprobs"):
            if not getattr(self, name):
                setattr(self, name, getattr(next_output, name))
