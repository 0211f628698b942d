"""Slices are assigned, and what is not there is zeroed piece by piece."""


class LinearLoRA:
    def set_lora(self, slot, pairs):
        for index, columns in enumerate(self.columns):
            a, b = self.lora_a[slot, index], self.lora_b[slot][:, columns]
            pair = pairs[index] if index < len(pairs) else None
            rank = 0 if pair is None else pair.a.shape[0]
            if pair is not None:
                a[:rank] = pair.a
                b[:rank] = pair.b.transpose(0, 1)
            a[rank:] = 0
            b[rank:] = 0

    def reset_lora(self, slot):
        for buffer in (self.lora_a, self.lora_b):
            buffer[slot].fill_(0)
