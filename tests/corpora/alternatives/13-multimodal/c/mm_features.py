"""Counts each time; nothing is kept."""


class PlaceholderRange:
    def get_embeds_indices_in_range(self, start_idx, end_idx):
        takes = self.is_embed or [True] * self.length
        first, behind = (sum(map(bool, takes[:i])) for i in (start_idx, end_idx))
        return first, behind
