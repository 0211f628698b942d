"""Room is made after it was looked for: first who would go, then who goes."""


class EncoderCacheManager:
    def check_and_update_cache(self, request, input_id):
        name = request.mm_features[input_id].identifier
        users = self.cached.get(name)
        if users is None:
            return False
        if name in self.freeable:
            rows = self.freeable[name]
            del self.freeable[name]
            self.num_freeable_slots -= rows
        users.add(request.request_id)
        return True

    def free_encoder_input(self, request, input_id):
        name = request.mm_features[input_id].identifier
        if name in self.freeable or name not in self.cached:
            return
        users = self.cached[name]
        users.discard(request.request_id)
        if len(users) == 0:
            rows = request.get_num_encoder_embeds(input_id)
            self.num_freeable_slots += rows
            self.freeable[name] = rows

    def can_allocate(self, request, input_id, encoder_compute_budget, num_embeds_to_schedule):
        rows = request.get_num_encoder_embeds(input_id)
        wanted = rows + num_embeds_to_schedule
        if rows > encoder_compute_budget or wanted > self.num_freeable_slots:
            return False
        leaving, room = [], self.num_free_slots
        for name, size in self.freeable.items():
            if room >= wanted:
                break
            leaving.append(name)
            room += size
        for name in leaving:
            self.num_free_slots += self.freeable.pop(name)
            self.cached.pop(name)
        self.freed.extend(leaving)
        return True

    def allocate(self, request, input_id):
        name = request.mm_features[input_id].identifier
        rows = request.get_num_encoder_embeds(input_id)
        if name not in self.cached:
            self.cached[name] = set()
        self.cached[name] |= {request.request_id}
        self.num_freeable_slots, self.num_free_slots = (
            self.num_freeable_slots - rows,
            self.num_free_slots - rows,
        )
