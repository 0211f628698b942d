"""Victims are chosen first, then all of them go at once."""


class EncoderCacheManager:
    def check_and_update_cache(self, request, input_id):
        name = request.mm_features[input_id].identifier
        if name not in self.cached:
            return False
        if name in self.freeable:
            self.num_freeable_slots -= self.freeable.pop(name)
        self.cached[name] = self.cached[name] | {request.request_id}
        return True

    def can_allocate(self, request, input_id, encoder_compute_budget, num_embeds_to_schedule):
        rows = request.get_num_encoder_embeds(input_id)
        lacking = rows + num_embeds_to_schedule - self.num_free_slots
        if rows > encoder_compute_budget or lacking > sum(self.freeable.values()):
            return False
        victims = []
        for name, size in self.freeable.items():
            if lacking <= 0:
                break
            victims.append(name)
            lacking -= size
        for name in victims:
            self.num_free_slots += self.freeable.pop(name)
            del self.cached[name]
        self.freed += victims
        return True

    def allocate(self, request, input_id):
        rows = request.get_num_encoder_embeds(input_id)
        self.num_free_slots, self.num_freeable_slots = (
            self.num_free_slots - rows,
            self.num_freeable_slots - rows,
        )
        self.cached.setdefault(request.mm_features[input_id].identifier, set()).add(
            request.request_id
        )

    def free_encoder_input(self, request, input_id):
        name = request.mm_features[input_id].identifier
        who = self.cached.get(name, set())
        if request.request_id not in who:
            return
        who.remove(request.request_id)
        if len(who) == 0:
            self.freeable[name] = request.get_num_encoder_embeds(input_id)
            self.num_freeable_slots += self.freeable[name]
