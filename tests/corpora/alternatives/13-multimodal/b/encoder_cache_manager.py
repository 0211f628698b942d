"""Whether anybody needs an image is asked of its set alone."""


class EncoderCacheManager:
    def check_and_update_cache(self, request, input_id):
        name = request.mm_features[input_id].identifier
        try:
            needed_by = self.cached[name]
        except KeyError:
            return False
        rows = 0 if needed_by else self.freeable.pop(name)
        self.num_freeable_slots -= rows
        needed_by.add(request.request_id)
        return True

    def free_encoder_input(self, request, input_id):
        name = request.mm_features[input_id].identifier
        needed_by = self.cached.get(name, set())
        if request.request_id in needed_by:
            needed_by.remove(request.request_id)
            if not needed_by:
                self.freeable[name] = request.get_num_encoder_embeds(input_id)
                self.freeable.move_to_end(name)
                self.num_freeable_slots += self.freeable[name]

    def can_allocate(self, request, input_id, encoder_compute_budget, num_embeds_to_schedule):
        embeds = request.get_num_encoder_embeds(input_id)
        fits_budget = embeds <= encoder_compute_budget
        fits_cache = embeds + num_embeds_to_schedule <= self.num_freeable_slots
        if not (fits_budget and fits_cache):
            return False
        while True:
            missing = embeds + num_embeds_to_schedule - self.num_free_slots
            if missing <= 0:
                return True
            oldest = next(iter(self.freeable))
            self.num_free_slots += self.freeable[oldest]
            del self.freeable[oldest], self.cached[oldest]
            self.freed += [oldest]

    def allocate(self, request, input_id):
        rows = request.get_num_encoder_embeds(input_id)
        name = request.mm_features[input_id].identifier
        self.cached[name] = {request.request_id, *self.cached.get(name, ())}
        for counter in ("num_free_slots", "num_freeable_slots"):
            setattr(self, counter, getattr(self, counter) - rows)
