"""One question an image, with names for the answers."""


class EncoderInputs:
    def _try_schedule_encoder_inputs(
        self, request, num_computed_tokens, num_new_tokens, encoder_compute_budget
    ):
        begin, end = num_computed_tokens, num_computed_tokens + num_new_tokens
        to_encode, names, embeds = [], [], 0
        for index in range(len(request.mm_features)):
            feature = request.mm_features[index]
            place = feature.mm_position
            if not (place.offset < end and place.end > begin):
                continue
            splits = place.offset >= begin and place.end > end
            if splits and self.config.disable_chunked_mm_input:
                end = place.offset
                break
            is_there = feature.identifier in names
            is_there = is_there or self.manager.check_and_update_cache(request, index)
            if is_there:
                continue
            has_room = self.manager.can_allocate(request, index, encoder_compute_budget, embeds)
            if not has_room:
                end = max(place.offset, begin)
                break
            inside = range(max(begin, place.offset), min(end, place.end))
            mask = place.is_embed
            if mask is not None and not any(mask[i - place.offset] for i in inside):
                continue
            size = place.get_num_embeds()
            to_encode.append(index)
            names.append(feature.identifier)
            embeds, encoder_compute_budget = embeds + size, encoder_compute_budget - size
        return to_encode, end - begin, encoder_compute_budget

    def free_computed(self, request, num_late_tokens=0):
        done = request.num_computed_tokens - num_late_tokens
        for index in range(len(request.mm_features)):
            place = request.mm_features[index].mm_position
            if done >= place.offset + place.length:
                self.manager.free_encoder_input(request, index)
