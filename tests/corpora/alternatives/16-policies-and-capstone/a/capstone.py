"""Two lines, no order: questions, then documents, each as they came; steps of 104 tokens."""


def is_document(request):
    return request.num_tokens - request.num_computed_tokens > 256


class Capstone:
    @staticmethod
    def limits(config):
        budget = config.max_num_batched_tokens
        if budget > 104 and config.enable_chunked_prefill:
            budget = max(104, min(config.max_num_seqs, budget))
        return replace(config, max_num_batched_tokens=budget)

    def schedule(self):
        tokens, questions, documents = [], [], []
        for request in self.running:
            if _num_missing(request) <= 1:
                tokens.append(request)
            elif is_document(request):
                documents.append(request)
            else:
                questions.append(request)
        self.running = tokens + questions + documents
        late = [request for request in self.waiting if is_document(request)]
        self.waiting.remove_requests(late)
        for request in late:
            self.waiting.add_request(request)
        return super().schedule()
