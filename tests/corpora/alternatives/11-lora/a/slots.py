"""Candidates are listed and the first is taken."""


class LoRAModelManager:
    def add_adapter(self, key, path, keep=()):
        known = key in self.cpu_cache
        adapter = self.cpu_cache.pop(key) if known else self._load(key, path)
        self.cpu_cache[key] = adapter
        self.paths[key] = path
        safe = {key, *keep, *self.pinned}
        going = [old for old in self.cpu_cache if old not in safe]
        excess = max(len(self.cpu_cache) - self.max_cpu_loras, 0)
        for old in going[:excess]:
            self.remove_adapter(old)

    def _choose_slot(self, needed):
        for slot, owner in enumerate(self.slots):
            if owner is None:
                return slot
        free = [old for old in self.last_used if not (old in needed or old in self.pinned)]
        return self.slots.index(free[0]) if free else None

    def activate(self, key, needed):
        try:
            slot = self.slots.index(key)
        except ValueError:
            slot = self._choose_slot(needed)
            if slot is None:
                return None
            self._release(slot)
            adapter = self.cpu_cache[key]
            for name in self.layers:
                self.layers[name].reset_lora(slot)
            for name, pairs in adapter.weights.items():
                self.layers[name].set_lora(slot, pairs)
            self.slots[slot] = key
            self.num_activations = self.num_activations + 1
        self.last_used.pop(key, None)
        self.last_used[key] = None
        return slot
