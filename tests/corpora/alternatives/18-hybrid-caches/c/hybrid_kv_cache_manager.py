"""The prefix that all accept, by recursion; steps by their ends."""


class HybridKVCacheManager:
    def _common_hit(self, request, max_length):
        tables = [[] for _ in self.managers]
        asked_full = set()
        num_others = sum(spec.kind != "full" for spec, _ in self.kinds)

        def once(length):
            for index, (spec, ids) in enumerate(self.kinds):
                if index in asked_full:
                    length -= length % spec.block_size
                    continue
                found = self.managers[ids[0]].find_hit(request, length, ids, self.alignment)
                for group, table in zip(ids, found, strict=True):
                    tables[group] = table
                length = len(found[0]) * spec.block_size
                if spec.kind == "full":
                    asked_full.add(index)
            return length

        def agreed(length):
            shorter = once(length)
            if shorter == length or (num_others <= 1 and len(self.kinds) <= 2):
                return shorter
            return agreed(shorter)

        length = agreed(max_length)
        cut = [
            table[: length // manager.block_size]
            for manager, table in zip(self.managers, tables, strict=True)
        ]
        return cut, length

    def _give_blocks(self, request_id, num_slots, hits, num_computed_tokens, reserved_blocks):
        for manager in self.managers:
            manager.release_skipped(request_id, num_computed_tokens)
        if not self._is_room(request_id, num_slots, hits, num_computed_tokens, reserved_blocks):
            return None
        if any(hits):
            for group in range(len(self.managers)):
                self.managers[group].add_hits(request_id, hits[group], num_computed_tokens)
        return tuple([manager.add_blocks(request_id, num_slots) for manager in self.managers])

    def cache_tokens(self, request, num_tokens):
        if self.enable_caching:
            whole = self.alignment * (num_tokens // self.alignment)
            for manager in reversed(self.managers):
                manager.publish(request, whole, self.alignment)


class GroupSteps:
    def limit_tokens(self, request, num_computed_tokens, num_new_tokens):
        known = max(request.num_prompt_tokens, request.num_tokens - 1)
        if not self.keeps_states or num_computed_tokens >= known:
            return num_new_tokens
        last = request.num_tokens // self.block_size * self.block_size
        end = num_computed_tokens + num_new_tokens
        if end < last:
            return num_new_tokens // self.block_size * self.block_size
        return max(last - num_computed_tokens, 0) or num_new_tokens

    def _copies(self, states, output):
        found = []
        for request_id, new in output.num_scheduled_tokens.items():
            computed = output.num_computed_tokens(request_id)
            if computed < 1:
                continue
            table = states.req_to_blocks[request_id]
            old = table[cdiv_(computed, states.block_size) - 1]
            now = table[cdiv_(computed + new, states.block_size) - 1]
            if old is not now:
                found.append((old.block_id, now.block_id))
        return found


def cdiv_(a, b):
    return -(-a // b)
