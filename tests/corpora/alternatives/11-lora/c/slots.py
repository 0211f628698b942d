"""Sorted lists of candidates instead of loops that stop."""


class LoRAModelManager:
    def add_adapter(self, key, path, keep=()):
        if key not in self.cpu_cache:
            adapter = self._load(key, path)
            self.cpu_cache[key] = adapter
        self.paths[key] = path
        self.cpu_cache.move_to_end(key)
        safe = {key, *keep, *self.pinned}
        may_go = [other for other in self.cpu_cache if other not in safe]
        too_many = max(0, len(self.cpu_cache) - self.max_cpu_loras)
        for other in may_go[:too_many]:
            self.remove_adapter(other)

    def _choose_slot(self, needed):
        if None in self.slots:
            return self.slots.index(None)
        safe = set(needed) | self.pinned
        return next((self.slots.index(key) for key in self.last_used if key not in safe), None)

    def activate(self, key, needed):
        if key in self.slots:
            self.last_used.move_to_end(key)
            return self.slots.index(key)
        slot = self._choose_slot(needed)
        if slot is None:
            return None
        self._release(slot)
        weights = self.cpu_cache[key].weights
        for name, layer in self.layers.items():
            if name in weights:
                layer.set_lora(slot, weights[name])
            else:
                layer.reset_lora(slot)
        self.num_activations += 1
        self.slots[slot] = key
        self.last_used[key] = None
        return slot
