"""numpy's unsigned numbers for the hash, the inverse of the distribution counted from the end."""


class Sampler:
    def forward(self, logits, metadata):
        def logprobs_of(tokens):
            if metadata.max_num_logprobs is None:
                return None
            table = compute_logprobs(logits)
            return gather_logprobs(table, metadata.max_num_logprobs, tokens)

        masked = self.apply_processors(logits.float(), metadata)
        sampled = self.sample(masked, metadata)
        return SamplerOutput(mark_failed_rows(masked, sampled), logprobs_of(sampled))

    def sample(self, logits, metadata):
        ways = []
        if not metadata.all_random:
            ways.append(greedy_sample(logits))
        if not metadata.all_greedy:
            ways.append(self.sample_randomly(logits, metadata))
        if len(ways) == 1:
            return ways[0]
        choice = (metadata.temperature != 0).long()
        return torch.stack(ways).gather(0, choice.unsqueeze(0)).squeeze(0)

    @staticmethod
    def sample_randomly(logits, metadata):
        logits = apply_temperature(logits, metadata.temperature)
        if metadata.min_p is not None:
            logits = apply_min_p(logits, metadata.min_p)
        if metadata.top_k is not None:
            logits = apply_top_k_top_p(logits, metadata.top_k, None)
        if metadata.top_p is not None:
            logits = apply_top_k_top_p(logits, None, metadata.top_p)
        return sample_from_logits(
            logits, uniform_numbers(metadata.seeds, metadata.num_output_tokens)
        )


def sample_from_logits(logits, uniform):
    weights = (logits.double() - logits.double().amax(dim=-1, keepdim=True)).exp()
    running_sum = weights.cumsum(dim=-1)
    above = running_sum > (uniform.double() * running_sum[:, -1]).unsqueeze(1)
    return above.long().argmax(dim=-1)


def uniform_numbers(seeds, num_output_tokens):
    import numpy as np

    golden = np.uint64(GOLDEN_RATIO % 2**64)

    def mix(x):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return x

    seeds = seeds.cpu().numpy().astype(np.uint64)
    index = num_output_tokens.cpu().numpy().astype(np.uint64)
    bits = mix(mix(seeds + golden) + index * golden)
    return torch.from_numpy(((bits >> np.uint64(40)) / 2.0**24).astype(np.float32))


def gather_logprobs(logprobs, num_logprobs, token_ids):
    k = min(num_logprobs, logprobs.shape[-1])
    columns = [token_ids.unsqueeze(1)]
    if k:
        columns.append(logprobs.topk(k, dim=-1).indices)
    ids = torch.hstack(columns)
    values = torch.take_along_dim(logprobs, ids, dim=1)
    ranks = torch.ge(logprobs, values[:, :1]).long().sum(dim=1)
    return LogprobsTensors(ids, values, ranks)


def compute_prompt_logprobs(logits, next_token_ids, num_logprobs):
    return gather_logprobs(
        logprobs=compute_logprobs(logits), num_logprobs=num_logprobs, token_ids=next_token_ids
    )
