"""A loop with an else."""


class OffloadingConnector:
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        block_size = self.context.block_size
        start = end = num_computed_tokens // block_size
        hashes = request.block_hashes
        while end < len(hashes):
            state = self.manager.lookup(hashes[end])
            if state is None:
                return None, False
            if not state:
                break
            end += 1
        keys = list(hashes[start:end])
        if not keys:
            return 0, False
        for others, _ in self.loads.values():
            if set(others) & set(keys):
                return None, False
        self.manager.touch(keys)
        return (end - start) * block_size, True
