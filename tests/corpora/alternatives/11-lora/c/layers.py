"""A new slot is drawn up on the side, and copied in at the end."""


class LinearLoRA:
    def set_lora(self, slot, pairs):
        a, b = torch.zeros_like(self.lora_a[slot]), torch.zeros_like(self.lora_b[slot])
        for i, pair in enumerate(pairs):
            if pair is None:
                continue
            for row in range(pair.a.shape[0]):
                a[i, row] = pair.a[row]
                b[row, self.columns[i]] = pair.b[:, row]
        self.lora_a[slot] = a
        self.lora_b[slot] = b

    def reset_lora(self, slot):
        self.set_lora(slot, [])
