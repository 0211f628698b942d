"""Slots one after another, into lists."""


class LoRAKernelMeta:
    def prepare_tensors(self, token_slots):
        by_slot = {}
        for token, slot in enumerate(token_slots.tolist()):
            by_slot.setdefault(slot, []).append(token)
        present = sorted(by_slot)
        starts = [0]
        for slot in present:
            starts.append(starts[-1] + len(by_slot[slot]))

        def write(tensor, values, rest):
            tensor.fill_(rest)
            tensor[: len(values)] = torch.tensor(values, dtype=tensor.dtype)

        write(self.token_lora_mapping, token_slots.tolist(), -1)
        write(self.active_lora_ids, present, -1)
        write(self.num_tokens_per_lora, [len(by_slot[slot]) for slot in present], 0)
        write(self.lora_token_start_loc, starts, 0)
        order = [token for slot in present for token in by_slot[slot]]
        write(self.token_indices_sorted_by_lora_ids, order, 0)
