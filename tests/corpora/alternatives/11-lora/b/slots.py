"""Loops that stop as soon as they may."""


class LoRAModelManager:
    def add_adapter(self, key, path, keep=()):
        if key not in self.cpu_cache:
            loaded = self._load(key, path)
            self.cpu_cache[key] = loaded
        self.cpu_cache.move_to_end(key, last=True)
        self.paths.update({key: path})
        while len(self.cpu_cache) > self.max_cpu_loras:
            victim = None
            for old in self.cpu_cache:
                if old != key and old not in keep and old not in self.pinned:
                    victim = old
                    break
            if victim is None:
                break
            self.remove_adapter(victim)

    def _choose_slot(self, needed):
        empty = [slot for slot in range(len(self.slots)) if self.slots[slot] is None]
        if empty:
            return min(empty)
        return next(
            (self.slots.index(k) for k in self.last_used if k not in {*needed, *self.pinned}), None
        )

    def activate(self, key, needed):
        if key in self.slots:
            self.last_used.move_to_end(key)
            return self.slots.index(key)
        slot = self._choose_slot(needed)
        if slot is not None:
            self._release(slot)
            for name, layer in self.layers.items():
                pairs = self.cpu_cache[key].weights.get(name)
                layer.set_lora(slot, pairs) if pairs else layer.reset_lora(slot)
            self.slots[slot] = key
            self.last_used[key] = None
            self.num_activations += 1
        return slot
