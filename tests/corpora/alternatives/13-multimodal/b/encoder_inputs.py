"""The images that overlap are found first; each then says where the range ends."""


def overlapping(features, begin, end):
    places = ((i, f, f.mm_position) for i, f in enumerate(features))
    return [one for one in places if one[2].offset < end and begin < one[2].end]


class EncoderInputs:
    def _try_schedule_encoder_inputs(
        self, request, num_computed_tokens, num_new_tokens, encoder_compute_budget
    ):
        begin, end = num_computed_tokens, num_computed_tokens + num_new_tokens
        chosen, budget = {}, encoder_compute_budget
        for index, feature, place in overlapping(request.mm_features, begin, end):
            stop = max(place.offset, begin)
            if self.config.disable_chunked_mm_input and place.offset >= begin and end < place.end:
                return list(chosen.values()), stop - begin, budget
            if feature.identifier in chosen:
                continue
            if self.manager.check_and_update_cache(request, index):
                continue
            promised = encoder_compute_budget - budget
            if not self.manager.can_allocate(request, index, budget, promised):
                return list(chosen.values()), stop - begin, budget
            first, last = place.get_embeds_indices_in_range(
                stop - place.offset, min(end, place.end) - place.offset
            )
            if last > first:
                chosen[feature.identifier] = index
                budget -= request.get_num_encoder_embeds(index)
        return list(chosen.values()), end - begin, budget

    def free_computed(self, request, num_late_tokens=0):
        ends = [feature.mm_position.end + num_late_tokens for feature in request.mm_features]
        finished = [i for i, end in enumerate(ends) if end <= request.num_computed_tokens]
        for index in finished:
            self.manager.free_encoder_input(request, index)
