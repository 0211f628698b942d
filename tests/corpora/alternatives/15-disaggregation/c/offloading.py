"""A walk that notes what it has found."""


class OffloadingConnector:
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        size = self.context.block_size
        found = []
        for key in request.block_hashes[num_computed_tokens // size :]:
            state = self.manager.lookup(key)
            if state is None:
                return None, False
            if not state:
                break
            found.append(key)
        if not found:
            return 0, False
        for other, (keys, _) in self.loads.items():
            if other != request.request_id and set(keys) & set(found):
                return None, False
        self.manager.touch(found)
        return len(found) * size, True
