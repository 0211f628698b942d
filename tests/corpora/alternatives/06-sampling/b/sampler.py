"""Comparisons instead of searches, sorted tables instead of `topk`."""


class Sampler:
    def forward(self, logits, metadata):
        before = logits.float()
        after = self.apply_processors(before, metadata)
        chosen = self.sample(after, metadata)
        output = SamplerOutput(mark_failed_rows(after, chosen), None)
        if (wanted := metadata.max_num_logprobs) is not None:
            output.logprobs = gather_logprobs(compute_logprobs(before), wanted, chosen)
        return output

    def sample(self, logits, metadata):
        if metadata.all_random:
            return self.sample_randomly(logits, metadata)
        greedy = greedy_sample(logits)
        if metadata.all_greedy:
            return greedy
        is_random = metadata.temperature > 0
        greedy[is_random] = self.sample_randomly(logits, metadata)[is_random]
        return greedy

    @staticmethod
    def sample_randomly(logits, metadata):
        numbers = uniform_numbers(metadata.seeds, metadata.num_output_tokens)
        scaled = apply_temperature(logits, metadata.temperature)
        likely = scaled if metadata.min_p is None else apply_min_p(scaled, metadata.min_p)
        left = apply_top_k_top_p(likely, metadata.top_k, metadata.top_p)
        return sample_from_logits(left, numbers)


def sample_from_logits(logits, uniform):
    running_sum = torch.softmax(logits.double(), dim=1).cumsum(dim=1)
    target = uniform.double()[:, None] * running_sum[:, -1:]
    passed = (running_sum <= target).sum(dim=1)
    return torch.minimum(passed, torch.tensor(logits.shape[1] - 1))


def uniform_numbers(seeds, num_output_tokens):
    place = mix64(seeds + GOLDEN_RATIO) + GOLDEN_RATIO * num_output_tokens
    top = torch.bitwise_and(mix64(place) >> 40, 0xFFFFFF)
    return (top.double() / 16777216).to(torch.float32)


def gather_logprobs(logprobs, num_logprobs, token_ids):
    falling = logprobs.sort(dim=1, descending=True)
    own = logprobs[torch.arange(len(logprobs)), token_ids]
    ids = torch.column_stack([token_ids, falling.indices[:, :num_logprobs]])
    values = torch.column_stack([own, falling.values[:, :num_logprobs]])
    ranks = logprobs.shape[1] - (logprobs < own[:, None]).sum(dim=1)
    return LogprobsTensors(ids, values, ranks)


def compute_prompt_logprobs(logits, next_token_ids, num_logprobs):
    logits = logits.float()
    normalised = logits - logits.logsumexp(dim=-1, keepdim=True)
    return gather_logprobs(normalised, num_logprobs, next_token_ids)
