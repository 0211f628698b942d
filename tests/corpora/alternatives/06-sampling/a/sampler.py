"""One row after the other; the hash in Python's whole numbers."""


class Sampler:
    def forward(self, logits, metadata):
        logits = logits.to(torch.float32)
        processed = Sampler.apply_processors(logits, metadata)
        tokens = self.sample(processed, metadata)
        k = metadata.max_num_logprobs
        logprobs = None if k is None else gather_logprobs(compute_logprobs(logits), k, tokens)
        tokens = mark_failed_rows(processed, tokens)
        return SamplerOutput(sampled_token_ids=tokens, logprobs=logprobs)

    def sample(self, logits, metadata):
        if metadata.all_greedy:
            return greedy_sample(logits)
        tokens = self.sample_randomly(logits, metadata)
        if not metadata.all_random:
            for row, temperature in enumerate(metadata.temperature.tolist()):
                if temperature == 0:
                    tokens[row] = greedy_sample(logits[row : row + 1])[0]
        return tokens

    @staticmethod
    def sample_randomly(logits, metadata):
        steps = [
            (apply_temperature, (metadata.temperature,)),
            (apply_min_p, (metadata.min_p,)),
            (apply_top_k_top_p, (metadata.top_k, metadata.top_p)),
        ]
        for step, values in steps:
            if any(value is not None for value in values):
                logits = step(logits, *values)
        numbers = uniform_numbers(metadata.seeds, metadata.num_output_tokens)
        return sample_from_logits(logits, numbers)


def sample_from_logits(logits, uniform):
    tokens = []
    for row, number in zip(logits.double(), uniform.tolist(), strict=True):
        probabilities = row.softmax(dim=-1).tolist()
        target, total, token = number * sum(probabilities), 0.0, len(probabilities) - 1
        for index, probability in enumerate(probabilities):
            total += probability
            if total > target:
                token = index
                break
        tokens.append(token)
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def uniform_numbers(seeds, num_output_tokens):
    whole = (1 << 64) - 1

    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & whole
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & whole
        return x ^ (x >> 31)

    numbers = []
    for seed, index in zip(seeds.tolist(), num_output_tokens.tolist(), strict=True):
        start = mix((seed + GOLDEN_RATIO) & whole)
        numbers.append((mix((start + index * GOLDEN_RATIO) & whole) >> 40) / 2**24)
    return torch.tensor(numbers, dtype=torch.float32, device=seeds.device)


def gather_logprobs(logprobs, num_logprobs, token_ids):
    ids, values, ranks = [], [], []
    for row, token_id in zip(logprobs, token_ids.tolist(), strict=True):
        top = row.topk(min(num_logprobs, len(row)))
        ids.append([token_id, *top.indices.tolist()])
        values.append([row[token_id].item(), *top.values.tolist()])
        ranks.append(int((row >= row[token_id]).sum()))
    shape = (len(ids), min(num_logprobs, logprobs.shape[1]) + 1)
    return LogprobsTensors(
        torch.tensor(ids, dtype=torch.int64).reshape(shape),
        torch.tensor(values, dtype=torch.float32).reshape(shape),
        torch.tensor(ranks, dtype=torch.int64),
    )


def compute_prompt_logprobs(logits, next_token_ids, num_logprobs):
    logprobs = torch.log_softmax(logits.float(), dim=1)
    return gather_logprobs(logprobs, num_logprobs, next_token_ids)
