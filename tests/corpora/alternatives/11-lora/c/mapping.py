"""Plain lists: rows in buckets, buckets in the order of their slots."""


class LoRAKernelMeta:
    def prepare_tensors(self, token_slots):
        buckets = {}
        for row, slot in enumerate(token_slots.tolist()):
            buckets.setdefault(slot, []).append(row)
        used = sorted(buckets)
        counts = [len(buckets[slot]) for slot in used]
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        order = [row for slot in used for row in buckets[slot]]
        fill(self.token_lora_mapping, token_slots.tolist(), -1)
        fill(self.token_indices_sorted_by_lora_ids, order, 0)
        fill(self.active_lora_ids, used, -1)
        fill(self.num_tokens_per_lora, counts, 0)
        fill(self.lora_token_start_loc, starts, 0)


def fill(target, values, rest):
    padded = values + [rest] * (len(target) - len(values))
    target.copy_(torch.tensor(padded, dtype=target.dtype))
