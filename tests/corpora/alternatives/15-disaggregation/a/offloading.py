"""First all answers, then what they mean."""


class OffloadingConnector:
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        size, found = self.context.block_size, []
        rest = list(request.block_hashes)[num_computed_tokens // size :]
        while rest and (answer := self.manager.lookup(rest[0])) is not False:
            if answer is None:
                return None, False
            found.append(rest.pop(0))
        if any(key in others for others, _ in self.loads.values() for key in found):
            return None, False
        if found:
            self.manager.touch(found)
        return size * len(found), bool(found)
