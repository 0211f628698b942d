"""A queue of kinds that have still to accept; borders are found by rounding."""


class HybridKVCacheManager:
    def _common_hit(self, request, max_length):
        found = {}
        accepted = dict.fromkeys(range(len(self.kinds)), -1)
        length, turn = max_length, 0
        simple = len(self.kinds) == 1 or (len(self.kinds) == 2 and self.kinds[0][0].kind == "full")
        while any(value != length for value in accepted.values()):
            spec, ids = self.kinds[turn % len(self.kinds)]
            if ids[0] in found and spec.kind == "full":
                length = length // spec.block_size * spec.block_size
            elif not (simple and ids[0] in found):
                tables = self.managers[ids[0]].find_hit(request, length, ids, self.alignment)
                for place, group in enumerate(ids):
                    found[group] = tables[place]
                length = spec.block_size * len(tables[0])
            accepted[turn % len(self.kinds)] = length
            turn += 1
        return [
            found[group][: length // self.groups[group].block_size] for group in sorted(found)
        ], length

    def _give_blocks(self, request_id, num_slots, hits, num_computed_tokens, reserved_blocks):
        managers = list(self.managers)
        [manager.release_skipped(request_id, num_computed_tokens) for manager in managers]
        args = (request_id, num_slots, hits, num_computed_tokens, reserved_blocks)
        if not self._is_room(*args):
            return None
        pairs = list(zip(managers, hits, strict=True)) if any(map(len, hits)) else []
        for manager, own in pairs:
            manager.add_hits(request_id, own, num_computed_tokens)
        new = []
        for manager in managers:
            new.append(manager.add_blocks(request_id, num_slots))
        return tuple(new)

    def cache_tokens(self, request, num_tokens):
        whole, _ = divmod(num_tokens, self.alignment)
        for manager in self.managers if self.enable_caching else ():
            manager.publish(request, whole * self.alignment, self.alignment)


class GroupSteps:
    def limit_tokens(self, request, num_computed_tokens, num_new_tokens):
        prompt_goes_on = num_computed_tokens < request.num_prompt_tokens
        answer_goes_on = num_computed_tokens < request.num_tokens - 1
        if not self.keeps_states or not (prompt_goes_on or answer_goes_on):
            return num_new_tokens
        size = self.block_size
        end = num_computed_tokens + num_new_tokens
        last = size * (request.num_tokens // size)
        if last <= num_computed_tokens:
            return num_new_tokens
        return (
            min(size * (num_new_tokens // size), last - num_computed_tokens)
            if end < last
            else (last - num_computed_tokens)
        )

    def _copies(self, states, output):
        def block(request_id, token):
            return states.req_to_blocks[request_id][token // states.block_size].block_id

        moving = [
            (name, output.num_computed_tokens(name), new)
            for name, new in output.num_scheduled_tokens.items()
        ]
        size = states.block_size
        return [
            (block(name, done - 1), block(name, done + new - 1))
            for name, done, new in moving
            if done and (done - 1) // size < (done + new - 1) // size
        ]
