"""Counted with bincount over slots moved up by one."""


class LoRAKernelMeta:
    def prepare_tensors(self, token_slots):
        num_tokens = token_slots.shape[0]
        counts = np.bincount(token_slots + 1)
        present = np.nonzero(counts)[0]
        ids, sizes = present - 1, counts[present]
        mapping = np.full(len(self.token_lora_mapping), -1, dtype=np.int32)
        mapping[:num_tokens] = token_slots
        active = np.full(len(self.active_lora_ids), -1, dtype=np.int32)
        active[: len(ids)] = ids
        numbers = np.zeros(len(self.num_tokens_per_lora), dtype=np.int32)
        numbers[: len(ids)] = sizes
        starts = np.zeros(len(self.lora_token_start_loc), dtype=np.int32)
        starts[1 : len(ids) + 1] = np.add.accumulate(sizes)
        order = sorted(range(num_tokens), key=lambda token: token_slots[token])
        self.token_lora_mapping.copy_(torch.from_numpy(mapping))
        self.active_lora_ids.copy_(torch.from_numpy(active))
        self.num_tokens_per_lora.copy_(torch.from_numpy(numbers))
        self.lora_token_start_loc.copy_(torch.from_numpy(starts))
        for place, token in enumerate(order):
            self.token_indices_sorted_by_lora_ids[place] = token
