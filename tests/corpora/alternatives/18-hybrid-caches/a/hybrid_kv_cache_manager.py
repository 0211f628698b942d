"""Tables are cut to what is asked where a kind allows it; chunks are counted in blocks."""


class HybridKVCacheManager:
    def _common_hit(self, request, max_length):
        full = [kind for kind in self.kinds if kind[0].kind == "full"]
        rest = [kind for kind in self.kinds if kind[0].kind != "full"]
        tables = [[] for _ in self.managers]
        length = max_length

        def ask(spec, ids, limit):
            found = self.managers[ids[0]].find_hit(request, limit, ids, self.alignment)
            for group, table in zip(ids, found, strict=True):
                tables[group] = list(table)
            return spec.block_size * len(found[0])

        for spec, ids in full:
            length = ask(spec, ids, length)
        is_agreed = False
        while not is_agreed:
            is_agreed = True
            for spec, ids in rest:
                shorter = ask(spec, ids, length)
                is_agreed = is_agreed and shorter == length
                length = shorter
            for spec, _ in full:
                length -= length % spec.block_size
            is_agreed = is_agreed or (len(rest) < 2 and len(full) < 2)
        for spec, ids in full:
            for group in ids:
                tables[group] = tables[group][: length // spec.block_size]
        return tables, length

    def _give_blocks(self, request_id, num_slots, hits, num_computed_tokens, reserved_blocks):
        for manager in self.managers:
            manager.release_skipped(request_id, num_computed_tokens)
        answer = None
        if self._is_room(request_id, num_slots, hits, num_computed_tokens, reserved_blocks):
            if sum(len(own) for own in hits):
                for group, manager in enumerate(self.managers):
                    manager.add_hits(request_id, hits[group], num_computed_tokens)
            answer = ()
            for manager in self.managers:
                answer += (manager.add_blocks(request_id, num_slots),)
        return answer

    def cache_tokens(self, request, num_tokens):
        if not self.enable_caching:
            return
        whole = num_tokens - num_tokens % self.alignment
        for manager in self.managers:
            manager.publish(request, whole, self.alignment)


class GroupSteps:
    def limit_tokens(self, request, num_computed_tokens, num_new_tokens):
        size = self.block_size
        is_decode = num_computed_tokens >= max(request.num_prompt_tokens, request.num_tokens - 1)
        if is_decode or not self.keeps_states:
            return num_new_tokens
        border = request.num_tokens - request.num_tokens % size
        if num_computed_tokens >= border:
            return num_new_tokens
        if num_computed_tokens + num_new_tokens >= border:
            return border - num_computed_tokens
        return num_new_tokens - num_new_tokens % size

    def _copies(self, states, output):
        pairs = []
        for request_id in output.num_scheduled_tokens:
            before = output.num_computed_tokens(request_id)
            after = before + output.num_scheduled_tokens[request_id]
            if before == 0:
                continue
            places = [(tokens - 1) // states.block_size for tokens in (before, after)]
            if places[0] != places[1]:
                source, target = (states.req_to_blocks[request_id][place] for place in places)
                pairs.append((source.block_id, target.block_id))
        return pairs
