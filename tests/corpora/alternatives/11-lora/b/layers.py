"""A whole slot is put together beside it, and copied in one go."""


class LinearLoRA:
    def set_lora(self, slot, pairs):
        a, b = torch.zeros_like(self.lora_a[slot]), torch.zeros_like(self.lora_b[slot])
        for index, pair in enumerate(pairs):
            if pair is None:
                continue
            for row in range(len(pair.a)):
                a[index, row] = pair.a[row]
                b[row, self.columns[index]] = pair.b[:, row]
        self.lora_a[slot] = a
        self.lora_b[slot] = b

    def reset_lora(self, slot):
        self.set_lora(slot, [None] * len(self.columns))
