"""The images that the range touches are listed first; a cut is a return."""


class EncoderInputs:
    def _try_schedule_encoder_inputs(
        self, request, num_computed_tokens, num_new_tokens, encoder_compute_budget
    ):
        first, behind = num_computed_tokens, num_computed_tokens + num_new_tokens
        touched = [
            (index, feature.identifier, feature.mm_position)
            for index, feature in enumerate(request.mm_features)
            if feature.mm_position.offset < behind and feature.mm_position.end > first
        ]
        left = encoder_compute_budget
        chosen = {}
        for index, name, place in touched:
            before = max(place.offset - first, 0)
            if (
                self.config.disable_chunked_mm_input
                and first <= place.offset
                and place.end > behind
            ):
                return list(chosen.values()), before, left
            if name in chosen or self.manager.check_and_update_cache(request, index):
                continue
            promised = encoder_compute_budget - left
            if not self.manager.can_allocate(request, index, left, promised):
                return list(chosen.values()), before, left
            low = max(first - place.offset, 0)
            high = min(behind - place.offset, place.length)
            a, b = place.get_embeds_indices_in_range(low, high)
            if a < b:
                chosen[name] = index
                left -= request.get_num_encoder_embeds(index)
        return list(chosen.values()), num_new_tokens, left

    def free_computed(self, request, num_late_tokens=0):
        for index, feature in enumerate(request.mm_features):
            if request.num_computed_tokens - feature.mm_position.end >= num_late_tokens:
                self.manager.free_encoder_input(request, index)
